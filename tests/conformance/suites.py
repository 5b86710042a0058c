"""The suites: which files of each run, and with what around them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance import outcomes, sources
from tests.conformance.verdict import Outcome, Verdict, judge, read_list

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclass(frozen=True, slots=True)
class Suite:
    """Test files of another project."""

    name: str
    files: tuple[str, ...]
    """Of the fetched folder; the others there are what they import."""
    plugin: str
    """A module that prepares them."""
    options: tuple[str, ...] = ()
    """Of pytest."""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def listed(self) -> Path:
        """Return the file that lists the tests that are expected to fail."""
        return HERE / self.name / "listed.toml"


LLAMA_CPP = Suite(
    name="llama_cpp",
    files=(
        "unit/test_basic.py",
        "unit/test_chat_completion.py",
        "unit/test_compat_oai_responses.py",
        "unit/test_completion.py",
        "unit/test_ctx_shift.py",
        "unit/test_ignore_eos.py",
        "unit/test_security.py",
        "unit/test_tokenize.py",
    ),
    plugin="tests.conformance.llama_cpp.plugin",
    options=(
        "-m",
        "not slow",
        "-p",
        "no:asyncio",
        # Ours tells the progress by time, so that the number of its events, which is counted, is
        # right by chance.
        "--deselect=unit/test_chat_completion.py::test_return_progress",
    ),
    environment={"LLAMA_SERVER_BIN_PATH": str(HERE / "llama_cpp" / "llama-server")},
)
VLLM = Suite(
    name="vllm",
    files=(
        "openai/chat_completion/test_chat.py",
        "openai/chat_completion/test_chat_logit_bias_validation.py",
        "openai/completion/test_completion.py",
        "openai/completion/test_prompt_validation.py",
        "openai/responses/test_basic.py",
        "openai/responses/test_simple.py",
        "openai/responses/test_stateful.py",
        "serve/instrumentator/test_basic.py",
        "serve/tokenize/test_tokenization.py",
    ),
    plugin="tests.conformance.vllm.plugin",
    # They repeat tests with an adapter, which ours would serve as the model itself.
    options=(
        "-k",
        "not zephyr-lora",
        "-o",
        "asyncio_default_fixture_loop_scope=function",
    ),
)
SGLANG = Suite(
    name="sglang",
    files=(
        "basic/test_openai_server.py",
        "features/test_json_mode.py",
        "validation/test_openai_server_ignore_eos.py",
    ),
    plugin="tests.conformance.sglang.plugin",
    options=("-p", "no:asyncio"),
)
SUITES = {suite.name: suite for suite in (LLAMA_CPP, VLLM, SGLANG)}


def run(suite: Suite, cache: Path, *, selected: str = "") -> Verdict:
    """Run a suite, and compare what it shows with what is listed.

    Args:
        suite: The suite.
        cache: A folder outside the tree for the fetched files.
        selected: Of `pytest -k`; then only the tests that ran are compared.

    Raises:
        SourceError: The files cannot be had.
    """
    folder = sources.fetched(sources.pinned(suite.name), cache)
    ended = _outcomes(suite, folder, cache / f"{suite.name}.json", selected)
    verdict = judge(ended, read_list(suite.listed))
    if selected:
        verdict.faults = [fault for fault in verdict.faults if "no such test" not in fault]
    return verdict


def _outcomes(suite: Suite, folder: Path, report: Path, selected: str) -> dict[str, Outcome]:
    report.unlink(missing_ok=True)
    plugins = ("-p", "tests.conformance.outcomes", "-p", suite.plugin)
    command = [sys.executable, "-m", "pytest", "--quiet", "--tb=short", "--timeout=300"]
    command += [*plugins, "-p", "no:cacheprovider", *suite.options, *suite.files]
    if selected:
        command += ["-k", selected]
    environment = {
        **os.environ,
        **suite.environment,
        "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SINKSTREAM_CONFORMANCE_PYTHON": sys.executable,
        outcomes.FILE_VARIABLE: str(report),
    }
    with report.with_suffix(".log").open("w", encoding="utf-8") as log:
        subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=log)
    if not report.exists():
        raise sources.SourceError(f"{suite.name}: pytest did not finish; {log.name} says why.")
    ended: dict[str, Outcome] = json.loads(report.read_text(encoding="utf-8"))
    return ended
