"""`sinkstream batch`: a file of prompts, answered in order, several at a time."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from sinkstream.cli import common_options
from sinkstream.cli.batch_output import Output, ResultFile, StandardOutput
from sinkstream.cli.batch_requests import (
    InputLine,
    Rules,
    count_lines,
    fields_of,
    fields_of_result,
    head_of,
    read_lines,
    request_of,
)
from sinkstream.cli.common_options import check_options, load_model
from sinkstream.cli.generate import PIPED_TOKENS
from sinkstream.cli.interrupts import run_async
from sinkstream.cli.terminal import is_terminal, progress_bar
from sinkstream.errors import EngineDead, InvalidArgument, SinkstreamError
from sinkstream.model import Model
from sinkstream.request.options import StreamOptions

FAILED = 2

# For each running line, how many lines may be waiting, running, or finished out of order.
_AHEAD = 16


@common_options.takes_bundles
def batch(
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="One JSON object per line, with a prompt or messages, and optionally an id and "
            'sampling options; "-" reads standard input.',
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="Gets one JSON object per line of IN, in the same order, with the text or an "
            'error. If it exists, the run continues after its last line; "-" is standard output.',
        ),
    ],
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue prompts as plain text, without a template.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="System message before each prompt.")] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens", "-n", help=f"Maximum tokens per reply. Default: {PIPED_TOKENS}."
        ),
    ] = None,
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="Retry the lines that have an error.")
    ] = False,
    max_sequences: Annotated[
        int, typer.Option(help="Lines answered in parallel. Each has its own cache.")
    ] = 4,
    revision: Annotated[
        str | None, typer.Option(help='Revision of a model named "org/name".')
    ] = None,
    *,
    replies: common_options.Replies,
    loading: common_options.Loading,
) -> int:
    """Answer every line of a JSONL file. A second run continues where the first one ended."""
    if raw and system is not None:
        raise InvalidArgument(
            "batch: --system must not be given with --raw, which sends plain text."
        )
    limit = PIPED_TOKENS if max_tokens is None else max_tokens
    defaults: StreamOptions = {**replies.as_options(), "max_tokens": limit}
    check_options("batch", defaults)
    with ExitStack() as stack:
        descriptor = open_source(source)
        stack.callback(os.close, descriptor)
        refuse_same_file(descriptor, source, target)
        output: Output = StandardOutput() if target == "-" else ResultFile(target)
        stack.callback(output.close)
        stack.enter_context(resume_hint(output, target))
        loaded = stack.enter_context(
            load_model(loading, max_sequences=max_sequences, revision=revision)
        )
        sends_messages = system is not None or (loaded.has_chat_template and not raw)
        run = Run(loaded, Rules(defaults, sends_messages, system), max_sequences, output)
        run.retries = retry_errors
        is_watched = is_terminal(sys.stderr)
        total = count_lines(source) if is_watched and Path(source).is_file() else None
        show = stack.enter_context(progress_bar("Lines", with_time=True, note="{} failed"))
        run_async(run.answer_all(descriptor, lambda done: show(done, total, run.failed)))
    for sentence in summary(run):
        print(f"sinkstream: batch: {sentence}", file=sys.stderr)
    return FAILED if run.failed or run.failed_before else 0


def summary(run: Run) -> Iterator[str]:
    """Yield what a user should know about a run."""
    if run.finished:
        errors = f", {run.failed_before:,} with an error" if run.failed_before else ""
        remedy = " --retry-errors answers those again." if run.failed_before else ""
        total = run.finished + run.answered
        yield f"{run.finished:,} of {total:,} lines were already answered{errors}.{remedy}"
    if run.failed:
        verb = "has" if run.failed == 1 else "have"
        yield (
            f'{run.failed:,} of {run.answered:,} lines {verb} an "error" instead of a result. '
            f"The first: {run.first_error}"
        )


def open_source(source: str) -> int:
    """Return a descriptor of the input; a folder is refused."""
    if source != "-":
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    elif sys.stdin is None:
        raise InvalidArgument("batch: standard input must hold the lines, but is closed.")
    else:
        descriptor = os.dup(sys.stdin.fileno())
    try:
        os.pread(descriptor, 0, 0)
    except IsADirectoryError as error:
        os.close(descriptor)
        raise IsADirectoryError(error.errno, error.strerror, source) from None
    except OSError:  # a pipe has no positions
        pass
    return descriptor


def refuse_same_file(descriptor: int, source: str, target: str) -> None:
    """Refuse to append results to the input."""
    if "-" in (source, target) or not Path(target).exists():
        return
    if os.path.samestat(Path(target).stat(), os.fstat(descriptor)):
        raise InvalidArgument("batch: OUT must be a different file from IN, but is the same file.")


@contextmanager
def resume_hint(output: Output, target: str) -> Iterator[None]:
    """After Ctrl-C, say how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        if isinstance(output, ResultFile) and output.is_regular:
            print(
                f'sinkstream: stopped. The same command continues in "{target}".', file=sys.stderr
            )
        raise


