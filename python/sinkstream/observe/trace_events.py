"""Steps and requests of one model as Chrome trace events, each one line of JSON.

Pure: plain values in, texts out. The format is the Trace Event Format, which Perfetto and
chrome://tracing read. Times are whole microseconds, rounded down, so that slices that touch or lie
in one another still do so after rounding.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sinkstream._core import Phase, PhaseChange, Step

# A model has one generation thread. Where it is a step ahead, steps overlap, and slices of one
# track must not: every second one lies on a second track.
_THREAD, _AHEAD = 1, 2

# A pause between two steps from which on the counters show that nothing runs.
_IDLE_US = 1000


def as_us(seconds: float) -> int:
    """Return whole microseconds, rounded down, of a time that is whole nanoseconds."""
    return round(seconds * 1e9) // 1000


class ModelEvents:
    """The events of one model: a process in the trace, with a thread, counters and requests."""

    def __init__(self, process: int, name: str, begin_us: int) -> None:
        """Begin a timeline.

        Args:
            process: Its number in the trace.
            name: Shown for it.
            begin_us: What began earlier is shown from here on.
        """
        self._process = process
        self._name = name
        self._begin_us = begin_us
        self._end_us = begin_us  # of the latest step
        self._free_from_us = begin_us  # the first track; the second is free whenever it is not
        self._has_ahead = False
        self._counters: dict[str, int] = {}  # as last written
        self._requests: dict[int, Phase] = {}  # open ones, and the phase that each is in

    # ---- names -----------------------------------------------------------------------------------

    def names(self) -> Iterator[str]:
        """Yield what names the process and its thread."""
        named = f',"args":{{"name":{json.dumps(self._name)}}}'
        yield self._event("M", "process_name", self._begin_us, named)
        yield self._thread_name(_THREAD, "generation", self._begin_us)

    # ---- steps -----------------------------------------------------------------------------------

    def steps(self, steps: Iterable[Step]) -> Iterator[str]:
        """Yield a slice for each step, with forward and deliver in it, and what it counts."""
        for number, begin_s, forward_end_s, end_s, decoding, prompt_tokens, free_pages in steps:
            begin, forward_end, end = as_us(begin_s), as_us(forward_end_s), as_us(end_s)
            if begin > self._end_us + _IDLE_US:
                yield from self._idle()
            counts = f'"step":{number},"decoding":{decoding},"prompt_tokens":{prompt_tokens}'
            thread = _THREAD if begin >= self._free_from_us else _AHEAD
            if thread == _THREAD:
                self._free_from_us = end
            elif not self._has_ahead:
                self._has_ahead = True
                yield self._thread_name(_AHEAD, "generation, a step ahead", begin)
            yield self._slice(thread, "step", begin, end, f',"args":{{{counts}}}')
            yield self._slice(thread, "forward", begin, forward_end)
            yield self._slice(thread, "deliver", forward_end, end)
            yield from self._counter("decoding sequences", begin, decoding)
            yield from self._counter("prompt tokens read", begin, prompt_tokens)
            yield from self._counter("free pages", end, free_pages)
            self._end_us = end

    def lost(self, what: str, count: int, at_us: int) -> Iterator[str]:
        """Yield a mark that says how many records had been overwritten before they were read."""
        yield self._event("i", f"lost {what}", at_us, f',"s":"p","args":{{"count":{count}}}')

    def _idle(self) -> Iterator[str]:
        if self._counters:
            yield from self._counter("decoding sequences", self._end_us, 0)
            yield from self._counter("prompt tokens read", self._end_us, 0)

    def _counter(self, name: str, at_us: int, value: int) -> Iterator[str]:
        if self._counters.get(name) == value:
            return
        self._counters[name] = value
        yield self._event("C", name, at_us, f',"args":{{"value":{value}}}')

    # ---- requests --------------------------------------------------------------------------------

    def resume(self, changes: Iterable[PhaseChange]) -> Iterator[str]:
        """Yield the requests that are open after `changes`, all of them before the beginning."""
        for request, _, phase, *_ in changes:
            if phase == "finished":
                self._requests.pop(request, None)
            else:
                self._requests[request] = phase
        for request, phase in self._requests.items():
            yield self._request("b", f"request {request}", request, self._begin_us)
            yield self._request("b", phase, request, self._begin_us)

    def phase_changes(self, changes: Iterable[PhaseChange]) -> Iterator[str]:
        """Yield where requests begin, enter a phase, and end."""
        for request, at_s, phase, reason, prompt_tokens, generated_tokens in changes:
            at = max(as_us(at_s), self._begin_us)
            former = self._requests.pop(request, None)
            if former is None:
                begin = at if phase == "waiting" else self._begin_us
                yield self._request("b", f"request {request}", request, begin)
            else:
                yield self._request("e", former, request, at)
            if phase == "finished":
                counts = f'"prompt_tokens":{prompt_tokens},"generated_tokens":{generated_tokens}'
                ended = f',"args":{{"finish_reason":"{reason}",{counts}}}'
                yield self._request("e", f"request {request}", request, at, ended)
            else:
                yield self._request("b", phase, request, at)
                self._requests[request] = phase

    def close(self, at_us: int, why: str) -> Iterator[str]:
        """Yield the ends of all that is open; what comes later is shown from here on."""
        yield from self._idle()
        for request, phase in self._requests.items():
            yield self._request("e", phase, request, at_us)
            ended = f',"args":{{"finish_reason":null,"shown_until":{json.dumps(why)}}}'
            yield self._request("e", f"request {request}", request, at_us, ended)
        self._requests.clear()
        self._begin_us = at_us

    # ---- lines -----------------------------------------------------------------------------------

    def _thread_name(self, thread: int, name: str, at_us: int) -> str:
        return self._event("M", "thread_name", at_us, f',"args":{{"name":"{name}"}}', thread)

    def _slice(self, thread: int, name: str, begin_us: int, end_us: int, more: str = "") -> str:
        return self._event("X", name, begin_us, f',"dur":{end_us - begin_us}{more}', thread)

    def _request(self, kind: str, name: str, request: int, at_us: int, more: str = "") -> str:
        # The number alone would be shared with the requests of other models.
        identity = f',"cat":"request","id":"{self._process}.{request}"'
        return self._event(kind, name, at_us, identity + more)

    def _event(self, kind: str, name: str, at_us: int, more: str, thread: int = _THREAD) -> str:
        place = f'"ts":{at_us},"pid":{self._process},"tid":{thread}'
        return f'{{"ph":"{kind}","name":"{name}",{place}{more}}}'
