"""A small build of kernels, cache and decoder, and copies of it with one mistake each.

Sources are compiled in place. A mistake is one changed file in a folder that precedes the sources
on the include path, so what does not depend on that file is not compiled again. An object is named
by a hash of its command and of all its input files: no object is ever stale, and a second run
compiles only what has changed. CMAKE_CXX_COMPILER_LAUNCHER is obeyed, so that ccache serves a first
run. Knows no mistake by name; see catalogue.py.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import threading
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tests.mutants.catalogue import Mutant

ROOT = Path(__file__).parents[2]
# With -O1 a file compiles in seconds, and the tests run nearly as fast as with -O3.
FLAGS = ["-std=c++20", "-O1", "-ffp-contract=off", "-w", "-pthread"]
INCLUDES = ["csrc", "tests/cpp", "tests/mutants/cpp/generated"]
AVX2 = "csrc/kernels/cpu/avx2.cc"
TABLES = [
    "csrc/kernels/cpu/generic.cc",
    AVX2,
    "tests/mutants/cpp/absent_tables.cc",
    "tests/cpp/kernels/amx_emulated.cc",
    "tests/cpp/kernels/avx512_emulated.cc",
    "tests/cpp/kernels/emulated_lanes.cc",
]
# Of kernels of a GPU and their tests: plain C++ that the emulator runs.
EMULATED_FLAGS = ["-DSINKSTREAM_CUDA_EMULATED", "-fno-strict-aliasing", "-x", "c++"]
OWN_FLAGS = {  # as in CMakeLists.txt
    AVX2: ["-mavx2", "-mfma", "-mf16c"],
    "tests/cpp/kernels/emulated_lanes.cc": ["-O3"],
    "tests/cpp/kernels/linear_prefetch_test.cc": ["-Og"],
}
HEAP = "tests/cpp/heap/heap.cc"  # for tests that count allocations
PREFIX = "tests/mutants/cpp/prefix.h"

GPU = ["kernels/cuda/gpu", "kernels/cuda/memory", "kernels/cuda/linear/*"]  # the core's part
CACHE = ["common/*", "device/*", *GPU, "cache/*"]
KERNELS = ["common/*", "cache/angles", "kernels/*", "kernels/reference/*"]
# The sources of the programs of each folder of tests/cpp, in addition to one <name>_test.cc.
PARTS = {
    "common": ["common/*"],
    "cache": CACHE,
    "kernels": KERNELS,
    "model": [*CACHE, *KERNELS, "model/*", "model/cpu/*", "model/cuda/*"],
    "engine": [
        *CACHE,
        "kernels/[!c]*",  # without choose.cc, which needs every table
        "kernels/reference/*",
        "sampling/*",
        "engine/*",
    ],
    # Without choose.cc, too.
    "cuda": [
        "common/*",
        "kernels/[!c]*",
        "kernels/reference/*",
        "kernels/cuda/linear/weights",
        "model/cpu/expert_rows",
    ],
}
TIMEOUT_S = 120


def tables_of(test: str) -> Collection[str]:
    """Return the sources of the kernel table that a test is about; of all if it names none.

    The others need not be compiled again with a mistake, which would take a minute each.
    """
    table = test.rsplit("/", 1)[-1]
    if f"csrc/kernels/cpu/{table}.cc" in TABLES:
        return [f"csrc/kernels/cpu/{table}.cc"]
    if f"tests/cpp/kernels/{table}.cc" in TABLES:  # its lanes are in a file of their own
        return [f"tests/cpp/kernels/{table}.cc", "tests/cpp/kernels/emulated_lanes.cc"]
    return TABLES


class BuildError(Exception):
    """A source does not compile; the text is the compiler's."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of running one test."""

    passed: bool
    failed: bool  # the test finished and reported failure; a crash has neither passed nor failed
    output: str


