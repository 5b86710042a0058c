#!/bin/sh
# Compiles the C++ tests of some folders with a sanitizer, and runs them:
#   tests/cpp/sanitizers/run.sh BUILD_FOLDER SANITIZER FOLDERS...
# from the repository's root. SANITIZER is thread or address. JOBS (1): tests at a time. The report
# goes to reports/ next to BUILD_FOLDER, which is kept: a second run compiles what has changed.
set -eu
build=$1 sanitizer=$2
shift 2
report=$(dirname "$build")/reports/$(basename "$build").xml
mkdir -p "$(dirname "$report")"

cmake -S . -B "$build" -G Ninja -DSINKSTREAM_PYTHON=OFF -DSINKSTREAM_CUDA=OFF \
  -DSINKSTREAM_TESTS=ON -DSINKSTREAM_SANITIZE="$sanitizer" >"$build.log" || { cat "$build.log"; exit 1; }
targets=
for folder; do
  targets="$targets ${folder}_test"
  case $folder in # which have faults planted for the sanitizer to find
    engine) targets="$targets planted_faults" ;;
    cuda) targets="$targets planted_kernel_faults" ;;
  esac
done
# shellcheck disable=SC2086 # one word for each target
cmake --build "$build" --target $targets

# Sanitizers fail where the kernel scatters addresses widely (vm.mmap_rnd_bits above 28).
unscattered=$(setarch -R true 2>/dev/null && echo setarch -R) || true
export UBSAN_OPTIONS=print_stacktrace=1             # where undefined behavior happened
export ASAN_OPTIONS=detect_stack_use_after_return=1 # locals that outlive their function
labels="^($(echo "$*" | tr ' ' '|'))\$"
$unscattered ctest --test-dir "$build" --label-regex "$labels" --parallel "${JOBS:-1}" \
  --output-on-failure --no-tests=error --output-junit "$(realpath "$report")"
