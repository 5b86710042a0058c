"""Downloads packages that tests read without installing them, into pytest's cache."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest


def downloaded(config: pytest.Config, requirement: str, *options: str) -> Path:
    """Return a package's archive, from the cache if it is there; skip the test if it has gone.

    Args:
        config: Knows the cache.
        requirement: Name and version, as in `name==1.0`.
        options: Of `pip download`.
    """
    assert config.cache is not None
    folder = config.cache.mkdir("downloads") / requirement
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *options]
        # Next to it, and moved when complete: another process may want it at the same time.
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            complete = Path(name) / "complete"
            try:
                subprocess.run(
                    [*pip, "--dest", complete, requirement],
                    check=True,
                    capture_output=True,
                    timeout=240,
                )
            except (subprocess.SubprocessError, OSError) as error:
                pytest.skip(f"{requirement} cannot be downloaded: {error}")
            if not folder.exists():
                complete.replace(folder)
    (archive,) = folder.iterdir()
    return archive
