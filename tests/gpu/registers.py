"""Registers and spills of every kernel, as ptxas reports them; fails where a kernel spills more.

    python -m tests.gpu.registers [FILE…] [--arch 90a] [--kept build/registers] [--page PAGE]

Without files, all of csrc/kernels/cuda. A log is kept for each file, and used until the file or a
header that it includes changes, so a second run compiles only what has changed; a build with
compile_and_keep_log.py keeps the same logs. A kernel that spills more bytes than SPILLS allows, or
an entry of SPILLS that no kernel needs any more, is an error. --page rewrites the table between the
marks of a page. Needs nvcc, but no GPU.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "csrc"
BEGIN, END = "<!-- kernels: begin -->", "<!-- kernels: end -->"
# As in cmake/SinkstreamCuda.cmake.
OPTIONS = ("-std=c++20", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", "-fmad=false")
KEPT = ROOT / "build/registers"

# The most bytes that a kernel may store to spill registers, by architecture and kernel; 0 for all
# others. A smaller number here is progress.
SPILLS: dict[str, dict[str, int]] = {
    "90a": {
        "group_rows_kernel": 4,
        "linear_grouped_kernel<kInt4Minimum, 1, 101376>": 8,
        "linear_grouped_kernel<kIq4Nl, 1, 101376>": 4,
        "linear_grouped_kernel<kQ2K, 1, 101376>": 64,
        "linear_grouped_kernel<kQ5K, 1, 101376>": 4,
        "linear_grouped_kernel<kQ5K, 8, 232448>": 200,
        "linear_kernel<kQ2K, 1, 101376>": 8,
        "linear_kernel<kQ5K, 1, 101376>": 8,
        "linear_wide_kernel<kQ2K>": 16,
        "walk_pages_kernel<bf16, 256, false>": 24,
        "walk_pages_kernel<bf16, 256, true>": 20,
        "walk_pages_kernel<f16, 256, false>": 24,
        "walk_pages_kernel<f16, 256, true>": 20,
        "walk_pages_kernel<int8, 64, false>": 12,
        "walk_pages_kernel<int8, 256, false>": 72,
        "walk_pages_kernel<int8, 256, true>": 108,
    },
}

# A multiprocessor of compute capability 9.0, per Hopper's tuning guide.
REGISTERS, WARPS, BLOCKS, SHARED, RESERVED = 65_536, 64, 32, 228 * 1024, 1024


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched for one model's sizes."""

    threads: int  # of a block
    shared: int  # its bytes of dynamic shared memory
    in_flight: int = 0  # bytes that it asks for ahead of their use


# Launches for the sizes of Llama-3.1-8B, in decode and prompts.
LAUNCHES = {
    "norm_kernel": Launch(1024, 4 * 4096),
    "linear_kernel<kBFloat16, 1, 101376>": Launch(256, 33_024, 32 << 10),
    "linear_kernel<kBFloat16, 2, 101376>": Launch(256, 66_048, 32 << 10),
    "linear_kernel<kBFloat16, 4, 101376>": Launch(256, 66_560, 64 << 10),
    "linear_kernel<kBFloat16, 8, 232448>": Launch(256, 133_120, 64 << 10),
    "linear_kernel<kInt4, 1, 101376>": Launch(256, 33_024, 18_432),
    "linear_kernel<kInt4, 8, 232448>": Launch(256, 133_120, 18_432),
    "linear_kernel<kQ4K, 1, 101376>": Launch(256, 24_832, 15_360),
    "linear_kernel<kQ6K, 1, 101376>": Launch(256, 24_832, 20_736),
    "linear_wide_kernel<kBFloat16>": Launch(256, 139_264, 3 * 34_816),
    "linear_wide_kernel<kInt4>": Launch(256, 124_928, 3 * 23_040),
    "linear_wide_kernel<kQ4K>": Launch(256, 126_976, 3 * 23_552),
    "attend_pages_kernel<f16, false, 1>": Launch(128, 43_776, 32 << 10),
    "attend_pages_kernel<bf16, false, 1>": Launch(128, 43_776, 32 << 10),
    "attend_pages_kernel<int8, false, 1>": Launch(128, 43_264, 16_896),
    "merge_pages_kernel": Launch(64, 0),
    "walk_pages_kernel<f16, 128, false>": Launch(128, 52_224, 16 << 10),
    "walk_pages_kernel<bf16, 128, false>": Launch(128, 52_224, 16 << 10),
    "walk_pages_kernel<int8, 128, false>": Launch(128, 51_712, 8448),
    "rope_append_kernel<f16, f16>": Launch(128, 4096),
    "sample_kernel": Launch(1024, 0),
    "logits_kernel": Launch(1024, 0),
}


