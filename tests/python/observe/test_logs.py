"""The logger "sinkstream": loads, ends of requests, and failures; never any text."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path
from typing import cast

import pytest

import sinkstream
from sinkstream import _core, devices
from sinkstream.errors import EngineDead, InvalidArgument
from sinkstream.observe import logs
from sinkstream.request.options import Sampling
from sinkstream.request.stream_request import make_request

PROMPT = [5, 9, 17]


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_a_load_says_what_it_takes(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sinkstream")
    with sinkstream.load(folder, sinks=4, window=60, threads=1) as model:
        capacity, kernels = model.capacity, model.runtime["kernels"]
    ((level, line),) = lines(caplog)
    assert level == "INFO"
    assert line.startswith(f"load: {folder.name} (llama): {capacity.weight_bytes} bytes of weights")
    assert f"{kernels} kernels, 1 threads" in line


def test_a_load_says_before_it_waits_that_the_driver_compiles(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = devices.Gpu("an old GPU", (8, 6), 40, 1 << 30, 1 << 30, driver_compiles=True)
    monkeypatch.setattr(devices, "find_gpu", lambda: found)
    monkeypatch.setenv("SINKSTREAM_CUDA_LIBRARY", str(folder / "none.so"))
    caplog.set_level(logging.INFO, logger="sinkstream")
    with pytest.raises(InvalidArgument):  # the load itself, which has no GPU here
        sinkstream.load(folder, device="cuda")
    ((level, line),) = lines(caplog)
    assert level == "INFO"
    assert line.startswith(
        "load: this build has no machine code for an old GPU (compute capability 8.6): the driver"
    )


def test_the_reader_of_an_end_logs_it_with_its_counts(
    model: sinkstream.Model, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="sinkstream")
    with model.stream(PROMPT, max_tokens=70, ignore_eos=True) as stream:
        stats = stream.result().stats
    counts = "prompt_tokens=3 generated_tokens=70"
    ended = f"request {stats.request_id}: length; {counts} evicted_tokens={stats.evicted_tokens}"
    assert lines(caplog) == [("DEBUG", ended)]


def test_a_reader_that_leaves_early_logs_that(
    model: sinkstream.Model, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="sinkstream")
    with model.stream(PROMPT, ignore_eos=True) as stream:
        next(stream.events())
    stream.close()
    ((_, line),) = lines(caplog)
    assert line.startswith(f"request {stream.request_id}: cancelled; prompt_tokens=3 ")


def test_a_request_that_has_to_wait_for_memory_logs_who_holds_it(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sinkstream")
    with sinkstream.load(folder, sinks=4, window=60, threads=1, max_sequences=2) as model:
        session, unread = model.session(), model.stream(PROMPT, ignore_eos=True)
        next(unread)
        assert len(lines(caplog)) == 1  # the model's own
        waiting = model.stream(PROMPT, max_tokens=3, ignore_eos=True, timeout_s=60)
        deadline = time.monotonic() + 30
        while len(lines(caplog)) == 1 and time.monotonic() < deadline:
            time.sleep(0.001)
        with session:
            pass  # its end makes room
        assert waiting.result().finish_reason == "length"
        unread.close()
        pages = model.stats()["pages"]
        ((level, line),) = lines(caplog)[1:]
        assert level == "INFO"
        assert re.fullmatch(
            f"request {waiting.request_id}: waiting for cache memory; 0 of {pages} pages "
            "free, waiting=0 running=1 parked=[01]",  # it may have run ahead already
            line,
        )


def test_several_prompts_are_expected_to_wait(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with sinkstream.load(folder, sinks=4, window=60, threads=1, max_sequences=1) as model:
        caplog.set_level(logging.INFO, logger="sinkstream")
        model.generate([PROMPT] * 3, max_tokens=3)
        list(model.generate_many([PROMPT] * 3, max_tokens=3))
        model.generate(PROMPT, max_tokens=3)
        assert lines(caplog) == []


class DeadStream:
    """A native stream after the engine has failed."""

    finish_reason = "error"
    request_id = 7

    def take(self) -> None:
        return None

    def stats(self) -> dict[str, int]:
        names = ("prompt_tokens", "generated_tokens", "evicted_tokens")
        return {"request_id": 7, **dict.fromkeys(names, 0)}

    def rethrow(self) -> None:
        raise EngineDead("stream: the generation thread has stopped.")

    def close(self) -> None:
        pass


def test_a_death_is_logged_once_and_its_error_names_the_request(
    model: sinkstream.Model, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sinkstream")
    request = make_request(
        PROMPT, {"max_tokens": 5}, defaults=Sampling(), vocab_size=model.spec.vocab_size
    )
    for _ in range(2):
        dead = cast(_core.TokenStream, DeadStream())
        with pytest.raises(EngineDead) as caught:
            sinkstream.Stream(dead, request, model, has_text=True).result()
        assert caught.value.request_id == 7
    assert lines(caplog) == [("ERROR", "stream: the generation thread has stopped.")]


def test_it_is_silent_without_a_configured_logger(
    model: sinkstream.Model, capfd: pytest.CaptureFixture[str]
) -> None:
    handlers = logging.getLogger("sinkstream").handlers
    assert [type(handler) for handler in handlers] == [logging.NullHandler]
    logs.engine_died(object.__new__(sinkstream.Stream), EngineDead("not shown"))
    assert capfd.readouterr() == ("", "")
