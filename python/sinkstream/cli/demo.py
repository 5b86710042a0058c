"""`sinkstream demo`: a long text through a small cache that wraps repeatedly."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from sinkstream.cli import options
from sinkstream.cli.loading import load_model
from sinkstream.cli.memory import resident_bytes
from sinkstream.cli.option_checks import check_options, with_model
from sinkstream.cli.screen import open_screen
from sinkstream.cli.terminal import fold
from sinkstream.model import Model
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


@options.takes_bundles
def demo(
    model: options.ModelArgument = None,
    tokens: Annotated[
        int | None,
        typer.Option(help="Tokens to write. Default: unlimited on a terminal, else 2,048."),
    ] = None,
    endless: Annotated[bool, typer.Option("--endless", help="Write until Ctrl-C.")] = False,
    prompt: Annotated[str, typer.Option(help="Start of the text.")] = PROMPT,
    sinks: options.Sinks = SINKS,
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
    model_option: options.ModelPath = None,
    *,
    loading: options.Loading,
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
