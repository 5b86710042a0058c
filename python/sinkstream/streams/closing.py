"""Base classes of objects that hold native memory: closed by `with` blocks, never copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Self

if TYPE_CHECKING:
    from types import TracebackType


class NeverCopied:
    """Refuses to be pickled or copied."""

    _instead = ""
    """What to do instead, as a sentence."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"pickle: a {type(self).__name__} must not be pickled or copied. {self._instead}"
        )


class ClosesOnExit(NeverCopied):
    """Calls `close` at the end of a `with` block."""

    def close(self) -> None:
        """Release what the object holds. May be called more than once."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
