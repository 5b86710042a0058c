"""llama-server's options as settings of ours, or what of them we do not have. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

SINKS = 4
_MODELS = {"ggml-org/test-model-stories260K"}  # SmolLM2 stands for it
_VALUES = {
    "--port", "--host", "--temp", "--seed", "--hf-repo", "--alias", "--ctx-size", "--parallel",
    "--n-predict", "--api-key", "--chat-template", "--batch-size", "--ubatch-size", "--threads",
}  # fmt: skip
# They change nothing that a test of ours can see: both template engines write the same.
_IGNORED = {
    "--offline", "--no-slots", "--slots", "--jinja", "--no-jinja", "--verbose", "--metrics",
    "--cont-batching", "--kv-unified", "--context-shift",
}  # fmt: skip


class NotOurs(Exception):
    """An option that our server does not have."""


@dataclass(slots=True)
class Settings:
    """How to serve."""

    port: int = 8080
    name: str = "smollm2"
    api_key: str | None = None
    has_page: bool = True
    slots: int = 1
    context: int = 512
    """Tokens of all slots together."""
    defaults: dict[str, float] = field(default_factory=lambda: {"ignore_eos": True})
    """Fields that a request gets if it lacks them. The tests' own model never ends its text."""

    @property
    def window(self) -> int:
        """Return the window of one slot."""
        return self.context // self.slots - SINKS


def read(arguments: Sequence[str]) -> Settings:
    """Return settings.

    Raises:
        NotOurs: The first option, or value, that our server does not have.
    """
    settings, rest = Settings(), iter(arguments)
    for option in rest:
        if option in _IGNORED:
            continue
        if option == "--no-ui":
            settings.has_page = False
            continue
        if option not in _VALUES:
            raise NotOurs(option)
        _take(settings, option, next(rest))
    return settings


def _take(settings: Settings, option: str, value: str) -> None:
    known = {
        "--host": lambda: value == "127.0.0.1",
        "--hf-repo": lambda: value in _MODELS,
        "--alias": lambda: "," not in value,
        "--chat-template": lambda: value == "chatml",  # SmolLM2's own
    }
    if option in known and not known[option]():
        raise NotOurs(f"{option} {value}")
    if option == "--port":
        settings.port = int(value)
    elif option == "--alias":
        settings.name = value
    elif option == "--api-key":
        settings.api_key = value
    elif option == "--ctx-size":
        settings.context = int(value)
    elif option == "--parallel":
        settings.slots = int(value)
    elif option == "--temp":
        settings.defaults["temperature"] = float(value)
    elif option == "--seed":
        settings.defaults["seed"] = int(value)
    elif option == "--n-predict" and int(value) >= 0:
        settings.defaults["max_tokens"] = int(value)
