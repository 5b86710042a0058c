"""Writes command_line.md from the commands' functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from commands import Command, Parameter, all_commands, without_help

from sinkstream.cli.program import EXAMPLES, EXIT_CODES

GUIDES = {
    "batch": "[Many prompts](../guides/batch.md) describes both files.",
    "chat": "[Chat](../guides/chat.md) describes its commands.",
    "evaluate": "In Python: [`sinkstream.evaluate`](python_api/evaluate.md).",
    "models": "[Find a model](../guides/find_models.md) says where it looks.",
    "serve": "[Server](../guides/server.md) says what is served, and to whom.",
    "quantize": "[Quantize](../guides/quantize.md) says what the types are.",
}
LONGEST_DEFAULT = 40
# A quoted value, an address, a flag or a variable, a command of a chat or a path of the server.
CODE = re.compile(
    r'"[\w./:-]+"|\b\w+://[^\s;,]*\w|(?<![\w`-])(?:--[a-z][a-z-]+|\$[A-Z_]+|/[a-z]+\b(?!/))'
)


def page() -> str:
    """Return the page.

    Raises:
        ValueError: A command, an argument or a flag has no help; the message names each.
    """
    commands = all_commands()
    if missing := without_help(commands):
        raise ValueError("\n".join(missing))
    return "\n".join(lines(commands))


def lines(commands: list[Command]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Command line\n"
    yield "Every command of `sinkstream`, with its arguments, flags and defaults.\n"
    for command in commands:
        yield f"- [`sinkstream {command.name}`](#sinkstream-{command.name}): {command.help}"
    yield (
        "\n`--help` after any of them shows its flags. `sinkstream --version` shows the version; "
        "`python -m sinkstream` is the same program. `sinkstream --install-completion` makes the "
        "shell complete commands and flags."
    )
    for command in commands:
        yield from section(command)
    shared = {p.name: p for command in commands for p in command.loading}
    yield "\n## Loading options\n"
    yield (
        "These options choose the model and its memory. Every command that loads a model takes "
        "them; where a command lists one itself, its own default applies.\n"
    )
    yield from map(item, shared.values())
    yield "\n`$SINKSTREAM_MODEL` and others: [environment variables](environment.md)."
    shared = {p.name: p for command in commands for p in command.replies}
    yield "\n## Sampling options\n"
    yield (
        "These options choose the tokens of a reply. If an option is not given, the checkpoint's "
        "default applies, except for `--stop` (none) and `--seed` (random).\n"
    )
    yield from map(item, shared.values())
    yield "\n## Exit codes\n"
    yield from (f"- `{code}`: {meaning}." for code, meaning in EXIT_CODES.items())
    yield ""


def section(command: Command) -> Iterator[str]:
    """Yield the lines of one command."""
    yield f"\n## sinkstream {command.name}\n"
    yield f"{marked(command.help)}\n"
    yield f"```text\n{command.usage}\n```\n"
    yield f"```sh\n{EXAMPLES[command.name]}\n```\n"
    yield from map(item, (*command.arguments, *command.flags))
    yield ""
    links = []
    if command.loading:
        links.append("[loading options](#loading-options)")
    if command.replies:
        links.append("[sampling options](#sampling-options)")
    notes = [f"It also takes the {' and the '.join(links)}."] if links else []
    yield " ".join([*notes, *([GUIDES[command.name]] if command.name in GUIDES else [])])


def item(parameter: Parameter) -> str:
    """Return the entry of an argument or a flag."""
    *short, long = parameter.spellings
    names = [*short, f"{long} {parameter.metavar}".rstrip()]
    text, default = split_default(parameter)
    sentences = [marked(text), f"Default: {default}." if default else ""]
    return f"- {', '.join(f'`{n}`' for n in names)}: {' '.join(filter(None, sentences))}"


def split_default(parameter: Parameter) -> tuple[str, str]:
    """Return the help without its last sentence if that is the default, and the default."""
    text, _, default = parameter.help.partition(" Default: ")
    if default:
        return text, marked(default.rstrip("."))
    return text, shown(parameter.default)


def shown(default: Any) -> str:
    """Return a default as a user would type it; "" if there is none to show."""
    if default is None or default is False or default == "":
        return ""
    text = str(default).partition("\n")[0]
    if text != str(default) or len(text) > LONGEST_DEFAULT:
        text = text[: LONGEST_DEFAULT - 1] + "…"
    return f"`{text}`"


def marked(text: str) -> str:
    """Mark quoted values, addresses, flags, variables and commands of a chat as code."""
    return CODE.sub(lambda found: f"`{found[0].strip(chr(34))}`", text)
