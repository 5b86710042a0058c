"""`sinkstream demo`: a long text through a small cache that wraps repeatedly."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Self

import typer
from rich.cells import cell_len, chop_cells
from rich.console import Console, Group
from rich.filesize import decimal
from rich.live import Live
from rich.text import Text

from sinkstream.cli import common_options
from sinkstream.cli.common_options import check_options, load_model, with_model
from sinkstream.cli.terminal import fold, is_terminal, obeys_escapes, printable
from sinkstream.model import Model
from sinkstream.streams.closing import ClosesOnExit
from sinkstream.streams.stream import Stats, Stream

# A small window shows eviction within seconds. The sampling options keep a small model's text
# readable: at 0.7 it falls into loops, and penalties apply only to tokens in the window.
PROMPT = (
    "The Long Voyage\n\nChapter One\n\nThe ship left the harbour at dawn. No one on board knew how "
    "far the sea would take them, and the old captain began to tell a story that had no end."
)
SINKS = 4
WINDOW = 252
TOKENS = 2048
TEMPERATURE = 0.9
MIN_P = 0.05
REPETITION_PENALTY = 1.1
SEED = 1

# Often enough to look immediate, rarely enough to leave the CPU to the model.
_REFRESH_S = 1 / 15


@common_options.takes_bundles
def demo(
    model: common_options.ModelArgument = None,
    tokens: Annotated[
        int | None,
        typer.Option(help="Tokens to write. Default: unlimited on a terminal, else 2,048."),
    ] = None,
    endless: Annotated[bool, typer.Option("--endless", help="Write until Ctrl-C.")] = False,
    prompt: Annotated[str, typer.Option(help="Start of the text.")] = PROMPT,
    sinks: common_options.Sinks = SINKS,
    window: Annotated[
        int, typer.Option(help="Number of recent tokens that the model sees.")
    ] = WINDOW,
    temperature: Annotated[
        float, typer.Option(help="0 takes the most probable token.")
    ] = TEMPERATURE,
    min_p: Annotated[
        float, typer.Option(help="Minimum probability, relative to the most probable token.")
    ] = MIN_P,
    repetition_penalty: Annotated[
        float, typer.Option(help="Values above 1 make tokens in the cache less probable.")
    ] = REPETITION_PENALTY,
    seed: Annotated[int, typer.Option(help="A different seed gives a different text.")] = SEED,
    model_option: common_options.ModelPath = None,
    *,
    loading: common_options.Loading,
) -> int:
    """Watch a model write far past its small cache, in constant memory."""
    loading = with_model("demo", loading, model, model_option)
    check_options(
        "demo",
        {
            "max_tokens": tokens,
            "temperature": temperature,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "seed": seed,
        },
    )
    with (
        load_model(replace(loading, sinks=sinks, window=window)) as loaded,
        start(
            loaded,
            prompt,
            tokens=None if endless else default_tokens() if tokens is None else tokens,
            temperature=temperature,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
        ) as stream,
    ):
        if sys.stdout.isatty():
            greeting = (
                f"{Path(loaded.path).name} with {sinks:,} sinks and a window of {window:,} tokens. "
                "Ctrl-C stops it."
            )
            sys.stdout.write(f"{fold(greeting, sys.stdout)}\n\n")
        return show(stream, prompt)


def default_tokens() -> int | None:
    """Return the default number of tokens: unlimited only if a user can press Ctrl-C."""
    return None if sys.stdout.isatty() else TOKENS


def start(
    model: Model,
    prompt: str,
    *,
    tokens: int | None,
    temperature: float = TEMPERATURE,
    min_p: float = MIN_P,
    repetition_penalty: float = REPETITION_PENALTY,
    seed: int = SEED,
) -> Stream:
    """Start the demo's stream; only `tokens` or its reader ends it."""
    return model.stream(
        prompt,
        max_tokens=tokens,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        logit_bias=forbid_control_tokens(model),
        seed=seed,
    )


def forbid_control_tokens(model: Model) -> dict[int, float]:
    """Return the bias that keeps a model from ending its text or starting another."""
    if model.tokenizer is None:
        return {}
    added = model.tokenizer.get_added_tokens_decoder()
    return {
        token: float("-inf")
        for token, entry in added.items()
        if entry.special and token < model.spec.vocab_size
    }


@dataclass
class Watch:
    """What the demo records in addition to the stream's statistics."""

    started: float
    resident_when_full: int | None = None

    def look(self, stats: Stats) -> None:
        """Record the resident memory at the first eviction."""
        if self.resident_when_full is None and stats.evicted_tokens > 0:
            self.resident_when_full = resident_bytes()


