"""The scored tokens of a prompt, kept as numbers: a prompt may have millions."""

from __future__ import annotations

from collections.abc import Iterable

from sinkstream.streams.events import PromptToken
from sinkstream.streams.tail import Alternatives, Tail


class ScoredPrompt:
    """All tokens of a prompt, with log-probabilities of all but the first.

    Example:
        >>> prompt = ScoredPrompt()
        >>> prompt.add([(7, None, ()), (8, -0.5, ((8, -0.5),))])
        >>> prompt.tokens[1].logprob
        -0.5
    """

    def __init__(self) -> None:
        """Expect the first token."""
        self._first: int | None = None
        self._others = Tail(None, 0)

    def add(self, scored: Iterable[tuple[int, float | None, Alternatives]]) -> None:
        """Append tokens; only the very first has no log-probability."""
        scored = list(scored)
        if scored and scored[0][1] is None:
            self._first = scored.pop(0)[0]
        if scored:
            ids, logprobs, alternatives = zip(*scored, strict=True)
            self._others.add("", ids, logprobs, alternatives)

    @property
    def tokens(self) -> list[PromptToken]:
        """Return the tokens."""
        if self._first is None:
            return []
        ids, logprobs = self._others.token_ids, self._others.logprobs
        alternatives = self._others.alternatives or [()] * len(ids)
        others = zip(ids, logprobs, alternatives, strict=True)
        return [PromptToken(self._first, None), *(PromptToken(*other) for other in others)]