@dataclass(frozen=True)
class Kernel:
    """What ptxas says of a kernel."""

    name: str
    registers: int
    spilled: int  # bytes stored
    shared: int  # bytes of static shared memory


def weight_types() -> list[str]:
    """Return the names of `WeightType`, which ptxas knows by number."""
    text = (SOURCES / "kernels/panel_format.h").read_text(encoding="utf-8")
    found = re.search(r"enum class WeightType[^{]*\{(.*?)\}", text, re.DOTALL)
    assert found is not None
    return re.findall(r"k\w+", found[1])


def readable(names: list[str]) -> list[str]:
    """Return names as in the sources: `linear_kernel<kBFloat16, 1, 101376>`."""
    done = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    )
    types = weight_types()
    return [short_name(line, types) for line in done.stdout.splitlines()]


def short_name(name: str, types: list[str]) -> str:
    """Return a demangled name without namespaces, result type and parameters."""
    name = re.sub(r"\(sinkstream::(?:\w+::)*WeightType\)(\d+)", lambda m: types[int(m[1])], name)
    name = re.sub(r"\(sinkstream::(?:\w+::)*\w+\)(\d+)", r"\1", name)
    name = re.sub(r"(?:sinkstream::)?(?:\w+::)*\(anonymous namespace\)::", "", name)
    name = re.sub(r"(\d)ul\b", r"\1", name.removeprefix("void "))
    name = re.sub(r"\(sinkstream::.*\)$", "", name)
    for long, short in (("__nv_bfloat16", "bf16"), ("__half", "f16"), ("signed char", "int8")):
        name = name.replace(long, short)
    return name


def read_log(text: str) -> list[Kernel]:
    """Return the kernels of ptxas's report."""
    found, name, spilled = [], "", 0
    for line in text.splitlines():
        if entry := re.search(r"Compiling entry function '(\w+)'", line):
            name = entry[1]
        elif (stores := re.search(r"(\d+) bytes spill stores", line)) and name:
            spilled = int(stores[1])
        elif (used := re.search(r"Used (\d+) registers", line)) and name:
            shared = re.search(r"(\d+) bytes smem", line)
            found.append((name, int(used[1]), spilled, int(shared[1]) if shared else 0))
            name, spilled = "", 0
    names = readable([name for name, *_ in found])
    return [Kernel(name, *numbers) for name, (_, *numbers) in zip(names, found, strict=True)]


def included(path: Path, known: set[Path]) -> set[Path]:
    """Return a file and all of ours that it includes."""
    if path in known or not path.is_file():
        return known
    known.add(path)
    for name in re.findall(r'^#include "([^"]+)"', path.read_text("utf-8"), re.MULTILINE):
        included(SOURCES / name, known)
    return known


def version_of(nvcc: str) -> str:
    """Return what a compiler says of itself."""
    return subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout


def kept_log(path: Path, arch: str, kept: Path, version: str) -> Path:
    """Return where the log of exactly these sources is kept."""
    digest = hashlib.sha256(f"{arch} {OPTIONS} {version}".encode())
    for source in sorted(included(path, set())):
        digest.update(source.read_bytes())
    return kept / f"{path.stem}-{arch}-{digest.hexdigest()[:16]}.log"


def keep(log: Path, text: str) -> None:
    """Write a log, and remove those of other sources."""
    log.parent.mkdir(parents=True, exist_ok=True)
    for old in log.parent.glob(f"{log.stem.rpartition('-')[0]}-*"):
        old.unlink()
    log.write_text(text, encoding="utf-8")