def show(stream: Stream, prompt: str) -> int:
    """Write the text as it is generated, then the summary; return the exit code."""
    watch = Watch(time.monotonic())
    code = 0
    try:
        with open_screen(lambda: status_line(stream.stats)) as screen:
            screen.write(prompt)
            for text in stream:
                screen.write(text)
                watch.look(stream.stats)
    except KeyboardInterrupt:  # how an endless demo ends; it still shows its summary
        code = 130
    sys.stdout.write("\n" + fold(summary(stream.stats, watch), sys.stdout) + "\n")
    return code


def resident_bytes() -> int:
    """Return this process's anonymous memory (RssAnon), without code and mapped files."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def status_line(stats: Stats) -> str:
    """Return the stream's current statistics in fewer than 80 characters."""
    parts = [f"{stats.generated_tokens:,} tokens"]
    if stats.tokens_per_s is not None:
        parts[0] += f", {stats.tokens_per_s:.1f}/s"
    parts += [
        f"live {stats.live_tokens:,}",
        f"evicted {stats.evicted_tokens:,}",
        f"resident {decimal(resident_bytes())}",
    ]
    return " " + " · ".join(parts) + " "


def summary(stats: Stats, watch: Watch) -> str:
    """Return the final statistics, in a few lines."""
    seconds = time.monotonic() - watch.started
    lines = [f"{stats.generated_tokens:,} tokens in {seconds:.1f} s"]
    if stats.tokens_per_s is not None:
        lines[0] += f", {stats.tokens_per_s:.1f} tokens/s"
    if stats.token_p50_s is not None and stats.token_p99_s is not None:
        lines[0] += (
            f"; time between tokens {stats.token_p50_s * 1e3:.1f} ms (p50), "
            f"{stats.token_p99_s * 1e3:.1f} ms (p99)"
        )
    if stats.accepted_tokens:
        lines.append(
            f"{stats.accepted_tokens:,} of {stats.draft_tokens:,} guessed tokens were right"
        )
    lines.append(
        f"{stats.live_tokens:,} tokens are live, {stats.evicted_tokens:,} were evicted; the cache "
        f"always used {decimal(stats.cache_bytes)}"
    )
    if watch.resident_when_full is not None:
        lines.append(
            f"resident memory was {decimal(watch.resident_when_full)} when the cache was first "
            f"full, and is {decimal(resident_bytes())} now"
        )
    return ".\n".join(line[0].upper() + line[1:] for line in lines) + "."


class PlainScreen(ClosesOnExit):
    """Writes text without a status line; to a terminal, without control characters."""

    def __init__(self) -> None:
        self._shown = printable if is_terminal(sys.stdout) else str

    def close(self) -> None:
        """End the last line."""
        sys.stdout.write("\n")
        sys.stdout.flush()

    def write(self, text: str) -> None:
        """Append text."""
        sys.stdout.write(self._shown(text))
        sys.stdout.flush()


class LiveScreen(ClosesOnExit):
    """Writes text to a terminal and keeps a status line below it.

    Finished lines scroll away like any output. Only the current line and the status below it are
    redrawn, so lines must be broken here rather than by the terminal.
    """

    def __init__(self, status: Callable[[], str], console: Console | None = None) -> None:
        """Prepare a screen; `status` returns the status line, and is called for each redraw."""
        self._status = status
        self._console = console or Console(highlight=False, markup=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._line = ""
        self._drawn_at = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def close(self) -> None:
        """Remove the status, and end the last line."""
        self._live.update(Text(""))
        self._live.stop()
        self._console.print(Text(self._line))

    def write(self, text: str) -> None:
        """Append text; it is drawn within 1/15 second."""
        *finished, self._line = break_lines(
            self._line + printable(text).expandtabs(4), self._console.width
        )
        if finished:
            self._console.print(Text("\n".join(finished)))
        now = time.monotonic()
        if now - self._drawn_at >= _REFRESH_S:
            self._drawn_at = now
            status = Text(self._status(), "black on green", no_wrap=True, overflow="ellipsis")
            self._live.update(Group(Text(self._line), status), refresh=True)


def break_lines(text: str, width: int) -> list[str]:
    """Break text into lines of at most `width` cells, at spaces if possible.

    The last line may still grow. A character that is wider than `width` has a line of its own.
    """
    lines: list[str] = []
    for paragraph in text.split("\n"):
        rest = paragraph
        while len(rest) > 1 and cell_len(rest) > width:
            head = chop_cells(rest, width)[0] or rest[0]
            space = head.rfind(" ")
            if space > 0 and rest[len(head)] != " ":
                head = head[:space]
            lines.append(head)
            rest = rest[len(head) :].removeprefix(" ")
        lines.append(rest)
    return lines


def open_screen(status: Callable[[], str]) -> PlainScreen | LiveScreen:
    """Return the right screen for standard output."""
    can_redraw = is_terminal(sys.stdout) and obeys_escapes()
    return LiveScreen(status) if can_redraw else PlainScreen()
