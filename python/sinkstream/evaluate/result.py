"""The result of an evaluation: perplexity by block, and the difference between two methods."""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from sinkstream.errors import InvalidArgument
from sinkstream.evaluate.long_texts import Ids
from sinkstream.evaluate.plan import Nlls
from sinkstream.files import expand_home, replace_whole
from sinkstream.model import Model

# 95 % of a normal distribution is within 1.96 standard deviations.
Z95 = 1.959964


class JsonFile(ABC):
    """A result that can be written to a JSON file and read again.

    A file is replaced completely or left untouched.
    """

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""

    @classmethod
    @abstractmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the result that `as_dict` describes."""

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write the result to a file: completely, or not at all."""
        write_json(path, self.as_dict())

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> Self:
        """Read a result that `to_json` wrote.

        Raises:
            InvalidArgument: The file holds something else.
        """
        try:
            return cls.from_dict(json.loads(expand_home(path).read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f'{cls.__name__}: "{Path(path).name}" must be a file that `to_json` wrote, but is '
                f"not: {str(error).rstrip('.')}.",
                param="path",
            ) from None


def write_json(path: str | os.PathLike[str], values: Any) -> None:
    """Replace a file with these values, as JSON."""
    with replace_whole(path) as file:
        file.write((json.dumps(values, indent=2) + "\n").encode())


def perplexity_of(mean_nll: float) -> float:
    """Return exp of a mean in nats; infinity if that is too large for a float."""
    return math.exp(mean_nll) if mean_nll < 700 else math.inf


@dataclass(frozen=True)
class PerplexityResult(JsonFile):
    """How well a model predicted a text under one method.

    Example:
        >>> result = perplexity(model, text, method="sinks", window=1020)
        >>> print(result.perplexity, result.perplexity_from(10_000))
    """

    perplexity: float
    """exp of `mean_nll`."""
    mean_nll: float
    """Mean negative log-likelihood of a scored token, in nats."""
    block_mean_nll: tuple[float | None, ...]
    """The same for tokens [0, block), [block, 2 * block), …; None if no token was scored."""
    standard_error: float | None
    """Standard error of `mean_nll`, treating tokens as independent. None for a single token."""
    tokens: int
    """Scored tokens: all except the first, or the sample."""
    method: str
    settings: dict[str, Any]
    """The settings of the run, with defaults filled in: model, text, types, sinks, window, block,
    sample, …"""
    block_tokens: tuple[int, ...]
    """Scored tokens of each block."""
    block_seconds: tuple[float, ...] = field(compare=False)
    """Time spent on each block."""
    bits_per_byte: float | None
    """Bits of surprise per byte of scored text; None without a tokenizer."""
    nll: Nlls | None = field(default=None, compare=False, repr=False)
    """float32 [tokens]: the negative log-likelihood of each scored token; not written to files."""
    scored: Ids | None = field(default=None, compare=False, repr=False)
    """int64 [tokens]: indices of the scored tokens; not written to files."""

    @property
    def block(self) -> int:
        """Return the number of tokens per block."""
        return int(self.settings["block"])

    @property
    def capacity(self) -> int:
        """Return S + W, the maximum number of visible tokens."""
        return int(self.settings["sinks"]) + int(self.settings["window"])

    @property
    def seconds(self) -> float:
        """Return the total time of scoring."""
        return math.fsum(self.block_seconds)

    @property
    def running_mean_nll(self) -> tuple[float | None, ...]:
        """Return the mean over all tokens up to the end of each block; None if none was scored."""
        found: list[float | None] = []
        total, count = 0.0, 0
        for mean, tokens in zip(self.block_mean_nll, self.block_tokens, strict=True):
            total += (mean or 0.0) * tokens
            count += tokens
            found.append(total / count if count else None)
        return tuple(found)

    def perplexity_from(self, index: int) -> float:
        """Return the perplexity of all tokens from `index` on, such as a text's second half.

        Args:
            index: A multiple of `block` below the number of tokens.

        Raises:
            InvalidArgument: `index` is not such a multiple, or no token at or after it was scored.
        """
        first, inside = divmod(index, self.block)
        tokens = sum(self.block_tokens[first:]) if index >= 0 else 0
        if inside or not tokens:
            raise InvalidArgument(
                f"perplexity_from: `index` must be a multiple of {self.block} with scored tokens "
                f"at or after it, but is {index}.",
                param="index",
            )
        blocks = zip(self.block_mean_nll[first:], self.block_tokens[first:], strict=True)
        return perplexity_of(math.fsum((mean or 0.0) * count for mean, count in blocks) / tokens)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, without the per-token arrays."""
        kept = [entry.name for entry in fields(self) if entry.name not in ("nll", "scored")]
        return {name: _plain(getattr(self, name)) for name in kept}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PerplexityResult:
        """Return the result that `as_dict` describes.

        Raises:
            InvalidArgument: The values do not describe a result.
        """
        wanted = {entry.name for entry in fields(cls)} - {"nll", "scored"}
        if not isinstance(values, Mapping) or set(values) != wanted:
            raise InvalidArgument(
                "PerplexityResult: the object must have the fields "
                f"{', '.join(sorted(wanted))}, but has "
                f"{', '.join(sorted(map(str, values))) or 'none'}."
            )
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        return cls(**plain)


@dataclass(frozen=True)
class Difference:
    """The mean difference in surprise between two methods, at the same tokens of one text."""

    of: str
    against: str
    tokens: int
    """Tokens that both methods scored."""
    mean: float
    """Mean difference in nats; if it is above 0, `of` is worse."""
    standard_error: float
    of_sinks: int
    of_window: int
    against_window: int

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % confidence interval of the mean."""
        half = Z95 * self.standard_error
        return self.mean - half, self.mean + half

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, including the interval."""
        return {**asdict(self), "interval_95": list(self.interval)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Difference:
        """Return the difference that `as_dict` describes."""
        return cls(**{entry.name: values[entry.name] for entry in fields(cls)})


def compare(of: PerplexityResult, against: PerplexityResult) -> Difference:
    """Compare two methods at the tokens that both scored in one text.

    The differences are paired, so the difficulty of a token cancels out. The standard error treats
    them as independent, which is nearly true for sampled positions but not for neighbouring tokens.

    Raises:
        InvalidArgument: The texts differ, the results share fewer than two tokens, or a result came
            from a file.
    """
    if of.nll is None or of.scored is None or against.nll is None or against.scored is None:
        raise InvalidArgument(
            "compare: both results must have per-token values, but one was read from a file. "
            "Run both methods in one program."
        )
    texts = (of.settings["text"], against.settings["text"])
    common, left, right = np.intersect1d(
        of.scored, against.scored, assume_unique=True, return_indices=True
    )
    if texts[0] != texts[1] or len(common) < 2:
        raise InvalidArgument(
            "compare: the results must share at least 2 scored tokens of one text, but share "
            f"{len(common)}. Their texts are {texts[0]} and {texts[1]}."
        )
    difference = of.nll[left].astype(np.float64) - against.nll[right]
    return Difference(
        of=of.method,
        against=against.method,
        tokens=len(common),
        mean=float(difference.mean()),
        standard_error=float(difference.std(ddof=1) / math.sqrt(len(common))),
        of_sinks=int(of.settings["sinks"]),
        of_window=int(of.settings["window"]),
        against_window=int(against.settings["window"]),
    )


def level_of(
    result: PerplexityResult,
    results: Sequence[PerplexityResult],
    differences: Sequence[Difference],
) -> tuple[float, float]:
    """Return mean and standard error of a sampled result in nats, paired if possible."""
    found = [(result.standard_error or 0.0, result.mean_nll)]
    for other in results:
        found += [
            (difference.standard_error, other.mean_nll - difference.mean)
            for difference in differences
            if _is_between(difference, other, result) and other.settings["sample"] is None
        ]
    error, mean = min(found)
    return mean, error


def _is_between(difference: Difference, of: PerplexityResult, against: PerplexityResult) -> bool:
    """Return whether a difference compares these two results."""
    return (
        (difference.of, difference.of_sinks, difference.of_window)
        == (of.method, of.settings["sinks"], of.settings["window"])
        and (difference.against, difference.against_window)
        == (against.method, against.settings["window"])
        and of.settings["text"] == against.settings["text"]
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def model_settings(model: Model) -> dict[str, Any]:
    """Return the model's name, types and kernels, on which the numbers depend."""
    runtime = model.runtime
    return {
        "model": Path(model.path).name,
        "dtype": runtime["dtype"],
        "kv_dtype": runtime["kv_dtype"],
        "quantize": runtime["quantize"],
        "kernels": runtime["kernels"],
    }
