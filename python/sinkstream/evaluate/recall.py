"""`stream_eval` and `needle`: how far back a model can recall parts of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sinkstream.errors import InvalidArgument
from sinkstream.evaluate.long_texts import encoder
from sinkstream.evaluate.plan import CHUNK, feed
from sinkstream.evaluate.recall_result import Answer, RecallResult, place_of
from sinkstream.evaluate.recall_tasks import (
    FILLER,
    Line,
    Needle,
    Question,
    draw_needle,
    stream_eval_lines,
)
from sinkstream.evaluate.result import model_settings
from sinkstream.model import Model, host_of
from sinkstream.request.checks import as_bool, as_int
from sinkstream.request.signature import suggests_keywords

_MAX = 1 << 31
# A model may write an answer in a few more tokens than the tokenizer would.
_SPARE_TOKENS = 2

Encode = Callable[..., list[int]]


@suggests_keywords
def stream_eval(
    model: Model,
    *,
    back: int | Sequence[int] = 20,
    distance: int | Sequence[int] | None = None,
    every: int = 10,
    queries: int = 50,
    keep_answers: bool = True,
    sinks: int | None = None,
    window: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int, int], None] | None = None,
) -> RecallResult:
    """Ask a model about earlier lines of an endless text (the paper's StreamEval).

    Each distance has its own stream and cache, which evicts as the text grows. The model answers
    greedily on a copy of the cache, so that its answer has no effect. Then the stream reads the
    question and the true answer, as an example for later questions.

    Args:
        model: The model to ask; it must have a tokenizer.
        back: How many lines back a question asks. Each value has its own stream.
        distance: The distance in tokens, instead of `back`. It is rounded to lines;
            `Answer.distance` has the actual number of tokens.
        every: Lines between two questions.
        queries: Questions per stream.
        keep_answers: Whether questions and true answers stay in the stream. Otherwise the stream
            has only the lines.
        sinks: S. If None, the model's.
        window: W. If None, the model's.
        seed: Seed of the numbers to remember.
        progress: Called with (answers so far, total answers, right answers) after each answer.

    Returns:
        All answers, with accuracy by distance, and recall inside and outside the window.

    Raises:
        InvalidArgument: An argument is out of range, or the model has no tokenizer.
        TypeError: An argument has the wrong type.
        CapacityError: The system cannot provide the memory for a cache.
        EngineDead: The model is closed, or its engine has failed.

    Example:
        >>> result = stream_eval(model, back=[20, 40, 60, 80])
        >>> for point in result.by_distance:
        ...     print(f"{point.distance:.0f} tokens back: {point.accuracy:.0%}")
    """
    where = "stream_eval"
    every = as_int(where, "every", every, 1, _MAX)
    queries = as_int(where, "queries", queries, 1, _MAX)
    seed = as_int(where, "seed", seed, 0, _MAX)
    keep_answers = as_bool(where, "keep_answers", keep_answers)
    sinks, window = _window(where, model, sinks, window)
    encode = encoder(where, model).encode
    if distance is not None:
        tokens = _tokens_per_line(encode, every, keep_answers)
        distances = _as_ints(where, "distance", distance, 1)
        backs = sorted({max(1, round(wanted / tokens)) for wanted in distances})
    else:
        backs = _as_ints(where, "back", back, 1)
    answers: list[Answer] = []
    evicted = 0
    for lines in backs:
        stream = AskedStream(model, sinks, window)
        spans: dict[int, tuple[int, int]] = {}
        asked = 0
        for part in stream_eval_lines(every=every, back=lines, seed=seed):
            if isinstance(part, Line):
                spans[part.number] = stream.write(encode(part.text, at_start=part.number == 0))
                continue
            found = stream.ask(part, encode, spans.pop(part.about), asked=lines)
            if keep_answers:
                stream.write(encode(part.text + part.answer + part.end, at_start=False))
            answers.append(found)
            asked += 1
            _report(progress, answers, len(backs) * queries)
            if asked == queries:
                break
        evicted += stream.evicted
    return RecallResult(
        task=where,
        settings=_settings(model, sinks, window, seed, evicted)
        | {"every": every, "queries": queries, "keep_answers": keep_answers},
        answers=tuple(answers),
    )


@suggests_keywords
def needle(
    model: Model,
    *,
    distances: Sequence[int] | None = None,
    lead: int = 64,
    repeats: int = 5,
    sinks: int | None = None,
    window: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int, int], None] | None = None,
) -> RecallResult:
    """Hide one fact in filler text, and ask for it at growing distances.

    Each repetition is one stream with its own fact. At every distance, the question is asked on a
    copy of the cache, so that it does not affect the stream.

    Args:
        model: The model to ask; it must have a tokenizer.
        distances: Tokens between the end of the fact and the question. If None, eight distances
            from one eighth of the window to twice the window.
        lead: Filler tokens before the fact, so that it is not among the sinks.
        repeats: Number of facts; each is asked for at every distance.
        sinks: S. If None, the model's.
        window: W. If None, the model's.
        seed: Seed of the facts.
        progress: Called with (answers so far, total answers, right answers) after each answer.

    Returns:
        All answers, as from `stream_eval`.

    Raises:
        InvalidArgument: An argument is out of range, or the model has no tokenizer.
        TypeError: An argument has the wrong type.
        CapacityError: The system cannot provide the memory for a cache.
        EngineDead: The model is closed, or its engine has failed.
    """
    where = "needle"
    lead = as_int(where, "lead", lead, 0, _MAX)
    repeats = as_int(where, "repeats", repeats, 1, _MAX)
    seed = as_int(where, "seed", seed, 0, _MAX)
    sinks, window = _window(where, model, sinks, window)
    if distances is None:
        distances = [max(1, round(window * share / 8)) for share in (1, 2, 4, 6, 8, 10, 12, 16)]
    gaps = sorted(set(_as_ints(where, "distances", distances, 0)))
    encode = encoder(where, model).encode
    answers: list[Answer] = []
    evicted = 0
    for repeat in range(repeats):
        hidden = draw_needle(seed + repeat)
        stream = AskedStream(model, sinks, window)
        span = _hide(stream, hidden, encode, lead)
        filler, written = encode(FILLER, at_start=False), 0
        for gap in gaps:
            stream.write([filler[i % len(filler)] for i in range(written, gap)])
            written = gap
            answers.append(stream.ask(hidden.question, encode, span, asked=gap))
            _report(progress, answers, repeats * len(gaps))
        evicted += stream.evicted
    return RecallResult(
        task=where,
        settings=_settings(model, sinks, window, seed, evicted)
        | {"lead": lead, "repeats": repeats},
        answers=tuple(answers),
    )


def _report(
    progress: Callable[[int, int, int], None] | None, answers: Sequence[Answer], total: int
) -> None:
    if progress is not None:
        progress(len(answers), total, sum(answer.is_right for answer in answers))


def _hide(stream: AskedStream, hidden: Needle, encode: Encode, lead: int) -> tuple[int, int]:
    """Write the introduction, the filler and the fact; return the indices of the fact."""
    stream.write(encode(hidden.intro))
    filler = encode(FILLER, at_start=False)
    stream.write([filler[i % len(filler)] for i in range(lead)])
    return stream.write(encode(hidden.text, at_start=False))


def _window(where: str, model: Model, sinks: int | None, window: int | None) -> tuple[int, int]:
    capacity = model.capacity
    return (
        capacity.sinks if sinks is None else as_int(where, "sinks", sinks, 0, _MAX),
        capacity.window if window is None else as_int(where, "window", window, 1, _MAX),
    )


def _as_ints(where: str, name: str, given: int | Sequence[int], low: int) -> list[int]:
    values = list(given) if isinstance(given, Sequence) else [given]
    if not values:
        raise InvalidArgument(f"{where}: `{name}` must not be empty.", param=name)
    return [as_int(where, name, value, low, _MAX) for value in values]


def _tokens_per_line(encode: Encode, every: int, keep_answers: bool) -> float:
    """Return the mean tokens per line of StreamEval, including its share of the questions."""
    lines = questions = tokens = 0
    for part in stream_eval_lines(every=every, back=every):
        if isinstance(part, Line):
            lines += 1
            tokens += len(encode(part.text, at_start=False))
        elif keep_answers:
            tokens += len(encode(part.text + part.answer + part.end, at_start=False))
        questions += isinstance(part, Question)
        if questions == 10:
            break
    return tokens / lines


def _settings(model: Model, sinks: int, window: int, seed: int, evicted: int) -> dict[str, Any]:
    return {
        **model_settings(model),
        "sinks": sinks,
        "window": window,
        "seed": seed,
        "trained_length": model.spec.trained_length,
        "evicted_tokens": evicted,
    }


class AskedStream:
    """A text that grows in one cache. Questions are asked on copies of it, and do not affect it."""

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

        It is about the tokens at the indices `span`, [begin, end); `asked` is the distance in the
        task's own unit.
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
