"""Bodies that clients have compressed: decoded in parts, so that a small one cannot become large.

Every form on the way counts: a body in two codings may be small, large, and small again.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from sinkstream.server.errors import ApiError, invalid, too_large

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_READ, _AT_ONCE = 1 << 16, 1 << 20  # bytes that are decoded in one call, and what becomes of them
_MOST = 4  # codings of a body
_MOST_MEMBERS = 1024  # of each: they may be empty
_MAX_WINDOW_LOG = 23  # of zstd, as HTTP has it (RFC 9659): the memory that a body may ask for
_GZIP = 16 + zlib.MAX_WBITS  # of zlib, likewise


class _Decoder(Protocol):
    """Decodes one member of a coding."""

    @property
    def is_hungry(self) -> bool:
        """Return whether it has nothing more to return without more data."""
        ...

    @property
    def is_ended(self) -> bool:
        """Return whether its end has been found."""
        ...

    @property
    def rest(self) -> bytes:
        """Return what followed the end."""
        ...

    def decode(self, data: bytes) -> bytes:
        """Take data, and return some of what it stands for."""
        ...


def codings_of(given: list[str]) -> list[str]:
    """Return the codings of a body in the order in which they are undone; refuse unknown ones.

    Args:
        given: The values of `Content-Encoding`.
    """
    names = [name.strip().lower() for value in given for name in value.split(",")]
    codings = [name.removeprefix("x-") for name in names if name not in ("", "identity")]
    unknown = [name for name in codings if name not in _MAKERS]
    if unknown or len(codings) > _MOST:
        found = f'"{unknown[0][:40]}"' if unknown else f"{len(codings)} codings"
        raise ApiError(
            415,
            "invalid_request_error",
            "content_encoding",
            f"headers: `Content-Encoding` must be up to {_MOST} of {', '.join(sorted(_MAKERS))} "
            f"and identity, but is {found}.",
            headers=((b"accept-encoding", ", ".join(sorted(_MAKERS)).encode()),),
        )
    return codings[::-1]


def decoded(body: bytes | bytearray, codings: list[str], limit: int) -> Iterator[bytes]:
    """Yield the parts of a decoded body; refuse more than `limit` bytes, and other data. Blocks."""
    parts: Iterator[bytes]
    parts = (bytes(body[begin : begin + _READ]) for begin in range(0, len(body), _READ))
    for coding in codings:
        parts = _decoded(parts, coding, limit)
    held = bytearray()
    for part in parts:
        held += part
        if len(held) >= _AT_ONCE:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


def _decoded(parts: Iterator[bytes], coding: str, limit: int) -> Iterator[bytes]:
    total = members = 0
    decoder: _Decoder | None = None
    try:
        for part in parts:
            rest = part
            while rest or (decoder is not None and not decoder.is_hungry):
                if decoder is None:
                    decoder = _MAKERS[coding](rest)
                    members += 1
                made = decoder.decode(rest)
                total += len(made)
                if total > limit:
                    raise too_large(f"at most {limit} bytes once it is decoded")
                if members > _MOST_MEMBERS:
                    raise _broken(coding)
                if made:
                    yield made
                rest = b""
                if decoder.is_ended:  # another member may follow
                    rest, decoder = decoder.rest, None
    except (zlib.error, zstd.ZstdError, EOFError):
        raise _broken(coding) from None
    if decoder is not None or members == 0:
        raise _broken(coding)


def _broken(coding: str) -> ApiError:
    return invalid(
        f"body: must be complete and valid {coding}, as `Content-Encoding` says, but is not.",
        code="content_encoding",
    )


class _Zlib:
    """A gzip member, or data in zlib's format."""

    def __init__(self, window_bits: int) -> None:
        self._decoder = zlib.decompressobj(window_bits)

    @property
    def is_hungry(self) -> bool:
        return not self._decoder.unconsumed_tail

    @property
    def is_ended(self) -> bool:
        return self._decoder.eof

    @property
    def rest(self) -> bytes:
        return self._decoder.unused_data

    def decode(self, data: bytes) -> bytes:
        return self._decoder.decompress(self._decoder.unconsumed_tail + data, _AT_ONCE)


class _Zstd:
    """A frame of Zstandard."""

    def __init__(self) -> None:
        options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}
        self._decoder: Any = zstd.ZstdDecompressor(options=options)

    @property
    def is_hungry(self) -> bool:
        return bool(self._decoder.needs_input)

    @property
    def is_ended(self) -> bool:
        return bool(self._decoder.eof)

    @property
    def rest(self) -> bytes:
        return bytes(self._decoder.unused_data)

    def decode(self, data: bytes) -> bytes:
        return bytes(self._decoder.decompress(data, _AT_ONCE))


def _deflate(data: bytes) -> _Zlib:
    """Return what decodes zlib's format, or the bare one that some clients send instead."""
    is_zlib = len(data) < 2 or (data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0)
    return _Zlib(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)


_MAKERS: dict[str, Callable[[bytes], _Decoder]] = {
    "deflate": _deflate,
    "gzip": lambda data: _Zlib(_GZIP),
    "zstd": lambda data: _Zstd(),
}