@dataclass
class Workshop:
    """Builds and runs test programs.

    Thread-safe; what two threads need is compiled once.

    Args:
        folder: Keeps all objects and programs; may already exist.
    """

    folder: Path
    compiler: str = field(default_factory=lambda: os.environ.get("CXX", "c++"))
    launcher: list[str] = field(default_factory=lambda: _launcher())
    _plain: dict[str, Outcome] = field(default_factory=dict)  # of the sources as they are
    _locks: dict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()

    def run(self, killer: str, mutant: Mutant | None = None) -> Outcome:
        """Run one test on the unchanged sources (once) or with a mistake planted.

        Args:
            killer: A program and a GoogleTest name: "cache/window:Window.SeesWhatItShould".
            mutant: The mistake.

        Raises:
            BuildError: The program does not compile.
        """
        if mutant is not None:
            return self._run(killer, mutant)
        with self._locks[killer]:
            if killer not in self._plain:
                self._plain[killer] = self._run(killer, None)
            return self._plain[killer]

    def missing(self) -> str | None:
        """Return what this machine lacks to build anything, or None."""
        try:
            command = [self.compiler, *FLAGS, "-E", "-include", "gtest/gtest.h", "-x", "c++", "-"]
            done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
        except OSError as error:
            return f"there is no C++ compiler: {error}"
        return (
            "GoogleTest is not installed: apt-get install libgtest-dev" if done.returncode else None
        )

    def _run(self, killer: str, mutant: Mutant | None) -> Outcome:
        program, test = killer.split(":", 1)
        path = str(self._program(program, mutant, tables_of(test)))
        command = [path, f"--gtest_filter={test}", "--gtest_fail_fast"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return Outcome(False, False, f"{killer} ran longer than {TIMEOUT_S} s")
        ran = f"[ RUN      ] {test}" in done.stdout
        return Outcome(
            passed=ran and done.returncode == 0 and f"[       OK ] {test}" in done.stdout,
            failed=ran and done.returncode == 1 and f"[  FAILED  ] {test}" in done.stdout,
            output=done.stdout + done.stderr,
        )

    def _program(self, name: str, mutant: Mutant | None, tables: Collection[str]) -> Path:
        """Build a program, with the mistake in no other kernel tables than these."""
        objects = [
            self.compile(source, None if source in TABLES and source not in tables else mutant)
            for source in self._sources(name)
        ]
        path = self.folder / "programs" / _digest(name, *(str(o) for o in objects))
        with self._locks[str(path)]:
            if not path.exists():
                libraries = ["-lgtest", "-lgtest_main", "-pthread"]
                self._make(path, [self.compiler, *map(str, objects), *libraries])
        return path

    def _sources(self, program: str) -> list[str]:
        folder = program.split("/", 1)[0]
        products = {
            str(path.relative_to(ROOT))
            for part in PARTS[folder]
            for path in (ROOT / "csrc").glob(part + ".cc")
        }
        shared = {
            "kernels": TABLES,
            "model": [*TABLES, HEAP],
            "engine": ["tests/cpp/engine/sampling_kernels.cc"],
        }.get(folder, [])
        if folder == "cuda":  # the emulator, and the op's kernels
            emulator = (ROOT / "tests/cpp/cuda_emulator").glob("*.cc")
            op = (ROOT / "csrc/kernels/cuda").glob(f"*/{program.rpartition('/')[2]}.cu")
            shared = sorted(str(path.relative_to(ROOT)) for path in (*emulator, *op))
        return [f"tests/cpp/{program}_test.cc", *shared, *sorted(products)]

    def compile(self, source: str, mutant: Mutant | None = None) -> Path:
        """Return the object of a source, with the mistake only if it depends on that file."""
        if mutant is not None:
            self.compile(source)
            if mutant.file not in (self._dependencies(self._command(source, None)) or ()):
                mutant = None
        command = self._command(source, mutant)
        with self._locks[_digest(*command)]:
            known = self._dependencies(command)
            if known is not None:
                path = self._object_path(command, known, mutant)
                if path.exists():
                    return path
            return self._compile_anew(command, mutant)

    def _command(self, source: str, mutant: Mutant | None) -> list[str]:
        includes = [ROOT / folder for folder in INCLUDES]
        path = ROOT / source
        if mutant is not None:
            planted = self._plant(mutant)
            includes = [planted / folder for folder in INCLUDES] + includes
            path = planted / source if mutant.file == source else path
        is_emulated = source.endswith(".cu") or source.startswith("tests/cpp/cuda")
        own = EMULATED_FLAGS if is_emulated else OWN_FLAGS.get(source, ())
        flags = [*FLAGS, *own]
        command = [*self.launcher, self.compiler, *flags, *(f"-I{folder}" for folder in includes)]
        if not own:  # the header is precompiled without them
            command += ["-include", str(self._prefix())]
        return [*command, "-c", str(path)]

    def _plant(self, mutant: Mutant) -> Path:
        """Write the one changed file; return the folder that replaces the root."""
        text = mutant.apply((ROOT / mutant.file).read_text(encoding="utf-8"))
        folder = self.folder / "planted" / _digest(mutant.file, text)
        path = folder / mutant.file
        with self._locks[str(path)]:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        return folder

    def _prefix(self) -> Path:
        """Precompile the header that all sources include first, next to its copy.

        Not with a launcher: ccache cannot keep objects that were built with such a header.
        """
        if self.launcher:
            return ROOT / PREFIX
        text = (ROOT / PREFIX).read_text(encoding="utf-8")
        path = self.folder / "prefix" / _digest(text, self._version) / "prefix.h"
        with self._locks[str(path)]:
            if not path.with_suffix(".h.gch").exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
                command = [self.compiler, *FLAGS, "-x", "c++-header", str(path)]
                self._make(path.with_suffix(".h.gch"), command)
        return path

    @cached_property
    def _version(self) -> str:
        return subprocess.run(
            [self.compiler, "--version"], capture_output=True, text=True, check=True
        ).stdout

    def _dependencies(self, command: list[str]) -> list[str] | None:
        """List what the source included when it was last compiled; None if it never was.

        Files of the project have their own names, even those with a mistake.
        """
        record = self.folder / "dependencies" / _digest(*command)
        if not record.exists():
            return None
        return record.read_text(encoding="utf-8").splitlines()

    def _object_path(self, command: list[str], files: list[str], mutant: Mutant | None) -> Path:
        """Name the object by a hash of all its inputs."""
        contents = []
        for file in files:
            path = ROOT / file
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            contents.append(text if mutant is None or file != mutant.file else mutant.apply(text))
        return self.folder / "objects" / (_digest(self._version, *command, *contents) + ".o")

    def _compile_anew(self, command: list[str], mutant: Mutant | None) -> Path:
        name = _digest(*command)
        listed = self.folder / "dependencies" / f"{name}.d"
        listed.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.folder / "objects" / f"{name}.new.o"
        self._make(fresh, [*command, "-MMD", "-MF", str(listed)])
        files = sorted({_own_name(path, self.folder) for path in _listed(listed)} - {""})
        (self.folder / "dependencies" / name).write_text("\n".join(files), encoding="utf-8")
        return fresh.rename(self._object_path(command, files, mutant))

    def _make(self, path: Path, command: list[str]) -> None:
        """Run a command that writes `path`, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        done = subprocess.run(
            [*command, "-o", str(partial)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise BuildError(f"{' '.join(command)}\n{done.stderr}")
        partial.rename(path)


def _launcher() -> list[str]:
    return [word for word in os.environ.get("CMAKE_CXX_COMPILER_LAUNCHER", "").split(";") if word]


def _listed(rule: Path) -> list[Path]:
    """Read the prerequisites of a Makefile's rule, in which spaces are escaped.

    Some may be relative: ccache shortens paths.
    """
    text = rule.read_text(encoding="utf-8").replace("\\\n", " ")
    words = re.split(r"(?<!\\)\s+", text.strip())[1:]
    return [Path(os.path.abspath(word.replace("\\ ", " "))) for word in words]  # noqa: PTH100


def _own_name(path: Path, folder: Path) -> str:
    """Return a file's path in the project, also for a changed copy; "" for other files."""
    if path.is_relative_to(folder / "planted"):
        return str(Path(*path.relative_to(folder / "planted").parts[1:]))
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else ""


def _digest(*texts: str) -> str:
    joined = b"".join(hashlib.sha256(text.encode()).digest() for text in texts)
    return hashlib.sha256(joined).hexdigest()[:24]
