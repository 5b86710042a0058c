"""`sinkstream info`: it shows what the model reports, and its advice applies."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.cells import cell_len

import sinkstream
from sinkstream.checkpoint.bounded_file import File
from sinkstream.checkpoint.describe import TypeShare
from sinkstream.cli import info_facts
from sinkstream.cli.info import WIDTH, count, details, lay_out, shares, summary
from sinkstream.cli.info_facts import (
    CacheFacts,
    Facts,
    GpuFacts,
    KernelFacts,
    MemoryFacts,
    ModelFacts,
    ProcessorFacts,
    VersionFacts,
    display_name,
)
from sinkstream.cli.info_hints import hints
from tests.data import quantized_folders
from tests.data.quantized_folders import Scheme
from tests.python.checkpoint.gguf_bytes import STRING, U32, llama_bytes
from tests.python.checkpoint.split_files import write_parts
from tests.python.cli.conftest import Run
from tests.python.cli.terminal import Terminal

SECTIONS = ["Model", "Context", "Memory", "Speed"]
GPU = GpuFacts(None, "RTX 6000", "8.9", 128, 24_000_000_000, 23_000_000_000)
# A machine and a model for which there is no advice.
PLAIN = Facts(
    ModelFacts(
        name="model.gguf",
        path="/models/model.gguf",
        family="llama",
        parameters=2_000_000_000,
        block_formats={"Q4_0": 1_000_000_000, "Q8_0": 200_000_000, "F32": 100},
        layers=16,
        hidden_size=2048,
        intermediate_size=8192,
        heads=32,
        kv_heads=8,
        head_dim=64,
        vocab_size=128_256,
        trained_length=131_072,
        quantization="Q4_K_M",
        tokenizer="gpt2 (llama-bpe)",
        has_chat_template=True,
        bytes_read_per_token=1_100_000_000,
        tensor_types={
            "Q4_0": TypeShare(112, 1_800_000_000, 1_000_000_000),
            "Q8_0": TypeShare(1, 200_000_000, 200_000_000),
        },
    ),
    CacheFacts(4, 4092, 4096, "float16", 32_768, 140_000_000),
    MemoryFacts(
        1_400_000_000,
        1_200_000_000,
        140_000_000,
        60_000_000,
        1,
        8_000_000_000,
        True,
        131_068,
        {"chat": 1_700_000_000, "serve": 2_400_000_000},
    ),
    ProcessorFacts("AMD EPYC", "x86_64", ["avx2", "fma", "f16c"], 8, 8, 8, "madvise"),
    GpuFacts(problem="there is no NVIDIA driver."),
    KernelFacts(
        "cpu",
        "avx2",
        "",
        "int16",
        ["avx2", "generic", "reference"],
        ["amx", "avx512", "avx2", "generic", "reference"],
        {},
        {"linear": "avx2"},
    ),
    VersionFacts("1.0", "2.0", "3.0"),
)


def changed(**sections: dict[str, Any]) -> Facts:
    """Return PLAIN with other values in its sections."""
    parts = {name: replace(getattr(PLAIN, name), **values) for name, values in sections.items()}
    return replace(PLAIN, **parts)


class TestHints:
    def test_a_machine_that_does_its_best_gets_none(self) -> None:
        assert hints(PLAIN) == []

    @pytest.mark.parametrize(
        ("facts", "name", "words"),
        [
            (
                changed(kernels={"forced": "generic", "table": "generic", "dtype": "int16"}),
                "kernels",
                "SINKSTREAM_KERNELS=generic hides the faster kernel table avx2",
            ),
            (
                changed(kernels={"refused": {"amx": "no tile registers"}}),
                "kernels",
                "The kernel table amx cannot be used: no tile registers.",
            ),
            (
                changed(kernels={"built": ["generic", "reference"], "supported": ["generic"]}),
                "kernels",
                "This build lacks the kernel table avx2",
            ),
            (
                changed(
                    kernels={"built": ["generic", "reference"], "supported": ["generic"]},
                    processor={"machine": "aarch64", "instructions": ["asimd"]},
                ),
                "kernels",
                "No kernel table is optimized for this processor (aarch64)",
            ),
            (
                changed(processor={"usable_cores": 2, "threads": 2}),
                "cores",
                "This process may use 2 of 8 logical CPUs",
            ),
            (
                changed(processor={"threads": 3}),
                "threads",
                "--threads 8 would use all 8 logical CPUs",
            ),
            (changed(processor={"threads": 9}), "threads", "9 threads compete for 8 logical CPUs"),
            (
                changed(processor={"threads": 2, "usable_cores": 1, "cores": 1}),
                "threads",
                "2 threads compete for 1 logical CPU. --threads 1",
            ),
            (
                changed(kernels={"dtype": "float32"}),
                "dtype",
                "--dtype int16 is faster than float32",
            ),
            (
                changed(
                    kernels={"table": "amx", "supported": ["amx"], "dtype": "bfloat16"},
                    model={"parameters": 600_000_000},
                ),
                "dtype",
                "--dtype int16 generates faster",
            ),
            (
                changed(cache={"bytes_per_sequence": 600_000_000}),
                "kv_dtype",
                "--kv-dtype int8 shrinks the cache to about half",
            ),
            (
                changed(cache={"bytes_per_sequence": 600_000_000, "kv_dtype": "float32"}),
                "kv_dtype",
                "to about a quarter",
            ),
            (changed(processor={"huge_pages": "never"}), "huge_pages", "huge pages disabled"),
            (replace(PLAIN, gpu=GPU), "gpu", "--device cuda runs the model on the RTX 6000"),
        ],
    )
    def test_advice_is_given_under_its_condition_alone(
        self, facts: Facts, name: str, words: str
    ) -> None:
        (hint,) = hints(facts)
        assert hint.name == name
        assert words in hint.text
        assert hint.text[-1] == "." or name == "huge_pages"  # which ends in a command

    @pytest.mark.parametrize(
        "facts",
        [
            changed(kernels={"forced": "avx2"}),
            changed(processor={"instructions": ["avx2"]}, kernels={"built": ["amx", "generic"]}),
            changed(kernels={"dtype": "float32"}, model={"block_formats": {"BF16": 1}}),
            changed(kernels={"table": "amx", "supported": ["amx"], "dtype": "bfloat16"}),
            changed(cache={"bytes_per_sequence": 600_000_000, "kv_dtype": "int8"}),
            changed(processor={"huge_pages": None}),
            changed(processor={"huge_pages": "always"}),
            changed(
                kernels={"device": "cuda", "forced": "generic", "table": "generic"},
                processor={"threads": 1, "huge_pages": "never"},
            ),
        ],
    )
    def test_advice_is_absent_where_it_does_not_help(self, facts: Facts) -> None:
        assert hints(facts) == []


class TestPage:
    def test_the_usual_page_has_at_most_twenty_lines(self) -> None:
        advice = hints(changed(processor={"threads": 2}, cache={"bytes_per_sequence": 10**9}))
        assert len(advice) == 2
        assert len(list(lay_out(summary(PLAIN, advice)))) <= 20

    @pytest.mark.parametrize("width", [40, 60, WIDTH, 200])
    def test_no_line_is_wider_than_the_terminal(self, width: int) -> None:
        facts = changed(model={"name": "A 模型 " + "x" * 150, "path": "/" + "y" * 300})
        worst = hints(
            changed(
                processor={"threads": 2, "usable_cores": 3, "huge_pages": "never"},
                kernels={"refused": {"amx": "a long reason " * 5}},
                cache={"bytes_per_sequence": 10**9},
            )
        )
        assert len(worst) == 5
        for rows in (summary(facts, worst), details(facts, worst)):
            lines = [line.plain for line in lay_out(rows, width)]
            assert max(map(cell_len, lines)) <= width
            assert all(line == line.rstrip() for line in lines)

    def test_values_begin_in_one_column(self) -> None:
        rows = summary(PLAIN, hints(changed(processor={"huge_pages": "never"})))
        lines = [line.plain for line in lay_out(rows)]
        left = lines[0].index("model.gguf")
        assert all(line[left - 1] == " " and line[left] != " " for line in lines)
        labels = [line[:left].rstrip() for line in lines]
        assert labels[0].split() == ["Model", "name"]
        start = lines[0].index("name")
        assert all(label == "" or label[start - 1] == " " for label in labels)

    def test_a_section_is_named_once(self) -> None:
        lines = [line.plain for line in lay_out(summary(PLAIN, []))]
        assert [line.split()[0] for line in lines if line[0] != " "] == SECTIONS

    def test_it_says_first_what_the_model_is(self) -> None:
        text = "\n".join(line.plain for line in lay_out(summary(PLAIN, [])))
        for value in (
            "2.0 billion parameters, 1.2 GB",
            "Q4_K_M: Q4_0 (83%), Q8_0 (17%)",
            "tokenizer gpt2 (llama-bpe), with a chat template",
            "4 sinks + a window of 4,092 tokens",
            "131,072 tokens",
            "140.0 MB per sequence, 32.8 kB per token (float16)",
            "1.2 GB, a token reads 1.1 GB; scratch 60.0 MB",
            "stream       1.4 GB of 8.0 GB available",
            "chat         1.7 GB, 3 sequences",
            "serve        2.4 GB, 8 sequences",
            "avx2, activations in int16",
            "8 on 8 logical CPUs",
            "none: there is no NVIDIA driver.",
        ):
            assert value in text

    def test_a_gpu_is_shown_with_its_memory(self) -> None:
        facts = replace(changed(kernels={"device": "cuda", "dtype": "bfloat16"}), gpu=GPU)
        text = "\n".join(line.plain for line in lay_out(summary(facts, [])))
        assert "RTX 6000, 23.0 GB of 24.0 GB free" in text
        assert "cuda, activations in bfloat16" in text

    def test_all_shows_every_fact(self) -> None:
        rows = {
            (row.section, row.label): row.value
            for row in details(changed(kernels={"refused": {"amx": "why"}}), [])
        }
        assert rows["Model", "hidden size"] == "2,048"
        assert rows["Memory", "weight bytes"] == "1.2 GB (1,200,000,000)"
        assert rows["Command bytes", "serve"] == "2.4 GB (2,400,000,000)"
        assert rows["Block formats", "Q4_0"] == "1.0 GB (1,000,000,000)"
        assert rows["Tensor types", "Q4_0"] == "112 tensors, 1.0 GB (1,000,000,000)"
        assert rows["Tensor types", "Q8_0"] == "1 tensor, 200.0 MB (200,000,000)"
        assert rows["Model", "has chat template"] == "yes"
        assert rows["Operations", "linear"] == "avx2"
        assert rows["Refused", "amx"] == "why"
        assert rows["Kernels", "forced"] == "none"
        assert ("GPU", "name") not in rows

    @pytest.mark.parametrize(
        ("window", "remedy"), [(2044, "--window 2044 fits"), (0, "no window fits")]
    )
    def test_it_says_which_window_fits(self, window: int, remedy: str) -> None:
        facts = changed(
            memory={"available_bytes": 1_300_000_000, "fits": False, "largest_window": window}
        )
        text = "\n".join(line.plain for line in lay_out(summary(facts, []), 200))
        assert f"1.4 GB, but only 1.3 GB is available: {remedy}" in text

    @pytest.mark.parametrize(
        ("number", "words"),
        [(960, "960"), (12_345, "12,345"), (134_515_008, "134.5 million"), (10**9, "1.0 billion")],
    )
    def test_parameters_are_counted_in_words(self, number: int, words: str) -> None:
        assert count(number) == words

    def test_one_block_format_needs_no_share(self) -> None:
        assert shares({"BF16": 1000, "F32": 1}) == "BF16"

    @pytest.mark.parametrize(
        ("path", "name"),
        [
            ("/models/a.gguf", "a.gguf"),
            ("/models/folder", "folder"),
            ("/hub/models--org--a-name/snapshots/0123", "org/a-name"),
            ("/models/a\x1b[31m\udcff.gguf", "a\ufffd[31m\ufffd.gguf"),
        ],
    )
    def test_a_model_is_named_as_a_person_would(self, path: str, name: str) -> None:
        assert display_name(path) == name


# Programs read these. A key may be added; one that is renamed or removed is a breaking change.
KEYS = {
    "model": "name path family parameters block_formats layers hidden_size intermediate_size heads "
    "kv_heads head_dim vocab_size trained_length quantization file_bytes tokenizer "
    "has_chat_template bytes_read_per_token tensor_types quantize active_parameters experts "
    "chosen_experts",
    "cache": "sinks window capacity kv_dtype bytes_per_token bytes_per_sequence "
    "rope_changes_above has_long_rope",
    "memory": "total_bytes weight_bytes cache_bytes scratch_bytes max_sequences available_bytes "
    "fits largest_window command_bytes",
    "processor": "name machine instructions cores usable_cores threads huge_pages",
    "gpu": "problem name compute_capability multiprocessors memory_bytes free_bytes",
    "kernels": "device table forced dtype supported built refused operations",
    "versions": "sinkstream torch python",
}


def test_json_has_stable_keys(run: Run, checkpoint: str) -> None:
    facts = json.loads(run("info", "-m", checkpoint, "--json").out)
    assert {name: " ".join(facts[name]) for name in KEYS} == KEYS
    assert facts.keys() - KEYS == {"hints", "refused"}
    assert facts["refused"] == []
    assert all(hint.keys() == {"name", "text"} for hint in facts["hints"])
    assert json.loads(run("info", "-m", checkpoint, "--json", "--all").out).keys() == facts.keys()


def test_it_shows_model_cache_processor_kernels_and_versions(run: Run, checkpoint: str) -> None:
    outcome = run("info", "-m", checkpoint, "--sinks", "3", "--window", "61", "--json")
    facts = json.loads(outcome.out)
    with sinkstream.load(checkpoint, sinks=3, window=61, max_sequences=1) as model:
        assert facts["model"]["family"] == model.spec.family == "llama"
        assert facts["model"]["layers"] == model.spec.layers
        assert facts["cache"]["capacity"] == 64
        assert facts["cache"]["bytes_per_token"] == model.capacity.bytes_per_token
        assert facts["memory"]["weight_bytes"] == model.capacity.weight_bytes
        assert facts["kernels"]["operations"] == model.runtime["served_by"]
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["processor"]["name"]


def test_no_weights_are_read(run: Run, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = File.read

    def counted(self: File, begin: int, count: int, what: str) -> bytes:
        assert not what.startswith("tensor"), what
        return read(self, begin, count, what)

    monkeypatch.setattr(File, "read", counted)
    assert run("info", "-m", checkpoint).code == 0


@pytest.mark.parametrize(
    ("change", "sentence", "known"),
    [
        (
            {"general.architecture": (STRING, "gemma4")},
            'm.gguf has architecture "gemma4", which has heads of different sizes',
            {"family": "gemma4", "quantization": "F32", "tokenizer": None},
        ),
        (
            {"tokenizer.ggml.model": (STRING, "bert"), "general.file_type": (U32, 15)},
            'GGUF metadata has the tokenizer model "bert"; the supported ones are ',
            {"family": "llama", "quantization": "Q4_K_M", "tokenizer": "bert"},
        ),
    ],
)
def test_a_model_that_is_refused_is_described(
    run: Run, tmp_path: Path, change: dict[str, Any], sentence: str, known: dict[str, Any]
) -> None:
    file = llama_bytes()
    file.keys = [key for key in file.keys if key[0] not in change]
    for name, (kind, value) in change.items():
        file.add(name, kind, value)
    path = str(file.write(tmp_path / "m.gguf"))
    outcome = run("info", path, "--json")
    facts = json.loads(outcome.out)
    assert outcome.code == 2
    assert sentence in outcome.err
    refused = facts["refused"][0].removeprefix("load: ")
    assert outcome.err == f"sinkstream: info: {refused}\n"
    assert {name: facts["model"][name] for name in known} == known
    assert facts["model"]["tensor_types"]["F32"]["tensors"] == 11
    page = run("info", path)
    assert page.code == 2
    assert page.out.splitlines()[1].split() == ["family", str(known["family"])]
    assert run("info", path, "--all").out.count("11 tensors") == 1


def test_a_block_type_that_is_refused_is_counted(run: Run, tmp_path: Path) -> None:
    file = llama_bytes()
    gate = next(tensor for tensor in file.tensors if "ffn_gate" in str(tensor.name))
    gate.block_type = 16
    outcome = run("info", str(file.write(tmp_path / "m.gguf")))
    assert "IQ2_XXS" in outcome.out
    assert "has block type IQ2_XXS; the supported ones are" in outcome.err


def test_it_says_what_does_not_fit(
    run: Run, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["info", "-m", checkpoint, "--window"]
    whole = json.loads(run(*words, "2000", "--json").out)["memory"]
    monkeypatch.setattr(info_facts, "available_bytes", lambda: whole["total_bytes"] - 1)
    memory = json.loads(run(*words, "2000", "--json").out)["memory"]
    assert (whole["fits"], memory["fits"]) == (True, False)
    window = memory["largest_window"]
    assert 0 < window < 2000
    assert json.loads(run(*words, str(window), "--json").out)["memory"]["fits"]
    assert f"--window {window} fits" in " ".join(run(*words, "2000").out.split())


def test_a_model_in_parts_is_described_as_one(run: Run, tmp_path: Path) -> None:
    parts = write_parts(tmp_path)
    for part in parts:
        facts = json.loads(run("info", str(part), "--json").out)
        assert facts["model"]["path"] == str(parts[0])
        assert facts["model"]["file_bytes"] == sum(p.stat().st_size for p in parts)


def test_a_quantized_folder_shows_its_types_and_what_a_token_reads(
    run: Run, tmp_path: Path
) -> None:
    quantized_folders.write(Scheme("gptq", bits=8, group=64, model="llama-wide"), tmp_path)
    model = json.loads(run("info", str(tmp_path), "--json").out)["model"]
    assert model["quantization"] == "gptq"
    assert set(model["block_formats"]) == {"INT8", "F32"}
    matrices = 2 * (2 * 256 * 256 + 2 * 64 * 256 + 3 * 512 * 256)
    assert model["block_formats"]["INT8"] == matrices * (1 + 4 / 64)  # a word for each group
    assert model["tensor_types"].keys() == {"I32", "F16", "F32"}
    assert model["bytes_read_per_token"] < model["file_bytes"]


def test_parameters_are_those_of_the_tensors(run: Run, checkpoint: str) -> None:
    facts = json.loads(run("info", "-m", checkpoint, "--json").out)["model"]
    assert set(facts["block_formats"]) <= {"F32", "BF16", "F16"}
    size = {"F32": 4, "BF16": 2, "F16": 2}
    assert facts["parameters"] == sum(
        stored // size[kind] for kind, stored in facts["block_formats"].items()
    )


def test_without_a_terminal_it_writes_the_same_page(run: Run, checkpoint: str) -> None:
    outcome = run("info", "-m", checkpoint)
    lines = outcome.out.splitlines()
    assert lines[0].split()[:2] == ["Model", "name"]
    assert lines[0].endswith(Path(checkpoint).name)
    assert all(line.isprintable() and len(line) <= WIDTH for line in lines)
    assert len(run("info", "-m", checkpoint, "--all").out.splitlines()) > 40


def test_on_a_terminal_it_is_in_color(checkpoint: str) -> None:
    command = [sys.executable, "-m", "sinkstream.cli", "info", "-m", checkpoint]
    with Terminal(command, {"TERM": "xterm-256color", "NO_COLOR": ""}) as terminal:
        code, text = terminal.end()
    assert code == 0
    assert "\x1b[1mModel" in text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", text)
    assert re.search(r"^ +trained for +\d", plain, re.MULTILINE)


def test_it_says_why_the_system_withholds_a_kernel_table(
    run: Run, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "the kernel does not grant this process tile registers"
    monkeypatch.setattr(sinkstream._core, "kernel_refusals", lambda: {"amx": reason})
    text = " ".join(run("info", "-m", checkpoint).out.split())
    assert f"The kernel table amx cannot be used: {reason}." in text


def test_a_forced_kernel_table_is_the_one_that_is_shown(
    run: Run, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINKSTREAM_KERNELS", "reference")
    facts = json.loads(run("info", "-m", checkpoint, "--json").out)
    assert facts["kernels"]["operations"]["linear"] == facts["kernels"]["table"] == "reference"
    assert facts["hints"][0]["text"].startswith("SINKSTREAM_KERNELS=reference hides")


def test_a_model_that_does_not_exist_is_one_sentence(run: Run) -> None:
    outcome = run("info", "-m", "/missing/model.gguf")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert '"/missing/model.gguf" must be a GGUF file' in outcome.err


def test_the_version_is_the_packages(run: Run) -> None:
    assert run("--version").out == f"sinkstream {sinkstream.__version__}\n"


@pytest.mark.parametrize(
    ("sequences", "words"),
    [
        (1, "for 1 sequence; load() has room for 2"),
        (2, "for 2 sequences"),
        (3, "for 3 sequences; load() has room for 2"),
    ],
)
def test_the_cache_is_that_of_the_command_line_and_loads_default_is_named(
    sequences: int, words: str
) -> None:
    rows = summary(changed(memory={"max_sequences": sequences}), ())
    (cache,) = [row.value for row in rows if (row.section, row.label) == ("Memory", "cache")]
    assert cache.endswith(words)
