"""Steps and requests of one model as Chrome trace events, one line of JSON each.

Pure: plain values in, strings out. Perfetto and chrome://tracing read the format, the Trace Event
Format. Times are microseconds rounded down, so that adjacent and nested slices stay adjacent and
nested.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sinkstream._core import Phase, PhaseChange, Step

# A model has one generation thread. If it runs one step ahead, steps overlap. Slices on one track
# must not overlap, so every second step goes to a second track.
_THREAD, _OVERLAP = 1, 2

# After a pause this long between two steps, the counters drop to 0.
_IDLE_US = 1000


def as_us(seconds: float) -> int:
    """Return microseconds, rounded down, of a time with nanosecond resolution."""
    return round(seconds * 1e9) // 1000


class ModelEvents:
    """The events of one model: a process in the trace, with a thread, counters and requests."""

    def __init__(self, process: int, name: str, begin_us: int) -> None:
        """Begin a timeline.

        Args:
            process: The model's number in the trace.
            name: The model's name in the trace.
            begin_us: Start of the trace; earlier requests are shown from here.
        """
        self._process = process
        self._name = name
        self._begin_us = begin_us
        self._end_us = begin_us  # of the latest step
        self._free_from_us = begin_us  # of the first track; if it is busy, the second is free
        self._has_overlap = False
        self._counters: dict[str, int] = {}  # the values written last
        self._requests: dict[int, Phase] = {}  # open requests and their current phases

    # ---- names -----------------------------------------------------------------------------------

    def names(self) -> Iterator[str]:
        """Yield the names of the process and its thread."""
        named = f',"args":{{"name":{json.dumps(self._name)}}}'
        yield self._event("M", "process_name", self._begin_us, named)
        yield self._thread_name(_THREAD, "generation", self._begin_us)

    # ---- steps -----------------------------------------------------------------------------------

    def steps(self, steps: Iterable[Step]) -> Iterator[str]:
        """Yield a slice for each step, with forward and deliver inside, and its counters."""
        for number, begin_s, forward_end_s, end_s, decoding, prompt_tokens, free_pages in steps:
            begin, forward_end, end = as_us(begin_s), as_us(forward_end_s), as_us(end_s)
            if begin > self._end_us + _IDLE_US:
                yield from self._idle()
            counts = f'"step":{number},"decoding":{decoding},"prompt_tokens":{prompt_tokens}'
            thread = _THREAD if begin >= self._free_from_us else _OVERLAP
            if thread == _THREAD:
                self._free_from_us = end
            elif not self._has_overlap:
                self._has_overlap = True
                yield self._thread_name(_OVERLAP, "generation, overlapping steps", begin)
            yield self._slice(thread, "step", begin, end, f',"args":{{{counts}}}')
            yield self._slice(thread, "forward", begin, forward_end)
            yield self._slice(thread, "deliver", forward_end, end)
            yield from self._counter("decoding sequences", begin, decoding)
            yield from self._counter("prompt tokens read", begin, prompt_tokens)
            yield from self._counter("free pages", end, free_pages)
            self._end_us = end

    def lost(self, what: str, count: int, at_us: int) -> Iterator[str]:
        """Yield a mark with the number of records that were overwritten before they were read."""
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
        """Yield the requests that are open after `changes`, all from before the trace."""
        for request, _, phase, *_ in changes:
            if phase == "finished":
                self._requests.pop(request, None)
            else:
                self._requests[request] = phase
        for request, phase in self._requests.items():
            yield self._request("b", f"request {request}", request, self._begin_us)
            yield self._request("b", phase, request, self._begin_us)

    def phase_changes(self, changes: Iterable[PhaseChange]) -> Iterator[str]:
        """Yield the points where requests begin, change phase, and end."""
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
        """Yield the ends of everything open; later events are shown from here."""
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
        # Request numbers repeat between models.
        identity = f',"cat":"request","id":"{self._process}.{request}"'
        return self._event(kind, name, at_us, identity + more)

    def _event(self, kind: str, name: str, at_us: int, more: str, thread: int = _THREAD) -> str:
        common = f'"ts":{at_us},"pid":{self._process},"tid":{thread}'
        return f'{{"ph":"{kind}","name":"{name}",{common}{more}}}'
