"""`tests/gpu/registers.py`: reads what ptxas says; a kernel must not spill more than before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.gpu import registers
from tests.gpu.compile_and_keep_log import main as keep_log
from tests.gpu.compile_and_keep_log import recorded
from tests.gpu.registers import Kernel, Launch

pytestmark = pytest.mark.full

PREFIX = "_ZN10sinkstream4cuda41_GLOBAL__N__"
LINEAR = f"{PREFIX}5692eb75_9_linear_cu_3d64f56013linear_kernelILNS_10WeightTypeE2ELi8ELm101376EEEv"
PAGE = f"{PREFIX}77988a50_9_decode_cu_bd63bb5419attend_pages_kernelIaLb0ELi1EEEv"
KERNEL = "attend_pages_kernel<int8, false, 1>"
NORM = "_ZN10sinkstream4cuda39_GLOBAL__N__c5bea9f4_7_norm_cu_1f89333e11norm_kernelENS0_8NormArgsE"


def entry(name: str, registers: int, spilled: int, end: str = "") -> str:
    return (
        f"ptxas info    : Compiling entry function '{name}' for 'sm_90a'\n"
        f"ptxas info    : Function properties for {name}\n"
        f"    8 bytes stack frame, {spilled} bytes spill stores, {spilled + 4} bytes spill loads\n"
        f"ptxas info    : Used {registers} registers, used 1 barriers{end}\n"
    )


LOG = (
    "ptxas info    : 0 bytes gmem\n"
    + entry(f"{LINEAR}NS0_10LinearArgsE", 200, 0)
    + entry(f"{PAGE}NS0_13AttentionArgsE", 94, 12)
    + entry(NORM, 58, 0, ", 512 bytes smem")
)


def test_a_log_is_read_by_the_names_of_the_sources() -> None:
    assert registers.read_log(LOG) == [
        Kernel("linear_kernel<kBFloat16, 8, 101376>", 200, 0, 0),
        Kernel(KERNEL, 94, 12, 0),
        Kernel("norm_kernel", 58, 0, 512),
    ]


def test_more_spills_than_allowed_are_a_problem() -> None:
    kernels = registers.read_log(LOG)
    assert registers.problems_of(kernels, {KERNEL: 12}, is_whole=True) == []
    (problem,) = registers.problems_of(kernels, {KERNEL: 8}, is_whole=True)
    assert problem == (f"{KERNEL} must spill at most 8 bytes, but spills 12, with 94 registers.")
    assert len(registers.problems_of(kernels, {}, is_whole=False)) == 1


def test_an_allowance_that_is_no_longer_needed_is_a_problem() -> None:
    kernels = registers.read_log(LOG)
    allowed = {KERNEL: 16, "another_kernel": 4}
    assert len(registers.problems_of(kernels, allowed, is_whole=True)) == 2
    assert registers.problems_of(kernels, allowed, is_whole=False) == []


@pytest.mark.parametrize(
    ("registers_used", "launch", "blocks"),
    [
        (62, Launch(256, 33_024), 4),  # 64 registers: 16,384 of a block
        (200, Launch(256, 133_120), 1),
        (80, Launch(128, 39_168), 5),  # shared memory
        (32, Launch(1024, 0), 2),  # threads
        (16, Launch(32, 0), 32),
    ],
)
def test_blocks_fit_as_registers_memory_and_threads_allow(
    registers_used: int, launch: Launch, blocks: int
) -> None:
    kernel = Kernel("a kernel", registers_used, 0, 0)
    assert registers.blocks_per_multiprocessor(kernel, launch) == blocks


def test_a_page_keeps_what_is_around_its_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Above.\n{registers.BEGIN}\nold\n{registers.END}\nBelow.\n")
    registers.rewrite(page, registers.table(registers.read_log(LOG)))
    text = page.read_text()
    assert text.startswith(f"Above.\n{registers.BEGIN}\n")
    assert text.endswith(f"{registers.END}\nBelow.\n")
    assert f"| `{KERNEL}` | 94 | 12 | 128 |" in text
    assert "old" not in text


def test_a_log_is_of_all_sources_that_a_file_includes() -> None:
    files = registers.included(registers.SOURCES / "kernels/cuda/attention/decode.cu", set())
    names = {path.name for path in files}
    assert {"decode.cu", "attention.h", "tile.cuh", "portable.h", "device_types.h"} <= names
    assert "linear.cu" not in names


def test_the_options_are_those_of_the_build() -> None:
    module = (registers.ROOT / "cmake/SinkstreamCuda.cmake").read_text(encoding="utf-8")
    options = re.search(r"set\(cuda_options (.*?)\)", module)
    assert options is not None
    assert set(options[1].split()) - {"-Xcompiler=-fvisibility=hidden"} <= set(registers.OPTIONS)


SOURCE = str(registers.SOURCES / "kernels/cuda/norm.cu")
ARCH = "--generate-code=arch=compute_90a,code=[sm_90a]"
COMMAND = [*registers.OPTIONS, ARCH, "-x", "cu", "-c", SOURCE, "-o", "norm.cu.o"]


@pytest.mark.parametrize(
    "other",
    [
        [word for word in COMMAND if word != ARCH],
        [word for word in COMMAND if word != "-O3"],
        [SOURCE.replace("norm.cu", "plugin.cc") if word == SOURCE else word for word in COMMAND],
        ["elsewhere.cu" if word == SOURCE else word for word in COMMAND],
        ["-shared", "-o", "_cuda.so", "norm.cu.o"],
    ],
)
def test_only_what_registers_would_compile_is_recorded(other: list[str]) -> None:
    assert recorded(["ccache", "/opt/bin/nvcc", *COMMAND]) == (Path(SOURCE), "90a")
    assert recorded(["/opt/bin/nvcc", *other]) is None
    assert recorded(["clang++", *COMMAND]) is None


def test_a_build_keeps_the_logs_that_registers_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(
        f"#!/bin/sh\n[ \"$1\" = --version ] && exec echo release 12.8\ncat >&2 <<'END'\n{LOG}"
        f'norm.cu(3): warning: unused\n    int x;\nEND\n[ "$1" != fail ]\n'
    )
    nvcc.chmod(0o755)
    kept = tmp_path / "kept"
    monkeypatch.setattr(registers, "KEPT", kept)
    assert keep_log([str(nvcc), "fail", *COMMAND]) == 1
    assert not kept.exists()
    assert keep_log([str(nvcc), *COMMAND]) == 0
    assert capfd.readouterr().err == 2 * "norm.cu(3): warning: unused\n    int x;\n"
    monkeypatch.setenv("PATH", "")  # nothing can be compiled
    log = registers.log_of(Path(SOURCE), "90a", kept, "release 12.8\n")
    assert log.startswith(LOG)


def test_every_kernel_of_the_page_exists() -> None:
    sources = "".join(
        path.read_text(encoding="utf-8") for path in registers.SOURCES.rglob("kernels/cuda/**/*.cu")
    )
    listed = {*registers.LAUNCHES, *registers.SPILLS["90a"]}
    missing = {name for name in listed if f"{name.partition('<')[0]}(" not in sources}
    assert missing == set()
