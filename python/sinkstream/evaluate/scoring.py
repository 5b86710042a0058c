"""`perplexity`: how well a model predicts a text longer than its cache.

A file lets a long run resume: it has the scores so far, and a description of the run.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sinkstream.errors import InvalidArgument
from sinkstream.evaluate.long_texts import Ids, IdsOrText, as_ids, count_bytes
from sinkstream.evaluate.plan import Nlls, Plan, make_plan, run_plan
from sinkstream.evaluate.result import PerplexityResult, model_settings, perplexity_of
from sinkstream.files import expand_home, replace_whole
from sinkstream.model import Model
from sinkstream.request.checks import as_int
from sinkstream.request.signature import suggests_keywords

# Seconds between two saved states: the most that a crash can lose.
_SAVE_EVERY_S = 30.0

_MAX_TOKENS = 1 << 53

_FORMAT = 1

# Tokens whose logits distinguish two models of the same name.
_PROBE = 16


@dataclass
class RunState:
    """The progress of a run."""

    run: dict[str, Any]
    """Everything that affects the numbers; see `describe_run`."""
    nll: Nlls
    """float32 [all tokens to score]; the first `done` are known."""
    block_seconds: npt.NDArray[np.float64]
    """Time spent on each block so far."""
    done: int = field(default=0)

    def add(self, found: Nlls, block: int, seconds: float) -> None:
        """Append the surprise of the next tokens, all in one block."""
        self.nll[self.done : self.done + len(found)] = found
        self.block_seconds[block] += seconds
        self.done += len(found)


@suggests_keywords
def perplexity(
    model: Model,
    ids_or_text: IdsOrText,
    *,
    method: str = "sinks",
    sinks: int | None = None,
    window: int | None = None,
    max_tokens: int | None = None,
    chunk: int | None = None,
    block: int = 1000,
    sample: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int, float], None] | None = None,
    resume: str | os.PathLike[str] | None = None,
) -> PerplexityResult:
    """Measure how well a model predicts a text, token by token, with one kind of cache.

    All tokens except the first are scored, unless `sample` is set. Each sees exactly the tokens
    that it would see if the text were generated one token at a time, although most methods read the
    text in chunks. The methods are those of StreamingLLM's figures 3 and 10
    (https://arxiv.org/abs/2309.17453).

    Args:
        model: The model to measure; its streams may run at the same time.
        ids_or_text: Text, which is encoded as `stream` encodes it, or token ids, [tokens] or
            [1, tokens].
        method: What each token sees:
            - "sinks": the first S tokens and the last W.
            - "window": only the last W tokens, at their positions in the cache.
            - "dense": everything before it. Memory grows with the text.
            - "recompute": the last W tokens, recomputed for each token, so that nothing older
              affects them. This is the slow method that "sinks" is meant to match.
            - "protocol": the same as "sinks", but one token per forward pass, as the original code
              evaluates (`start_size` = S, `recent_size` = W - 1). The results are the same, and
              take longer to compute.
        sinks: S for "sinks" and "protocol". If None, the model's. The other methods have none.
        window: W, including the current token. If None, the model's for "sinks" and "protocol",
            and the model's S + W for "window" and "recompute", so that all methods see the
            same number of tokens.
        max_tokens: Read only this many tokens of the text. If None, all.
        chunk: Tokens per forward pass; it does not change any result. If None, 512; "protocol"
            always uses 1.
        block: Tokens per reported mean.
        sample: For "recompute": the number of tokens to score, sampled from those whose window
            has started to slide. If None, all tokens are scored, recomputing W tokens for each.
        seed: Seed of the sample.
        progress: Called with (scored tokens, total tokens, perplexity so far) after each forward
            pass.
        resume: A file that keeps the scores of an interrupted run (Ctrl-C, or a crash). The same
            call continues from it, with bit-identical results. The file does not hold the cache. On
            resuming, the cache is refilled from the only tokens that it depends on: the sinks, and
            the last L * (W - 1) tokens in a model with L layers; with "dense", all tokens. For a
            finished run, the result is returned immediately.

    Returns:
        The result; sums of float32 log-probabilities are in float64.

    Raises:
        InvalidArgument: An argument is out of range, the text has fewer than two tokens or (except
            with "dense") fits into the cache, or the file to resume from belongs to another run.
        TypeError: An argument has the wrong type.
        NonFiniteLogits: The model returned NaN or infinity.
        CapacityError: The system cannot provide the memory for a cache.
        EngineDead: The model is closed, or its engine has failed.

    Example:
        >>> result = perplexity(model, text, method="sinks", sinks=4, window=1020)
        >>> print(f"{result.perplexity:.3f}")
        24.781
    """
    if max_tokens is not None:
        max_tokens = as_int("perplexity", "max_tokens", max_tokens, 2, _MAX_TOKENS)
    ids = as_ids("perplexity", model, ids_or_text, max_tokens)
    plan = make_plan(
        model,
        len(ids),
        method=method,
        sinks=sinks,
        window=window,
        chunk=chunk,
        block=block,
        sample=sample,
        seed=seed,
    )
    state = start_run(describe_run(model, ids, plan), plan, len(ids))
    if resume is not None:
        state = load_state(resume, state)
    _score(model, ids, plan, state, progress, resume)
    return _summarize(model, ids, plan, state)


def _score(
    model: Model,
    ids: Ids,
    plan: Plan,
    state: RunState,
    progress: Callable[[int, int, float], None] | None,
    resume: str | os.PathLike[str] | None,
) -> None:
    """Score the remaining tokens. The state is saved however the run ends."""
    saved_at, saved = time.monotonic(), state.done
    row = torch.from_numpy(ids)[None]
    total = float(state.nll.sum(dtype=np.float64))
    try:
        began = time.monotonic()
        for found in run_plan(model, row, plan, state.done):
            now = time.monotonic()
            state.add(found, int(plan.scored[state.done]) // plan.block, now - began)
            total += float(found.sum(dtype=np.float64))
            if progress is not None:
                progress(state.done, len(plan.scored), perplexity_of(total / state.done))
            if resume is not None and now - saved_at > _SAVE_EVERY_S:
                save_state(resume, state)
                saved_at, saved = time.monotonic(), state.done
            began = time.monotonic()
    finally:
        if resume is not None and state.done > saved:
            save_state(resume, state)


def _summarize(model: Model, ids: Ids, plan: Plan, state: RunState) -> PerplexityResult:
    nll, blocks = state.nll.astype(np.float64), plan.scored // plan.block
    counts = np.bincount(blocks, minlength=len(state.block_seconds)).tolist()
    sums = np.bincount(blocks, weights=nll, minlength=len(counts)).tolist()
    mean = float(nll.sum()) / len(nll)
    text_bytes = count_bytes(model, ids[plan.scored])
    return PerplexityResult(
        perplexity=perplexity_of(mean),
        mean_nll=mean,
        block_mean_nll=tuple(s / n if n else None for s, n in zip(sums, counts, strict=True)),
        standard_error=float(nll.std(ddof=1) / math.sqrt(len(nll))) if len(nll) > 1 else None,
        tokens=len(nll),
        method=plan.method,
        settings=_settings(model, plan, state),
        block_tokens=tuple(counts),
        block_seconds=tuple(state.block_seconds.tolist()),
        bits_per_byte=float(nll.sum()) / math.log(2) / text_bytes if text_bytes else None,
        nll=state.nll,
        scored=plan.scored,
    )


def _settings(model: Model, plan: Plan, state: RunState) -> dict[str, Any]:
    settings: dict[str, Any] = {
        key: value for key, value in state.run.items() if key not in ("format", "method")
    }
    settings |= {
        "trained_length": model.spec.trained_length,
        "bytes_per_token": model.capacity.bytes_per_token,
        "threads": model.runtime["threads"],
        "chunk": plan.chunk,
        "evicted_tokens": _evicted(plan),
    }
    if plan.method == "protocol":
        settings |= {"start_size": plan.sinks, "recent_size": plan.window - 1}
    return settings


def _evicted(plan: Plan) -> int:
    """Return the number of evictions from the cache that read the text."""
    if plan.method == "recompute":  # it uses a new cache for each token
        return 0
    read = int(plan.scored[-1])  # all tokens before the last scored one
    return max(0, read - plan.sinks - plan.window)


def describe_run(model: Model, ids: Ids, plan: Plan) -> dict[str, Any]:
    """Return everything that affects the numbers, as plain values.

    Chunk size and thread count are not included: they do not change any bit.
    """
    return {
        "format": _FORMAT,
        **model_settings(model),
        "text": hashlib.sha256(ids.tobytes()).hexdigest()[:16],
        "text_tokens": len(ids),
        "method": plan.method,
        "sinks": plan.sinks,
        "window": plan.window,
        "block": plan.block,
        "sample": plan.sample,
        "seed": plan.seed if plan.sample is not None else None,
        "logits": _probe(model, ids),
    }


def start_run(run: dict[str, Any], plan: Plan, text_tokens: int) -> RunState:
    """Return the state of a run that has scored nothing yet."""
    blocks = -(-text_tokens // plan.block)
    return RunState(run, np.zeros(len(plan.scored), np.float32), np.zeros(blocks, np.float64))


def save_state(path: str | os.PathLike[str], state: RunState) -> None:
    """Write the state. The file is always either the old one or the complete new one."""
    with replace_whole(path) as file:
        np.savez(
            file,
            run=np.array(json.dumps(state.run)),
            nll=state.nll[: state.done],
            block_seconds=state.block_seconds,
        )


def load_state(path: str | os.PathLike[str], fresh: RunState) -> RunState:
    """Read the state of a run and check that it belongs to `fresh`. Without a file, start afresh.

    Raises:
        InvalidArgument: The file is not a state, or belongs to another run; the message names the
            differences.
    """
    path = expand_home(path)
    folder, name = path.absolute().parent, path.name
    if not folder.is_dir():
        raise InvalidArgument(
            f'perplexity: `resume` must be in a folder that exists, but "{folder}" does not exist.',
            param="resume",
        )
    if not path.exists():
        return fresh
    try:
        if not zipfile.is_zipfile(path):  # else numpy would try its other formats
            raise ValueError("it is not an archive of arrays")
        with np.load(path, allow_pickle=False) as file:
            run, nll, seconds = json.loads(str(file["run"])), file["nll"], file["block_seconds"]
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise InvalidArgument(
            f'perplexity: `resume` must be a file saved by an earlier run, but "{name}" is '
            f"not: {str(error).rstrip('.')}.",
            param="resume",
        ) from None
    _check_same_run(name, run, fresh.run)
    wanted = (np.float32, np.float64, fresh.block_seconds.shape)
    if (
        (nll.dtype, seconds.dtype, seconds.shape) != wanted
        or nll.ndim != 1
        or len(nll) > len(fresh.nll)
        or not np.isfinite(nll).all()
    ):
        raise InvalidArgument(
            f'perplexity: `resume` must be an undamaged file, but "{name}" is damaged.',
            param="resume",
        )
    fresh.nll[: len(nll)] = nll
    return RunState(fresh.run, fresh.nll, seconds, len(nll))


def _check_same_run(name: str, saved: Any, here: dict[str, Any]) -> None:
    saved = saved if isinstance(saved, dict) else {}
    both = [
        f"{key} is {json.dumps(saved.get(key))} in the file and {json.dumps(value)} here"
        for key, value in here.items()
        if saved.get(key) != value
    ]
    if both:
        raise InvalidArgument(
            f'perplexity: `resume` must belong to this run, but "{name}" belongs to another: '
            f"{'; '.join(both)}. Use that run's settings, or another file.",
            param="resume",
        )


def _probe(model: Model, ids: Ids) -> str:
    """Return a fingerprint of weights and arithmetic: a hash of the first logits."""
    logits = model.forward(torch.from_numpy(ids[:_PROBE])[None])
    return hashlib.sha256(logits.numpy().tobytes()).hexdigest()[:16]
