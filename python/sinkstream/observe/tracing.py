"""`trace()`: writes a timeline of steps and requests to a file while they happen."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sinkstream import _build
from sinkstream.errors import EngineDead, ForkError, InvalidArgument, warn_caller
from sinkstream.files import NewFile
from sinkstream.observe import open_models
from sinkstream.observe.open_models import OpenModel, entry_of
from sinkstream.observe.trace_events import ModelEvents, as_us

# The native side keeps this many steps. They are written to the file whenever about a quarter of
# them are new, before any can be overwritten.
_KEPT_STEPS = 4096
_LONGEST_S = 0.05
_SHORTEST_S = 0.002


@contextmanager
def trace(path: str | os.PathLike[str], *, model: OpenModel | None = None) -> Iterator[None]:
    """Write a timeline of the engine's steps while the `with` block runs.

    The file is a Chrome trace: open it at https://ui.perfetto.dev or in chrome://tracing. Each step
    is a slice, and so is each request, from its arrival to its end. The file contains no text and
    no tokens. It grows under a temporary name while the block runs, and is complete when the block
    ends, even with an exception.

    Args:
        path: The file; an existing one is replaced.
        model: The model to trace. If None, all models, including those loaded in the block.

    Raises:
        InvalidArgument: The file cannot be created. Raised when the block begins.
        TypeError: `model` is not a model.
        ForkError: `model` was loaded before this process was forked.
        OSError: The file could not be completed, for example because the disk is full.

    Example:
        >>> with sinkstream.trace("trace.json"):
        ...     model.generate("Once upon a time", max_tokens=40)
    """
    if model is not None and not open_models.is_model(model):
        raise TypeError(
            f"trace: `model` must be a sinkstream.Model, but is of type {type(model).__name__}."
        )
    tracer = _Tracer(_TraceFile(Path(path)), model)
    try:
        yield
    except BaseException:
        failure = tracer.finish()
        if failure is not None:
            warn_caller(f"trace: the file was not written: {failure}")
        raise
    failure = tracer.finish()
    if failure is not None:
        raise failure
    if tracer.lost:
        warn_caller(
            f"trace: {tracer.lost} records were overwritten before this process could read them. "
            "The trace shows where."
        )


class _TraceFile:
    """A JSON object with one list of events; the file gets its name once it is complete."""

    def __init__(self, path: Path) -> None:
        try:
            if path.is_dir():
                raise IsADirectoryError(0, "it is a folder")
            # Unbuffered: a forked child must have nothing to write when it exits.
            self._new = NewFile(path, buffering=0)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InvalidArgument(
                f"trace: `path` must be a writable file, but is {str(path)!r}: {reason}.",
                param="path",
            ) from error
        self._separator = ""
        try:
            self._write('{"displayTimeUnit":"ms","traceEvents":[')
        except BaseException:
            self._new.abandon()
            raise

    def add(self, events: Iterable[str]) -> None:
        """Write events."""
        text = ",\n".join(events)
        if text:
            self._write(f"{self._separator}\n{text}")
            self._separator = ","

    def complete(self, lost: int) -> None:
        """Write the end and rename the file."""
        about = f'"version":"{_build.version()}","clock":"monotonic","lost_records":{lost}'
        self._write(f'\n],"otherData":{{{about}}}}}\n')
        self._new.complete()

    def abandon(self) -> None:
        """Remove what has been written."""
        self._new.abandon()

    def _write(self, text: str) -> None:
        rest = memoryview(text.encode())
        while rest:
            rest = rest[self._new.file.write(rest) :]


class _Watched:
    """One model: how far its records have been read, and their events."""

    def __init__(self, model: OpenModel, *, is_new: bool, begin_us: int) -> None:
        # Records survive closing a model, but not its deletion: the native side is kept alive until
        # they have been read once more.
        self._model = weakref.ref(model)
        entry = entry_of(model)
        self._native = entry.native
        self._next_step = 0 if is_new else model.stats()["steps"]
        self._next_change = 0
        name = f"sinkstream model {entry.number}: {model.spec.family}, {Path(model.path).name}"
        self._events = ModelEvents(entry.number, name, begin_us)
        self._is_new = is_new

    def begin(self) -> list[str]:
        """Return the names, and the requests that are already running."""
        events = list(self._events.names())
        if not self._is_new:
            first, changes = self._native.phase_changes(0)
            self._next_change = first + len(changes)
            events += self._events.resume(changes)
        return events

    def new_events(self) -> tuple[list[str], int, int]:
        """Return the events, the number of steps and of lost records since the last call."""
        events: list[str] = []
        now = as_us(time.monotonic())
        first, changes = self._native.phase_changes(self._next_change)
        lost = lost_changes = first - self._next_change
        if lost_changes:
            events += self._events.lost("phases of requests", lost_changes, now)
            begin = as_us(changes[0][1]) if changes else now
            events += self._events.close(begin, "records were lost")
        self._next_change = first + len(changes)
        events += self._events.phase_changes(changes)
        steps = self._native.steps(self._next_step)
        if steps:
            lost_steps = steps[0][0] - self._next_step
            if lost_steps:
                events += self._events.lost("steps", lost_steps, as_us(steps[0][1]))
                lost += lost_steps
            self._next_step = steps[-1][0] + 1
            events += self._events.steps(steps)
        return events, len(steps), lost

    def finish_step(self) -> None:
        """Wait until the step in progress, if any, has been recorded."""
        with suppress(EngineDead):  # then no step is in progress
            self._native.finish_step()

    def end(self) -> list[str]:
        """Return the ends of everything still open."""
        return list(self._events.close(as_us(time.monotonic()), "end of the trace"))

    @property
    def is_gone(self) -> bool:
        """Return whether the model has been deleted: its next events are the last."""
        return self._model() is None


class _Tracer:
    """Writes the records of models to a file, in its own thread."""

    def __init__(self, file: _TraceFile, model: OpenModel | None) -> None:
        self.lost = 0
        self._file = file
        self._owner = os.getpid()
        self._arrivals: deque[OpenModel] = deque()  # models loaded since the last collection
        self._watcher = None if model is not None else self._arrivals.append
        self._watched: dict[int, _Watched] = {}  # by the model's number
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._begin_us = as_us(time.monotonic())
        self._thread = threading.Thread(target=self._run, name="sinkstream-trace", daemon=True)
        try:
            if self._watcher is not None:
                open_models.watch(self._watcher)
                for one in open_models.open_models():
                    with suppress(ForkError):  # it belongs to the parent process
                        self._add(one, is_new=False)
            elif model is not None:
                self._add(model, is_new=False)
            self._thread.start()
        except BaseException:
            self._unwatch()
            self._file.abandon()
            raise

    def finish(self) -> Exception | None:
        """Write all events up to now and complete the file. Return the error that prevented it."""
        if os.getpid() != self._owner:
            return None  # the thread and the file belong to the parent
        self._unwatch()
        self._stop.set()
        self._thread.join()
        if self._failure is None:
            self._guard(self._complete)
        return self._failure

    def _unwatch(self) -> None:
        if self._watcher is not None:
            open_models.unwatch(self._watcher)

    def _add(self, model: OpenModel, *, is_new: bool) -> None:
        number = entry_of(model).number
        if number not in self._watched:
            watched = _Watched(model, is_new=is_new, begin_us=self._begin_us)
            self._file.add(watched.begin())
            self._watched[number] = watched

    def _guard(self, work: Callable[[], None]) -> None:
        """Call `work`; if it fails, remove the file."""
        try:
            work()
        except Exception as error:
            self._failure = error
            self._file.abandon()

    def _run(self) -> None:
        self._guard(self._collect_until_stop)

    def _collect_until_stop(self) -> None:
        interval = _SHORTEST_S
        while not self._stop.wait(interval):
            interval = self._interval(self._collect(), interval)

    def _complete(self) -> None:
        self._take_arrivals()
        for watched in self._watched.values():
            watched.finish_step()
        self._collect()
        for watched in self._watched.values():
            self._file.add(watched.end())
        self._file.complete(self.lost)

    def _take_arrivals(self) -> None:
        while self._arrivals:
            self._add(self._arrivals.popleft(), is_new=True)

    def _collect(self) -> int:
        """Write new events. Return the largest number of new steps of any model."""
        self._take_arrivals()
        most = 0
        for number, watched in list(self._watched.items()):
            is_gone = watched.is_gone
            events, steps, lost = watched.new_events()
            self.lost += lost
            most = max(most, steps)
            if is_gone:
                events += watched.end()
                del self._watched[number]
            self._file.add(events)
        return most

    @staticmethod
    def _interval(steps: int, interval: float) -> float:
        """Return the time after which about a quarter of the kept steps will be new."""
        wanted = interval * (_KEPT_STEPS / 4) / max(steps, 1)
        return min(max(wanted, _SHORTEST_S), 2 * interval, _LONGEST_S)