class Run:
    """Answers lines. At most `max_sequences` requests run, and results keep the lines' order."""

    def __init__(self, model: Model, rules: Rules, max_sequences: int, output: Output) -> None:
        self._model = model
        self._rules = rules
        self._room = asyncio.Semaphore(max_sequences)
        self._ahead = _AHEAD * max_sequences
        self._output = output
        self.retries = False
        """Whether lines that have an error are answered again."""
        self.answered = 0
        """Results of this run."""
        self.failed = 0
        """How many of them are errors."""
        self.first_error = ""
        self.finished = 0
        """Results of earlier runs that stay."""
        self.failed_before = 0
        """How many of them are errors."""

    async def answer_all(self, descriptor: int, progress: Callable[[int], None]) -> None:
        """Answer all lines that have no result yet; `progress` gets the number of results."""
        lines = read_lines(descriptor)
        progress(0)
        if self.retries:
            with self._output.replacing() as replacement:
                await self._answer_into(replacement, self._with_results(lines), progress)
        else:
            async for _, result in self._with_results(lines):
                self._count(result or {})
        await self._answer_into(self._output, self._without_results(lines), progress)

    async def _answer_into(
        self,
        output: Output,
        lines: AsyncIterator[tuple[InputLine, dict[str, Any] | None]],
        progress: Callable[[int], None],
    ) -> None:
        waiting: deque[asyncio.Task[dict[str, Any]]] = deque()
        try:
            await self._answer_in_order(output, waiting, lines, progress)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _answer_in_order(
        self,
        output: Output,
        waiting: deque[asyncio.Task[dict[str, Any]]],
        lines: AsyncIterator[tuple[InputLine, dict[str, Any] | None]],
        progress: Callable[[int], None],
    ) -> None:
        reading: asyncio.Task[tuple[InputLine, dict[str, Any] | None] | None] | None = _next(lines)
        while waiting or reading is not None:
            is_full = len(waiting) >= self._ahead
            awaited = {
                *([waiting[0]] if waiting else []),
                *([reading] if reading is not None and not is_full else []),
            }
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if reading is not None and reading.done() and not is_full:
                read = reading.result()
                if read is not None:
                    waiting.append(asyncio.create_task(self._result_of(*read)))
                reading = None if read is None else _next(lines)
            results = []
            while waiting and waiting[0].done():
                results.append(waiting.popleft().result())
            if results:
                output.write(results)
                progress(self.finished + self.answered)

    async def _result_of(self, line: InputLine, result: dict[str, Any] | None) -> dict[str, Any]:
        """Return the result of an earlier run, or of this one."""
        if result is not None:
            self._count(result)
            return result
        result = await self._answer(line)
        self.answered += 1
        if "error" in result:
            self.failed += 1
            self.first_error = self.first_error or result["error"]
        return result

    def _count(self, result: dict[str, Any]) -> None:
        self.finished += 1
        self.failed_before += "error" in result

    async def _answer(self, line: InputLine) -> dict[str, Any]:
        head: dict[str, Any] = {"line": line.number, "digest": line.digest}
        try:
            async with self._room:
                fields = fields_of(line)
                head = head_of(line, fields)
                prompt, options = request_of(line, fields, self._rules)
                with self._model.stream(prompt, **options) as stream:
                    return {**head, **fields_of_result(await stream.aresult(), options)}
        except EngineDead:
            raise  # no other line would be answered
        except (SinkstreamError, TypeError) as error:
            return {**head, "error": str(error)}

    async def _with_results(
        self, lines: AsyncIterator[InputLine]
    ) -> AsyncIterator[tuple[InputLine, dict[str, Any] | None]]:
        """Yield the lines that have a result, with that result; None if they are to be retried."""
        for result in self._output.finished():
            line = await anext(lines, None)
            if line is None or not _belongs(result, line):
                where = (
                    "has no such line" if line is None else f"has a different line {line.number}"
                )
                raise InvalidArgument(
                    "batch: OUT must hold results of the same input, but has one for line "
                    f"{result['line']}, and IN {where}. To start over, delete OUT."
                )
            yield line, None if self.retries and "error" in result else result

    async def _without_results(
        self, lines: AsyncIterator[InputLine]
    ) -> AsyncIterator[tuple[InputLine, dict[str, Any] | None]]:
        async for line in lines:
            yield line, None


_Item = TypeVar("_Item")


def _next(items: AsyncIterator[_Item]) -> asyncio.Task[_Item | None]:
    async def read() -> _Item | None:
        return await anext(items, None)

    return asyncio.create_task(read())


def _belongs(result: dict[str, Any], line: InputLine) -> bool:
    """Return whether a result belongs to a line; older versions did not write digests."""
    if result["line"] != line.number or result.get("digest", line.digest) != line.digest:
        return False
    try:
        return "id" not in result or fields_of(line).get("id") == result["id"]
    except InvalidArgument:
        return False
