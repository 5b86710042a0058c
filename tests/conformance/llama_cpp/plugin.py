"""A pytest plugin that lets llama.cpp's tests run with another model than theirs.

It replaces what is true of their model only: its words, and how many tokens a prompt has. Their
assertions stay as they are. A server goes on for the next test that asks for the same options.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import requests

# The words are those of the grammar, not of the model.
_FORCED = ("response_format", "json_schema", "grammar")
# Skipped by llama.cpp as failing there.
_MUST_RUN = ("test_cache_vs_nocache_prompt",)
# Attributes of a server that are not its options.
_STATE = ("process", "ready", "_log")
_current: dict[str, Any] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Replace parts of the module that all their tests import from, before they do."""
    sys.path.insert(0, str(early_config.rootpath))
    sys.modules["wget"] = types.ModuleType("wget")  # it downloads models
    import utils

    matches = utils.match_regex

    def match_regex(regex: str, text: str) -> bool:
        name = _current.get("name", "")
        return matches(regex, text) if any(part in name for part in _FORCED) else len(text) > 0

    utils.match_regex = match_regex
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    _keep_servers(utils)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what they skip, and count prompts with our tokenizer."""
    for item in items:
        if item.name in _MUST_RUN:
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "skip"]
        callspec = getattr(item, "callspec", None)
        if callspec is not None and "n_prompt" in callspec.params:
            callspec.params["n_prompt"] = PromptCount(item, callspec.params)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note which test runs."""
    _current["name"] = item.name


def pytest_sessionfinish() -> None:
    """End the last server."""
    _end_kept()


def _keep_servers(utils: Any) -> None:
    begin = utils.ServerProcess.start

    def start(server: Any, *arguments: Any) -> None:
        own = {name: value for name, value in vars(server).items() if name not in _STATE}
        process = _current.get("process")
        if process is None or process.poll() is not None or own != _current["options"]:
            _end_kept()
            begin(server, *arguments)
            _current.update(process=server.process, options=own)
        else:
            server.process = process
            utils.server_instances.add(server)

    def stop(server: Any) -> None:
        utils.server_instances.discard(server)
        server.process = None

    utils.ServerProcess.start, utils.ServerProcess.stop = start, stop


def _end_kept() -> None:
    process = _current.pop("process", None)
    if process is not None:
        process.terminate()
        process.wait(60)


class PromptCount:
    """Equals the number of tokens that the running server counts for the test's prompt."""

    def __init__(self, item: Any, params: dict[str, Any]) -> None:
        self._item = item
        if "prompt" in params:
            self._path, self._body = "/tokenize", {"prompt": params["prompt"]}
        else:
            messages = [
                {"role": "system", "content": params["system_prompt"]},
                {"role": "user", "content": params["user_prompt"]},
            ]
            self._path, self._body = "/tokenize", {"messages": messages}

    def __eq__(self, other: object) -> bool:
        server = self._item.module.server
        url = f"http://{server.server_host}:{server.server_port}{self._path}"
        return bool(requests.post(url, json=self._body, timeout=60).json()["count"] == other)

    __hash__ = None  # type: ignore[assignment]
