"""`sinkstream serve`: its options are the server's settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sinkstream.cli import main
from sinkstream.cli.serve import serve
from sinkstream.server.config import SETTINGS, ServerConfig


def test_defaults_are_those_of_the_settings() -> None:
    config = ServerConfig()
    given = {
        name: parameter.default
        for name, parameter in inspect.signature(serve).parameters.items()
        if hasattr(config, name) and parameter.default is not None
    }
    assert given == {name: getattr(config, name) for name in given}
    assert len(given) >= 10


def test_every_option_sets_its_setting(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[ServerConfig] = []
    monkeypatch.setattr("sinkstream.server.process_settings.keep_heap_small", lambda: None)
    monkeypatch.setattr("sinkstream.server.request_log.log_to_stderr", lambda *_: None)
    monkeypatch.setattr("sinkstream.cli.serve._sharing", lambda config: None)
    monkeypatch.setattr(
        "sinkstream.server.serve.serve", lambda config, *_, **__: served.append(config)
    )
    wanted: dict[str, Any] = {"model_name": "shown"}
    words = ["serve", str(tiny_folder("llama")), "--name", "shown"]
    for name, setting in SETTINGS.items():
        if not setting.is_option:
            continue
        flag = f"--{setting.option or name}".replace("_", "-")
        default = getattr(ServerConfig(), name)
        if isinstance(default, bool):
            wanted[name], given = True, [flag]
        elif isinstance(default, tuple):
            wanted[name], given = ("a", "b"), [flag, "a", flag, "b"]
        elif name == "sinks":  # the model is loaded with the number
            wanted[name], given = "7", [flag, "7"]
        elif name in ("log_level", "log_format"):
            wanted[name] = given_word = {"log_level": "debug", "log_format": "json"}[name]
            given = [flag, given_word]
        elif isinstance(default, str):
            wanted[name], given = f"my-{name}", [flag, f"my-{name}"]
        else:
            wanted[name], given = default + 1, [flag, str(default + 1)]
        words += given
    assert main(words) == 0
    assert served == [replace(ServerConfig(), **wanted)]
    assert len(wanted) >= 25


def test_the_heap_of_a_process_that_only_serves_is_kept_small(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`serve()` is also called in threads of other programs, whose heap is not its own."""
    called: list[str] = []
    monkeypatch.setattr(
        "sinkstream.server.process_settings.keep_heap_small", lambda: called.append("kept")
    )
    monkeypatch.setattr("sinkstream.server.serve.serve", lambda *_, **__: called.append("served"))
    assert main(["serve", str(tiny_folder("llama"))]) == 0
    assert called == ["kept", "served"]


def test_a_number_of_sinks_is_the_models_too(
    tiny_folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    loaded: list[tuple[int, str]] = []

    def serve_once(config: ServerConfig, load: Any, report: Any, **_: Any) -> None:
        with load() as model:
            loaded.append((model.capacity.sinks, config.sinks))
            report("http://127.0.0.1:1", model)

    monkeypatch.setattr("sinkstream.server.request_log.log_to_stderr", lambda *_: None)
    monkeypatch.setattr("sinkstream.server.process_settings.keep_heap_small", lambda: None)
    monkeypatch.setattr("sinkstream.server.serve.serve", serve_once)
    words = ["serve", str(tiny_folder("llama")), "--window", "60", "--threads", "1"]
    assert main(words) == main([*words, "--sinks", "9"]) == 0
    assert loaded == [(4, "system"), (9, "9")]
    said = capsys.readouterr().err
    assert "9 sinks and a window of 60 tokens, 8 replies at a time" in said
    assert "Memory: " in said
    assert main([*words, "--sinks", "few"]) == 2
    assert '`--sinks` must be "system" or an integer' in capsys.readouterr().err


def test_the_number_of_drafts_is_the_models(
    tiny_folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    drafted: list[int] = []

    def serve_once(config: ServerConfig, load: Any, *_: Any, **__: Any) -> None:
        with load() as model:
            for seed in (1, 1):
                model.generate([5, 9, 17], max_tokens=30, ignore_eos=True, seed=seed)
            drafted.append(model.stats()["draft_tokens"])

    monkeypatch.setattr("sinkstream.server.request_log.log_to_stderr", lambda *_: None)
    monkeypatch.setattr("sinkstream.server.process_settings.keep_heap_small", lambda: None)
    monkeypatch.setattr("sinkstream.server.serve.serve", serve_once)
    words = ["serve", str(tiny_folder("llama")), "--window", "60", "--threads", "1"]
    assert main([*words, "--speculation", "0"]) == main([*words, "--speculation", "20"]) == 0
    assert drafted[0] == 0 < drafted[1]
    assert main([*words, "--speculation", "64"]) == 2
    assert "`--speculation` must be in [0, 63], but is 64." in capsys.readouterr().err
