"""What `load` accepts, refuses and warns about."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import sinkstream
import sinkstream.evaluate
from sinkstream import _core

Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def llama(tiny_folder: Folder) -> Path:
    return tiny_folder("llama")


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("window", 0, "load: `window` must be in [1, 16777216], but is 0."),
        ("window", -1, "load: `window` must be in [1, 16777216], but is -1."),
        ("window", 2**63, "load: `window` must be in [1, 16777216], but is 9223372036854775808."),
        ("sinks", -1, "load: `sinks` must be in [0, 1048576], but is -1."),
        ("max_sequences", 0, "load: `max_sequences` must be in [1, 65536], but is 0."),
        ("prefill_chunk", 0, "load: `prefill_chunk` must be in [1, 65536], but is 0."),
        ("threads", 0, "load: `threads` must be in [1, 1024], but is 0."),
        ("threads", -2, "load: `threads` must be in [1, 1024], but is -2."),
        ("threads", 1025, "load: `threads` must be in [1, 1024], but is 1025."),
        ("threads", 1024, "load: `threads` must be at most "),
        ("device", "tpu", 'load: `device` must be one of "auto", "cpu", "cuda", but is "tpu".'),
        ("dtype", "float8", 'but is "float8".'),
        ("dtype", "int4", '"auto", "bfloat16", "float32", "int16", "int8", but is "int4".'),
        ("kv_dtype", "int4", '"auto", "bfloat16", "float16", "float32", "int8", but is "int4".'),
    ],
)
def test_a_wrong_option_is_one_sentence(
    llama: Path, option: str, value: Any, sentence: str
) -> None:
    with pytest.raises(sinkstream.InvalidArgument) as error:
        sinkstream.load(llama, **{option: value})
    assert sentence in str(error.value)
    assert error.value.param == option


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("window", 4.0),
        ("window", "4"),
        ("sinks", True),
        ("sinks", None),
        ("threads", 1.5),
        ("device", None),
        ("dtype", torch.float32),
    ],
)
def test_an_option_of_the_wrong_type_is_a_type_error(llama: Path, option: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"load: `{option}` must be"):
        sinkstream.load(llama, **{option: value})


def test_more_than_the_trained_length_warns_and_loads(llama: Path) -> None:
    with sinkstream.load(llama) as model:
        trained = model.spec.trained_length
    with pytest.warns(UserWarning, match=f"trained length of {trained} tokens"):
        model = sinkstream.load(llama, sinks=4, window=trained - 3)
    model.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sinkstream.load(llama, sinks=4, window=trained - 4).close()


def test_sinks_that_fill_the_default_capacity_are_refused(llama: Path) -> None:
    with sinkstream.load(llama) as model:
        trained = model.spec.trained_length
    with pytest.raises(sinkstream.InvalidArgument, match=r"`sinks` must be less than \d+ if no"):
        sinkstream.load(llama, sinks=trained)


def test_the_default_window_is_the_trained_length_less_the_sinks(llama: Path) -> None:
    with sinkstream.load(llama, sinks=3) as model:
        assert model.capacity.tokens == model.spec.trained_length
        assert model.capacity.sinks == 3


def test_an_unknown_kernel_table_lists_the_supported_ones(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINKSTREAM_KERNELS", "sse9")
    with pytest.raises(sinkstream.InvalidArgument) as error:
        sinkstream.load(llama)
    assert "SINKSTREAM_KERNELS must be one of" in str(error.value)
    assert 'generic, reference on this processor, but is "sse9".' in str(error.value)


def test_every_supported_kernel_table_can_be_forced(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sinkstream import _core

    supported = [name for name, here in _core.kernel_tables() if here]
    assert {"generic", "reference"} <= set(supported)
    for name in supported:
        monkeypatch.setenv("SINKSTREAM_KERNELS", name)
        with sinkstream.load(llama) as model:
            assert model.runtime["kernels"] == name
            served = model.runtime["served_by"]
            assert set(served) >= {"linear", "attention", "sample"}
            assert model.forward(torch.tensor([[1, 2, 3]])).isfinite().all()


def test_capacity_is_what_the_geometry_says(llama: Path) -> None:
    with sinkstream.load(llama, sinks=4, window=100, max_sequences=3, kv_dtype="float32") as model:
        spec, capacity = model.spec, model.capacity
        assert capacity.bytes_per_token == 2 * spec.layers * spec.kv_heads * spec.head_dim * 4
        # One page of 64 for the sinks, three for the window: 100 tokens touch at most three.
        assert capacity.bytes_per_sequence == (1 + 3) * 64 * capacity.bytes_per_token
        assert capacity.cache_bytes == 3 * capacity.bytes_per_sequence
        assert capacity.tokens == 104


def test_capacity_counts_the_logits_of_every_sequence(smollm2: Path) -> None:
    with (
        sinkstream.load(smollm2, window=60, max_sequences=1) as one,
        sinkstream.load(smollm2, window=60, max_sequences=11) as many,
    ):
        more = many.capacity.scratch_bytes - one.capacity.scratch_bytes
        assert more >= 10 * 4 * many.spec.vocab_size  # of which activations are a small part


def test_a_cache_type_halves_the_bytes(llama: Path) -> None:
    sizes = {}
    for kv_dtype in ("float32", "float16", "bfloat16", "int8"):
        with sinkstream.load(llama, kv_dtype=kv_dtype, window=60) as model:
            assert model.runtime["kv_dtype"] == kv_dtype
            sizes[kv_dtype] = model.capacity.bytes_per_token
            heads = 2 * model.spec.layers * model.spec.kv_heads
    assert sizes["float32"] == 2 * sizes["float16"] == 2 * sizes["bfloat16"]
    assert sizes["int8"] == sizes["float32"] // 4 + heads * 4  # and a scale for each head


def test_progress_is_reported_to_the_end(llama: Path) -> None:
    seen: list[tuple[int, int]] = []
    sinkstream.load(llama, progress=lambda done, total: seen.append((done, total))).close()
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1] > 0
    assert len({total for _, total in seen}) == 1


def test_the_environment_names_the_default_model(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINKSTREAM_MODEL", str(llama))
    with sinkstream.load() as model:
        assert model.path == str(llama)


def test_a_closed_model_says_so_and_may_be_closed_again(llama: Path) -> None:
    model = sinkstream.load(llama)
    cache = model.new_cache()
    model.close()
    model.close()
    assert "closed" in repr(model)
    for call in (
        lambda: model.stream([1, 2]),
        lambda: model.generate([1, 2], max_tokens=1),
        lambda: model.forward(torch.tensor([[1]]), cache),
        lambda: model.new_cache(),
    ):
        with pytest.raises(sinkstream.EngineDead, match="the model is closed"):
            call()


@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        ([[1]], TypeError, "must be a torch.Tensor"),
        (torch.tensor([[1.0]]), TypeError, "CPU, but is of type torch.float32 on cpu."),
        (torch.tensor([[1]], dtype=torch.int32), TypeError, "but is of type torch.int32 on"),
        (torch.tensor([1]), sinkstream.InvalidArgument, "must have shape [batch, tokens]"),
        (
            torch.zeros(0, 3, dtype=torch.long),
            sinkstream.InvalidArgument,
            "least 1, but has [0, 3]",
        ),
        (
            torch.tensor([[0, -1]]),
            sinkstream.InvalidArgument,
            "forward: item [0, 1] of `ids` must be a token id in [0, 293), but is -1.",
        ),
        (
            torch.tensor([[0], [2**40]]),
            sinkstream.InvalidArgument,
            "item [1, 0] of `ids` must be a token id in [0, 293), but is 1099511627776.",
        ),
    ],
)
def test_forward_refuses_values_that_are_not_ids(
    llama: Path, ids: Any, error: type[Exception], words: str
) -> None:
    with sinkstream.load(llama) as model, pytest.raises(error) as raised:
        model.forward(ids)
    assert words in str(raised.value)


def test_forward_refuses_a_cache_of_another_batch(llama: Path) -> None:
    with sinkstream.load(llama) as model:
        cache = model.new_cache(2)
        with pytest.raises(
            sinkstream.InvalidArgument, match="must have batch size 1, like `ids`, but has 2"
        ):
            model.forward(torch.tensor([[1]]), cache)
        assert cache.length == 0


def test_forward_of_no_tokens_is_empty(llama: Path) -> None:
    with sinkstream.load(llama) as model:
        logits = model.forward(torch.zeros(2, 0, dtype=torch.long))
        assert logits.shape == (2, 0, model.spec.vocab_size)


def test_more_threads_than_cores_are_warned_of_and_work(llama: Path) -> None:
    too_many = _core.usable_threads() + 1
    with pytest.warns(UserWarning, match=rf"load: `threads` should .* but is {too_many}\."):
        model = sinkstream.load(llama, threads=too_many, max_sequences=1)
    with model:
        assert model.runtime["threads"] == too_many


def test_as_many_threads_as_cores_are_no_reason_to_warn(
    llama: Path, recwarn: pytest.WarningsRecorder
) -> None:
    with sinkstream.load(llama, threads=_core.usable_threads(), max_sequences=1):
        assert not [w for w in recwarn if "threads" in str(w.message)]


@pytest.mark.parametrize(
    ("call", "where", "wrong", "meant"),
    [
        (sinkstream.load, "load", "windw", "window"),
        (sinkstream.load, "load", "max_sequence", "max_sequences"),
        (sinkstream.Model.session, "session", "systems", "system"),
        (sinkstream.evaluate.perplexity, "perplexity", "methods", "method"),
        (sinkstream.evaluate.needle, "needle", "distance", "distances"),
        (sinkstream.evaluate.stream_eval, "stream_eval", "query", "queries"),
    ],
)
def test_a_keyword_that_does_not_exist_is_answered_with_the_one_that_was_meant(
    call: Any, where: str, wrong: str, meant: str
) -> None:
    with pytest.raises(TypeError) as raised:
        call(**{wrong: 5})
    assert str(raised.value).startswith(f"{where}: there is no option `{wrong}`.")
    assert f"Did you mean `{meant}`?" in str(raised.value)


def test_a_keyword_unlike_all_others_is_only_named() -> None:
    with pytest.raises(TypeError, match=r"^load: there is no option `x{40}`\.$"):
        sinkstream.load(**{"x" * 99: 5})  # type: ignore[arg-type]


def test_an_async_call_suggests_keywords_when_it_is_awaited() -> None:
    assert inspect.iscoroutinefunction(sinkstream.Model.asession)
    sentence = r"^asession: there is no option `systems`\. Did you mean `system`\?$"
    with pytest.raises(TypeError, match=sentence):
        asyncio.run(sinkstream.Model.asession(None, systems="x"))  # type: ignore[arg-type, call-arg]
