"""A pytest plugin that lets vLLM's tests of its OpenAI server run against ours.

Their helper that starts a server starts ours, and what they import of vLLM is a name only: a test
that calls it fails, and is listed as vLLM's own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
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
from sinkstream.open_checkpoint import open_checkpoint
from tests.conformance.serving import Served, served

_KEY = "none"
_open = ExitStack()
_servers: list[Served] = []


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Make their imports succeed."""
    sys.meta_path.insert(0, _Names())
    helpers = types.ModuleType("tests.utils")
    helpers.RemoteOpenAIServer = RemoteOpenAIServer  # type: ignore[attr-defined]
    sys.modules["tests.utils"] = helpers


def pytest_sessionfinish() -> None:
    """End the server."""
    _open.close()


class RemoteOpenAIServer:
    """Their helper's interface; all files share one server, whose model stands for any."""

    def __init__(self, model: str, arguments: Sequence[str], **settings: Any) -> None:
        if not _servers:
            store = _open.enter_context(tempfile.TemporaryDirectory())
            # Some tests set no limit, and SmolLM2 seldom ends its replies.
            options = ("--max-tokens", "64", "--max-queue", "256", "--advertise-context", "8192")
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
        return openai.AsyncOpenAI(base_url=address, api_key=_KEY, max_retries=0, **settings)


def tokenizer(**_: Any) -> Any:
    """Return the served model's, as transformers reads it."""
    from transformers import AutoTokenizer

    file = open_checkpoint("smollm2").path
    return AutoTokenizer.from_pretrained(str(Path(file).parent), gguf_file=Path(file).name)


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
    ("vllm.tokenizers", "get_tokenizer"): tokenizer,
    ("vllm.config", "ModelConfig"): ModelConfig,
    ("vllm.version", "__version__"): sinkstream.__version__,
    ("vllm.transformers_utils.repo_utils", "hf_api"): _Files,
}


class _Names(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds any module of vLLM; each of its attributes is a class that cannot be used."""

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "vllm":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if (self.__name__, name) in _KNOWN:
            return _KNOWN[self.__name__, name]
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"

        def refuse(own: object, *arguments: object, **named: object) -> None:
            raise AssertionError(f"{path} is vLLM's own")

        # An exception, so that a test may expect it.
        return type(name, (Exception,), {"__init__": refuse})
