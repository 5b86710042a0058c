"""A text that grows in one cache, and questions about it that do not affect it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sinkstream.evaluate.forwards import feed
from sinkstream.evaluate.plan import CHUNK
from sinkstream.evaluate.recall_result import Answer, place_of
from sinkstream.evaluate.recall_tasks import Question
from sinkstream.model import Model, host_of

# A model may write an answer in a few more tokens than the tokenizer would.
_SPARE_TOKENS = 2

Encode = Callable[..., list[int]]


class AskedStream:
    """A text that grows in one cache. Questions are asked on copies of it."""

    def __init__(self, model: Model, sinks: int, window: int) -> None:
        self._model = model
        self._sinks, self._window = sinks, window
        self._cache = model.new_cache(batch=1, sinks=sinks, window=window)
        # Written but not yet read: lines are read together at the next question.
        self._pending = host_of(model).text.bos_ids
        self._length = len(self._pending)
        self.evicted = 0
        """Tokens evicted by the end of the last answer."""

    def write(self, ids: list[int]) -> tuple[int, int]:
        """Append tokens; return their indices [begin, end)."""
        begin = self._length
        self._pending += ids
        self._length += len(ids)
        return begin, self._length

    def ask(
        self, question: Question, encode: Encode, span: tuple[int, int], *, asked: int
    ) -> Answer:
        """Let the model answer a question, on a copy of the cache.

        Args:
            question: The question.
            encode: Encodes text to ids.
            span: Indices [begin, end) of the tokens that it is about.
            asked: The distance, in the task's own unit.
        """
        feed(self._model, torch.tensor([self._pending]), self._cache, CHUNK)
        self._pending = []
        head = encode(question.text, at_start=False)
        size = len(encode(question.answer, at_start=False))
        asked_at = self._length + len(head) - 1
        return Answer(
            asked=asked,
            distance=asked_at - span[0],
            place=place_of(
                *span,
                asked_at=asked_at,
                answer_tokens=size,
                sinks=self._sinks,
                window=self._window,
            ),
            expected=question.answer,
            found=self._continue(head, size + _SPARE_TOKENS),
        )

    def _continue(self, head: list[int], tokens: int) -> str:
        """Return the greedy continuation of `head`."""
        cache = self._cache.copy()
        found: list[int] = []
        logits = feed(self._model, torch.tensor([head]), cache, CHUNK)
        while logits is not None:
            found.append(int(logits[0].argmax()))
            if len(found) == tokens:
                break
            logits = feed(self._model, torch.tensor([found[-1:]]), cache, 1)
        self.evicted = cache.evicted
        assert self._model.tokenizer is not None, "checked when the encoder was created"
        return self._model.tokenizer.decode(found)
