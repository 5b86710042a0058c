"""Bodies in a coding: decoded in parts, within a limit, whatever they claim to be."""

from __future__ import annotations

import gzip
import sys
import zlib

import pytest

pytest.importorskip("orjson", reason="needs the extra `serve`")

from sinkstream.server.content_codings import codings_of, decoded
from sinkstream.server.errors import ApiError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LIMIT = 4 << 20
TEXT = b"The sea. " * 10_000


def bare(data: bytes) -> bytes:
    """Compress without zlib's header, as some clients do."""
    writer = zlib.compressobj(wbits=-15)
    return writer.compress(data) + writer.flush()


def undone(body: bytes, *names: str) -> bytes:
    return b"".join(decoded(body, codings_of(list(names)), LIMIT))


def refusal(body: bytes, *names: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        undone(body, *names)
    return caught.value


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (gzip.compress(TEXT), ["gzip"]),
        (gzip.compress(TEXT), ["X-GZIP"]),
        (zlib.compress(TEXT), ["deflate"]),
        (bare(TEXT), ["deflate"]),
        (zstd.compress(TEXT), ["zstd"]),
        (TEXT, ["identity"]),
        (TEXT, [""]),
        (zstd.compress(gzip.compress(TEXT)), ["gzip, zstd"]),
        (zstd.compress(gzip.compress(TEXT)), ["gzip", "identity", "zstd"]),
        (gzip.compress(TEXT[:5]) + gzip.compress(TEXT[5:]), ["gzip"]),
        (zstd.compress(TEXT[:5]) + zstd.compress(TEXT[5:]), ["zstd"]),
    ],
    ids=range(11),
)  # fmt: skip
def test_a_body_is_decoded(body: bytes, names: list[str]) -> None:
    codings = codings_of(names)
    assert (undone(body, *names) if codings else body) == TEXT


@pytest.mark.parametrize("name", ["br", "compress", "gzip, br", "gzip," * 5 + "gzip", "\x00"])
def test_a_coding_that_is_not_known_is_refused_with_those_that_are(name: str) -> None:
    error = refusal(b"", name)
    assert (error.status, error.code) == (415, "content_encoding")
    assert error.headers == ((b"accept-encoding", b"deflate, gzip, zstd"),)
    assert "deflate, gzip, zstd and identity" in error.message


WHOLE = {"gzip": gzip.compress(TEXT), "deflate": zlib.compress(TEXT), "zstd": zstd.compress(TEXT)}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("change", ["cut", "empty", "another", "followed"])
def test_what_is_not_that_coding_is_refused(name: str, change: str) -> None:
    whole = WHOLE[name]
    body = {"cut": whole[:-1], "empty": b"", "another": b'{"a":1}', "followed": whole + b"{}"}[
        change
    ]
    error = refusal(body, name)
    assert (error.status, error.code) == (400, "content_encoding")
    assert f"valid {name}" in error.message


def test_a_small_body_that_becomes_large_is_refused_before_it_has() -> None:
    zeros = bytes(256 << 20)
    for body, name in (
        (gzip.compress(zeros), "gzip"),
        (zlib.compress(zeros), "deflate"),
        (zstd.compress(zeros), "zstd"),
        (gzip.compress(gzip.compress(zeros)), "gzip, gzip"),
    ):
        assert len(body) < 1 << 20
        made: list[int] = []
        with pytest.raises(ApiError, match=f"at most {LIMIT} bytes once it is decoded") as caught:
            made.extend(map(len, decoded(body, codings_of([name]), LIMIT)))
        assert caught.value.status == 413
        assert sum(made) <= LIMIT


def test_a_form_on_the_way_counts_as_well() -> None:
    """The outer layer is small, the one inside large, and the innermost empty."""
    inner = gzip.compress(b"") * (LIMIT // 16)
    assert refusal(gzip.compress(inner), "gzip, gzip").status in (400, 413)


def test_a_body_of_many_members_is_refused() -> None:
    assert refusal(gzip.compress(b"") * 2000, "gzip").status == 400


def test_zstd_may_not_ask_for_a_large_window() -> None:
    options = {zstd.CompressionParameter.window_log: 27}
    writer = zstd.ZstdCompressor(options=options)  # without a known size
    body = writer.compress(TEXT) + writer.flush()
    assert refusal(body, "zstd").status == 400
