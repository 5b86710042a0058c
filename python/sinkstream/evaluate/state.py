"""The file that lets a long run resume: the scores so far, and a description of the run."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sinkstream.errors import InvalidArgument
from sinkstream.evaluate.model_settings import model_settings
from sinkstream.evaluate.plan import Plan
from sinkstream.evaluate.surprise import Nlls
from sinkstream.evaluate.tokens import Ids
from sinkstream.files import expand_home, replace_whole
from sinkstream.model import Model

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
    """Read a state and check that it belongs to this run. Without a file, start afresh.

    Args:
        path: A file that `save_state` wrote.
        fresh: This run, with nothing scored.

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
