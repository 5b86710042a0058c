"""A pytest plugin that lets SGLang's tests of its OpenAI server run against ours.

All classes share one server, whatever options they start theirs with; what they import of SGLang
is a stand-in.
"""

from __future__ import annotations

import tempfile
import unittest
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import stand_ins
from tests.conformance.serving import served

_MODEL = "smollm2"  # our server's name for it
_open = ExitStack()


@dataclass(frozen=True, slots=True)
class _Process:
    """What their helper returns; nothing ends it but the end of the run."""

    pid: int = 0


def _launched(*_: object, **__: object) -> _Process:
    return _Process()


def _nothing(*_: object, **__: object) -> None:
    """Stand for what registers a test, or ends a process."""


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart() -> None:
    """Start the server, and make their imports succeed."""
    store = _open.enter_context(tempfile.TemporaryDirectory())
    # Some tests set no limit, and SmolLM2 seldom ends its replies.
    server = _open.enter_context(served(Path(store), "--max-tokens", "64", "--max-queue", "256"))
    helpers: dict[str, Any] = {
        "DEFAULT_SMALL_MODEL_NAME_FOR_TEST": _MODEL,
        "DEFAULT_SMALL_CROSS_ENCODER_MODEL_NAME_FOR_TEST": _MODEL,
        "DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH": 600,
        "DEFAULT_URL_FOR_TEST": server.address,
        "CustomTestCase": unittest.TestCase,
        "is_in_amd_ci": bool,
        "popen_launch_server": _launched,
    }
    registers = ("register_amd_ci", "register_cuda_ci")
    stand_ins.install(
        "sglang",
        {
            **{("sglang.test.test_utils", name): value for name, value in helpers.items()},
            **{("sglang.test.ci.ci_register", name): _nothing for name in registers},
            ("sglang.srt.utils", "kill_process_tree"): _nothing,
            ("sglang.srt.utils.hf_transformers_utils", "get_tokenizer"): stand_ins.tokenizer,
        },
    )


def pytest_sessionfinish() -> None:
    """End the server."""
    _open.close()
