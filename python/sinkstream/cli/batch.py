"""`sinkstream batch`: a file of prompts, answered in order, several at a time."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from sinkstream.cli import options
from sinkstream.cli.batch_input import InputLine, count_lines, read_lines
from sinkstream.cli.batch_output import Output, ResultFile, StandardOutput
from sinkstream.cli.batch_requests import Rules, fields_of, fields_of_result, head_of, request_of
from sinkstream.cli.generate import PIPED_TOKENS
from sinkstream.cli.loading import load_model
from sinkstream.cli.option_checks import check_options
from sinkstream.cli.progress import progress_bar
from sinkstream.cli.terminal import is_terminal
from sinkstream.errors import EngineDead, InvalidArgument, SinkstreamError
from sinkstream.model import Model
from sinkstream.request.options import StreamOptions

FAILED = 2

# For each running line, how many lines may be waiting, running, or finished out of order.
_AHEAD = 16


@options.takes_bundles
def batch(
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="One JSON object per line, with a prompt or messages, and optionally an id and "
            "sampling options; - reads standard input.",
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="Gets one JSON object per line of IN, in the same order, with the text or an "
            "error. If it exists, the run continues after its last line; - is standard output.",
        ),
    ],
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue prompts as plain text, without a template.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="System message before each prompt.")] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", "-n", help=f"Tokens of a reply. Default: {PIPED_TOKENS}."),
    ] = None,
    max_sequences: Annotated[
        int, typer.Option(help="Lines answered in parallel. Each has its own cache.")
    ] = 4,
    revision: Annotated[
        str | None, typer.Option(help='Revision of a model named "org/name".')
    ] = None,
    *,
    replies: options.Replies,
    loading: options.Loading,
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
        is_watched = is_terminal(sys.stderr)
        total = count_lines(source) if is_watched and Path(source).is_file() else None
        show = stack.enter_context(progress_bar("Lines", with_time=True, note="{} failed"))
        asyncio.run(run.answer_all(descriptor, lambda done: show(done, total, run.failed)))
    if run.failed:
        verb = "has" if run.failed == 1 else "have"
        print(
            f'sinkstream: batch: {run.failed:,} of {run.answered:,} lines {verb} an "error" '
            "instead of a result.",
            file=sys.stderr,
        )
    return FAILED if run.failed else 0


def open_source(source: str) -> int:
    """Return a descriptor of the input.

    Raises:
        OSError: It cannot be opened, or is a folder.
    """
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
        self.answered = 0
        """Results of this run."""
        self.failed = 0
        """How many of them are errors."""

    async def answer_all(self, descriptor: int, progress: Callable[[int], None]) -> None:
        """Answer all lines that have no result yet.

        Args:
            descriptor: Of the input.
            progress: Called with the number of results.
        """
        lines = self._skip_finished(read_lines(descriptor))
        waiting: deque[asyncio.Task[dict[str, Any]]] = deque()
        progress(self._output.done)
        try:
            await self._answer_into(waiting, lines, progress)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _answer_into(
        self,
        waiting: deque[asyncio.Task[dict[str, Any]]],
        lines: AsyncIterator[InputLine],
        progress: Callable[[int], None],
    ) -> None:
        reading: asyncio.Task[InputLine | None] | None = _next(lines)
        while waiting or reading is not None:
            is_full = len(waiting) >= self._ahead
            awaited = {
                *([waiting[0]] if waiting else []),
                *([reading] if reading is not None and not is_full else []),
            }
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if reading is not None and reading.done() and not is_full:
                line = reading.result()
                if line is not None:
                    waiting.append(asyncio.create_task(self._answer(line)))
                reading = None if line is None else _next(lines)
            results = []
            while waiting and waiting[0].done():
                results.append(waiting.popleft().result())
            if results:
                self._output.write(results)
                self.answered += len(results)
                self.failed += sum("error" in result for result in results)
                progress(self._output.done + self.answered)

    async def _answer(self, line: InputLine) -> dict[str, Any]:
        head: dict[str, Any] = {"line": line.number}
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

    async def _skip_finished(self, lines: AsyncIterator[InputLine]) -> AsyncIterator[InputLine]:
        """Yield the lines after the one of the last result, which must be among them."""
        left, last = self._output.done, self._output.last
        async for line in lines:
            if left == 0:
                yield line
                continue
            left -= 1
            if left == 0 and last is not None and _head(line) != _head_in(last):
                break
        else:
            if left == 0:
                return
        raise InvalidArgument(
            "batch: OUT must hold results of the same input, but its last line belongs to another "
            "one."
        )


def _next(lines: AsyncIterator[InputLine]) -> asyncio.Task[InputLine | None]:
    async def read() -> InputLine | None:
        return await anext(lines, None)

    return asyncio.create_task(read())


def _head(line: InputLine) -> dict[str, Any]:
    try:
        return head_of(line, fields_of(line))
    except InvalidArgument:
        return {"line": line.number}


def _head_in(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name in ("id", "line")}
