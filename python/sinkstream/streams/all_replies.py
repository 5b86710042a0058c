"""Runs a fixed number of requests together, and returns all replies at the end."""

from __future__ import annotations

from collections.abc import Iterable

from sinkstream.errors import CapacityError, EngineDead, NonFiniteLogits, SinkstreamError
from sinkstream.request.options import OPTIONS
from sinkstream.streams.live import Progress
from sinkstream.streams.stream import Result, Stream


def results_of_all(streams: Iterable[Stream], progress: Progress | None) -> list[Result]:
    """Read all streams to the end, and return their results.

    Args:
        streams: May start each stream as it is taken: all are taken before the first is read. If
            one cannot be started, those before it are closed.
        progress: Called at the start and after each reply.

    Raises:
        SinkstreamError: One has failed. The others are read first; the error has all results.
    """
    started: list[Stream] = []
    results: list[Result | SinkstreamError] = []
    try:
        started.extend(streams)  # keeps those before an error
        for stream in started:
            if progress is not None:
                progress(len(results), len(started))
            try:
                results.append(stream.result())
            except (CapacityError, NonFiniteLogits) as error:
                results.append(error)
        if progress is not None:
            progress(len(results), len(started))
    finally:
        for stream in started:
            stream.close()
    return _all_or_error(results)


def is_of_option(error: Exception) -> bool:
    """Return whether an option is at fault, rather than the prompt."""
    return getattr(error, "param", None) in {"sinks", *OPTIONS}


def name_prompt(error: Exception, index: int) -> None:
    """Say in an error at which of several prompts it occurred, unless an option is at fault."""
    if is_of_option(error) or isinstance(error, EngineDead):
        return
    error.args = (f"generate: prompt {index}: {str(error).removeprefix('stream: ')}",)
    if isinstance(error, SinkstreamError):
        error.prompt_index = index


def _all_or_error(results: list[Result | SinkstreamError]) -> list[Result]:
    """Return the results; raise the first error if there is one, with everything else."""
    for index, result in enumerate(results):
        if isinstance(result, SinkstreamError):
            if len(results) > 1:
                name_prompt(result, index)
                result.results = results
            raise result
    return [result for result in results if isinstance(result, Result)]
