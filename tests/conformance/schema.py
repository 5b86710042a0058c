"""schemathesis on our own OpenAPI document: no request that it makes up may end in a 5xx, and a
response has a content type that the document names.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conformance.serving import served

CHECKS = "not_a_server_error,content_type_conformance"


def run(cache: Path, examples: int = 50) -> str:
    """Return "" if nothing was found, otherwise the end of the report; keep the report."""
    with (
        tempfile.TemporaryDirectory() as store,
        served(Path(store), "--max-tokens", "8") as server,
    ):
        command = [str(Path(sys.executable).parent / "st"), "run"]
        command += [f"{server.address}/openapi.json", "--checks", CHECKS]
        command += ["--max-examples", str(examples), "--seed", "1", "--no-color"]
        command += ["--request-timeout", "60"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=store)
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "schema.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    return "" if done.returncode == 0 else (done.stdout + done.stderr)[-3000:]
