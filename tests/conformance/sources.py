"""Fetches other projects' test files at a pinned revision into a folder outside the tree.

They come from git, or from SINKSTREAM_CONFORMANCE_MIRROR, a folder with a copy of each repository
under the suite's name. Either way every file that is used has the content that is pinned.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

PINS = Path(__file__).parent / "sources.toml"
MIRROR = "SINKSTREAM_CONFORMANCE_MIRROR"


@dataclass(frozen=True, slots=True)
class Source:
    """Files of one repository."""

    name: str
    repository: str
    revision: str
    """A commit or a tag."""
    folder: str
    """Of the repository; paths below are relative to it."""
    sha256: dict[str, str]
    """Of each file that is used."""

    @property
    def kept_as(self) -> str:
        """Return the name of the copy: another one once another file is used."""
        digest = hashlib.sha256(repr(sorted(self.sha256.items())).encode()).hexdigest()
        return f"{self.name}-{self.revision}-{digest[:8]}"


class SourceError(Exception):
    """The files cannot be had, or are not those that are pinned."""


def pinned(name: str) -> Source:
    """Return a suite's source."""
    return Source(name=name, **tomllib.loads(PINS.read_text(encoding="utf-8"))[name])


def fetched(source: Source, cache: Path) -> Path:
    """Return a new copy of a source's folder, with the files that are used and no others.

    Raises:
        SourceError: Git fails, or a file has another content.
    """
    kept = cache / source.kept_as
    if not kept.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            tree = _tree(source, Path(work))
            complete = Path(work) / "complete"
            for name in source.sha256:
                (complete / name).parent.mkdir(parents=True, exist_ok=True)
                try:
                    shutil.copyfile(tree / source.folder / name, complete / name)
                except OSError as error:
                    raise SourceError(f"{source.name}: {name} cannot be read: {error}.") from None
            complete.replace(kept)
    check(source, kept)
    return kept


def check(source: Source, folder: Path) -> None:
    """Compare files with what is pinned.

    Raises:
        SourceError: One differs.
    """
    for name, expected in source.sha256.items():
        found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        if found != expected:
            raise SourceError(
                f"{source.name}: {name} must have the SHA-256 {expected}, but has {found}. "
                f"Remove {folder} and run again."
            )


def _tree(source: Source, work: Path) -> Path:
    """Return a folder with the repository's files."""
    mirror = os.environ.get(MIRROR)
    if mirror:
        return Path(mirror) / source.name
    tree = work / "clone"
    git = ["git", "-c", "advice.detachedHead=false"]
    options = ["--quiet", "--filter=blob:none", "--no-checkout", "--sparse"]
    _run([*git, "clone", *options, source.repository, str(tree)], source)
    in_tree = [*git, "-C", str(tree)]
    _run([*in_tree, "sparse-checkout", "set", source.folder], source)
    _run([*in_tree, "checkout", "--quiet", source.revision], source)
    return tree


def _run(command: list[str], source: Source) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SourceError(
            f"{source.name}: {source.repository} cannot be fetched: {done.stderr.strip()} "
            f"Without a network, set {MIRROR} to a folder with a copy."
        )
