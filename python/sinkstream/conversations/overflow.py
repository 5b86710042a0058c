"""What the model does not see of a prompt that is longer than its window, counted and said."""

from __future__ import annotations

from dataclasses import dataclass

from sinkstream.errors import ContextExceeded


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens before a reply."""

    before: int
    """Of the conversation that the request continues; 0 if it begins one."""
    added: int
    """Of what the request adds."""

    @property
    def tokens(self) -> int:
        """Return the number of all of them."""
        return self.before + self.added

    def dropped(self, sinks: int, window: int) -> int:
        """Return how many of the added ones have left the window when the reply begins.

        That is what a reader of the conversation might miss: it was never seen together with the
        question. What earlier requests added leaves the window sooner or later.
        """
        return max(0, self.tokens - window - max(sinks, self.before))


def check_fits(prompt: Prompt, capacity: int, name: str) -> None:
    """Refuse a prompt of which the model would not see all.

    Args:
        prompt: The tokens before the reply.
        capacity: S + W.
        name: The argument that has the prompt.

    Raises:
        ContextExceeded: It is longer.
    """
    if prompt.tokens > capacity:
        earlier = f" ({prompt.before:,} of earlier turns)" if prompt.before else ""
        raise ContextExceeded(
            f"stream: `{name}` must have at most {capacity:,} tokens with the conversation before "
            f"it, because the model sees no more, but has {prompt.tokens:,}{earlier}: "
            f"{prompt.tokens - capacity:,} too many. Shorten it, use a larger `window`, or let the "
            "oldest tokens leave the window with `on_overflow`.",
            param=name,
        )


def warning_of(prompt: Prompt, dropped: int, capacity: int) -> str:
    """Return a sentence about dropped tokens; "" if there are none."""
    if not dropped:
        return ""
    return (
        f"The request adds {prompt.added:,} tokens, but the model sees {capacity:,} at a time: it "
        f"does not see {dropped:,} of them, at the beginning."
    )