def log_of(path: Path, arch: str, kept: Path, version: str) -> str:
    """Compile a file, unless a log of exactly these sources is kept."""
    log = kept_log(path, arch, kept, version)
    if not log.exists():
        command = ["nvcc", *OPTIONS, f"-arch=sm_{arch}", f"-I{SOURCES}", "-cubin", "-Xptxas=-v"]
        done = subprocess.run(
            [*command, "-o", str(log.with_suffix(".cubin")), str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"registers: {path.name} does not compile:\n{done.stderr}")
        log.with_suffix(".cubin").unlink()
        keep(log, done.stderr)
    return log.read_text(encoding="utf-8")


def problems_of(kernels: Iterable[Kernel], allowed: dict[str, int], is_whole: bool) -> list[str]:
    """Return what spills more than is allowed and, of a whole list, what SPILLS no longer needs."""
    known = {kernel.name: kernel for kernel in kernels}
    found = [
        f"{kernel.name} must spill at most {allowed.get(kernel.name, 0)} bytes, but spills "
        f"{kernel.spilled}, with {kernel.registers} registers."
        for kernel in known.values()
        if kernel.spilled > allowed.get(kernel.name, 0)
    ]
    if is_whole:
        found += [
            f"SPILLS allows {name} {most} bytes, but it spills "
            f"{known[name].spilled if name in known else 'no more: it is gone'}."
            for name, most in allowed.items()
            if name not in known or known[name].spilled < most
        ]
    return found


def blocks_per_multiprocessor(kernel: Kernel, launch: Launch) -> int:
    """Return how many blocks fit; a warp's registers are given in groups of 256."""
    warps = -(-launch.threads // 32)
    per_warp = -(-kernel.registers * 32 // 256) * 256
    return min(
        BLOCKS,
        WARPS // warps,
        REGISTERS // per_warp // warps,
        SHARED // (launch.shared + kernel.shared + RESERVED),
    )


def row_of(kernel: Kernel) -> str:
    """Return a kernel's row in the table of the page."""
    launch = LAUNCHES.get(kernel.name)
    if launch is None:
        return f"| `{kernel.name}` | {kernel.registers} | {kernel.spilled or ''} | | | | |"
    blocks = blocks_per_multiprocessor(kernel, launch)
    in_flight = f"{blocks * launch.in_flight / 1024:.0f}" if launch.in_flight else ""
    return (
        f"| `{kernel.name}` | {kernel.registers} | {kernel.spilled or ''} | {launch.threads} | "
        f"{(launch.shared + kernel.shared) / 1024:.1f} | {blocks} | {in_flight} |"
    )


def table(kernels: Iterable[Kernel]) -> str:
    """Return the table of the page: kernels that LAUNCHES lists or that spill."""
    shown = [kernel for kernel in kernels if kernel.name in LAUNCHES or kernel.spilled]
    return "\n".join(
        [
            "| kernel | registers | spilled | threads | shared KiB | blocks | KiB in flight |",
            "|---|---|---|---|---|---|---|",
            *map(row_of, sorted(shown, key=lambda kernel: kernel.name)),
        ]
    )


def rewrite(page: Path, text: str) -> None:
    """Replace what is between the marks of a page."""
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main() -> int:
    """Compile what has changed, and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--arch", default="90a", choices=sorted(SPILLS))
    parser.add_argument("--kept", type=Path, default=KEPT)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--page", type=Path, help="whose table is rewritten")
    args = parser.parse_args()
    if shutil.which("nvcc") is None:
        print("registers: nvcc must be on PATH, but was not found.")
        return 2
    version = version_of("nvcc")
    every = sorted((SOURCES / "kernels/cuda").rglob("*.cu"))
    files = args.files or every
    args.kept.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        logs = list(
            pool.map(lambda path: log_of(path.resolve(), args.arch, args.kept, version), files)
        )
    kernels = [kernel for log in logs for kernel in read_log(log)]
    if args.page:
        rewrite(args.page, table(kernels))
    else:
        print(table(kernels))
    problems = problems_of(kernels, SPILLS[args.arch], is_whole=not args.files)
    print("\n".join(f"registers: {problem}" for problem in problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
