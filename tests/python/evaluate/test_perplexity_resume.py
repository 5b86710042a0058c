"""A stopped run resumes to the same numbers, and refuses the file of another run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sinkstream
from sinkstream.errors import InvalidArgument
from sinkstream.evaluate import perplexity
from sinkstream.evaluate.plan import make_plan, refill
from tests.python.evaluate.conftest import SINKS, WINDOW, random_ids

# More than layers * (W - 1) = 60 tokens, so that caches are refilled from the middle of the text.
TOKENS = 400


def stop_after(
    monkeypatch: pytest.MonkeyPatch, model: sinkstream.Model, forwards: int
) -> list[int]:
    """Raise Ctrl-C after `forwards` cached forwards; return the growing list of their sizes."""
    sizes: list[int] = []
    forward = type(model).forward

    def interrupted(
        self: sinkstream.Model, ids: torch.Tensor, cache: object = None
    ) -> torch.Tensor:
        if cache is not None:
            if len(sizes) == forwards:
                raise KeyboardInterrupt
            sizes.append(ids.shape[1])
        return forward(self, ids, cache)

    monkeypatch.setattr(type(model), "forward", interrupted)
    return sizes


def run_until_stopped(model: sinkstream.Model, ids: np.ndarray, forwards: int, **how: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, model, forwards)
        with pytest.raises(KeyboardInterrupt):
            perplexity(model, ids, **how)


@pytest.mark.filterwarnings("ignore:perplexity. method .dense. keeps")
@pytest.mark.parametrize("method", ["sinks", "window", "dense", "recompute", "protocol"])
@pytest.mark.parametrize("forwards", [0, 1, 7, 30])
def test_a_run_that_was_stopped_goes_on_to_the_same_numbers(
    method: str, forwards: int, model: sinkstream.Model, tmp_path: Path
) -> None:
    ids = random_ids(TOKENS)
    how: dict[str, Any] = {"method": method, "chunk": 11, "block": 100}
    whole = perplexity(model, ids, **how)
    state = tmp_path / "run.npz"
    run_until_stopped(model, ids, forwards, resume=state, **how)
    assert state.exists() == (forwards > 0)
    resumed = perplexity(model, ids, resume=state, **how)
    assert resumed == whole
    np.testing.assert_array_equal(resumed.nll, whole.nll)


def test_what_was_scored_is_not_scored_again(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, state = random_ids(TOKENS), tmp_path / "run.npz"
    run_until_stopped(model, ids, 30, chunk=11, resume=state)
    with monkeypatch.context() as patch:
        sizes = stop_after(patch, model, 10_000)
        perplexity(model, ids, resume=state)
    done = 30 * 11
    layers = model.spec.layers
    assert sum(sizes) == (TOKENS - 1 - done) + SINKS + layers * (WINDOW - 1)
    whole = perplexity(model, ids)
    stop_after(monkeypatch, model, 0)  # now any forward would raise
    assert perplexity(model, ids, resume=state) == whole


def test_progress_counts_the_tokens_scored_before(model: sinkstream.Model, tmp_path: Path) -> None:
    ids, state = random_ids(TOKENS), tmp_path / "run.npz"
    told: list[tuple[int, int, float]] = []
    run_until_stopped(model, ids, 30, chunk=11, resume=state)
    result = perplexity(
        model, ids, chunk=11, resume=state, progress=lambda *found: told.append(found)
    )
    assert [done for done, _, _ in told] == [341, 352, 363, 374, 385, 396, 399]
    assert {total for _, total, _ in told} == {TOKENS - 1}
    assert told[-1][2] == pytest.approx(result.perplexity)


@pytest.mark.parametrize("sinks", [0, 1, 4])
@pytest.mark.parametrize("window", [1, 2, 9, 64])
@pytest.mark.parametrize("length", [0, 5, 70, 199, 350])
def test_a_refilled_cache_answers_like_one_that_has_read_everything(
    sinks: int, window: int, length: int, model: sinkstream.Model
) -> None:
    ids = torch.from_numpy(random_ids(TOKENS))[None]
    plan = make_plan(
        model, TOKENS, method="sinks", sinks=sinks, window=window, chunk=None, block=1000,
        sample=None, seed=0,
    )  # fmt: skip
    read = model.new_cache(batch=1, sinks=sinks, window=window)
    if length:
        model.forward(ids[:, :length], read)
    refilled = refill(model, ids, plan, length)
    rest = ids[:, length : length + 40]
    assert torch.equal(model.forward(rest, refilled), model.forward(rest, read))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"method": "window"}, 'method is "sinks" in the file and "window" here'),
        ({"window": 20}, "window is 21 in the file and 20 here"),
        ({"sinks": 3}, "sinks is 4 in the file and 3 here"),
        ({"block": 50}, "block is 100 in the file and 50 here"),
        ({"max_tokens": 300}, "text_tokens is 400 in the file and 300 here"),
    ],
)
def test_a_file_of_another_setting_is_refused_and_both_are_named(
    changed: dict[str, Any], named: str, model: sinkstream.Model, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"block": 100, "resume": tmp_path / "run.npz"}
    perplexity(model, random_ids(TOKENS), **how)
    with pytest.raises(InvalidArgument, match=named) as caught:
        perplexity(model, random_ids(TOKENS), **{**how, **changed})
    assert '"run.npz" belongs to another' in str(caught.value)


def test_a_file_of_another_text_is_refused(model: sinkstream.Model, tmp_path: Path) -> None:
    ids = random_ids(TOKENS)
    perplexity(model, ids, resume=tmp_path / "run.npz")
    ids[-1] ^= 1
    with pytest.raises(InvalidArgument, match=r'text is "[0-9a-f]{16}" in the file and'):
        perplexity(model, ids, resume=tmp_path / "run.npz")


def test_a_file_of_another_model_is_refused(
    model: sinkstream.Model,
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    ids = random_ids(TOKENS)
    perplexity(model, ids, resume=tmp_path / "run.npz")
    with (
        sinkstream.load(
            tiny_folder("llama-linear"),
            dtype="float32", kv_dtype="float32", sinks=SINKS, window=WINDOW, threads=1,
        ) as other,
        pytest.raises(InvalidArgument, match='model is "llama" in the file and'),
    ):  # fmt: skip
        perplexity(other, ids, resume=tmp_path / "run.npz")


def test_other_weights_under_the_same_name_are_refused(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = random_ids(TOKENS)
    perplexity(model, ids, resume=tmp_path / "run.npz")
    forward = type(model).forward
    monkeypatch.setattr(
        type(model), "forward", lambda self, ids, cache=None: forward(self, ids, cache) * 1.001
    )
    with pytest.raises(InvalidArgument, match=r'logits is "[0-9a-f]{16}" in the file and'):
        perplexity(model, ids, resume=tmp_path / "run.npz")


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x05\x06" + bytes(18)])
def test_a_file_that_no_run_has_saved_is_refused(
    content: bytes, model: sinkstream.Model, tmp_path: Path
) -> None:
    (tmp_path / "run.npz").write_bytes(content)
    with pytest.raises(InvalidArgument, match=r'saved by an earlier run, but "run\.npz" is not'):
        perplexity(model, random_ids(TOKENS), resume=tmp_path / "run.npz")
    assert (tmp_path / "run.npz").read_bytes() == content


def test_a_state_is_replaced_whole_and_leaves_no_part_file(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, state = random_ids(TOKENS), tmp_path / "run.npz"
    run_until_stopped(model, ids, 5, chunk=11, resume=state)
    before = state.read_bytes()

    def fail(number: int) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="no space left"):
            perplexity(model, ids, chunk=11, resume=state)
    assert state.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run.npz"]


def test_a_folder_that_is_missing_is_named_before_anything_is_scored(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match="`resume` must be in a folder that exists"):
        perplexity(model, random_ids(TOKENS), resume=tmp_path / "missing" / "run.npz")
