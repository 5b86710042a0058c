"""Grammars for the replies of one model, compiled by llguidance.

The engine calls the functions of llguidance without Python.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
import threading
from collections.abc import Iterable
from pathlib import Path

from sinkstream import _core
from sinkstream.errors import InvalidArgument
from sinkstream.structured.lru_cache import LruCache

_KEPT = 16
_IS_GBNF = re.compile(r"^\s*root\s*::=", re.MULTILINE)
MAX_BYTES = 16384
"""The converter's time grows with the square of the number of rules."""
RELEASE = "1.9."
"""What the version of a library with the functions that the core knows begins with."""
_REMEDY = "`pip install 'sinkstream[structured]'` installs it."


class Grammars:
    """Compiles grammars for a model's vocabulary, and keeps recent ones. Any thread may call it."""

    def __init__(
        self, tokens: _core.TokenTable | None, vocab_size: int, end_token_ids: Iterable[int]
    ) -> None:
        """Remember the vocabulary; llguidance gets it with the first grammar."""
        self._tokens = tokens
        self._vocab_size = vocab_size
        self._end_token_ids = sorted(i for i in end_token_ids if 0 <= i < vocab_size)
        self._lock = threading.Lock()
        self._vocabulary: _core.GrammarVocabulary | None = None
        self._compiled: LruCache[tuple[str, str], _core.CompiledGrammar] = LruCache(_KEPT)

    def compile(self, option: str, text: str) -> _core.CompiledGrammar:
        """Return a grammar that replies can follow. Blocks for at most two seconds.

        Args:
            option: What sets it: "schema", "regex", "grammar" or "tools".
            text: Its value. A grammar may be in Lark syntax or in GBNF.

        Raises:
            InvalidArgument: It is too long, takes too long, or is not valid; or there is no
                tokenizer, or no usable llguidance.
        """
        return self._compiled.get((option, text), functools.partial(self._compile, option, text))

    def _compile(self, option: str, text: str) -> _core.CompiledGrammar:
        with self._lock:  # one vocabulary serves all grammars
            if self._vocabulary is None:
                self._vocabulary = self._make(option)
            vocabulary = self._vocabulary
        return vocabulary.compile(option, as_lark(text) if option == "grammar" else text)

    def _make(self, option: str) -> _core.GrammarVocabulary:
        if self._tokens is None:
            raise InvalidArgument(
                f"stream: `{option}` needs a tokenizer, but the checkpoint has none.", param=option
            )
        try:
            found = functions()
        except LibraryMissing as missing:
            raise InvalidArgument(f"stream: `{option}` needs {missing}", param=option) from None
        return _core.GrammarVocabulary(found, self._tokens, self._vocab_size, self._end_token_ids)


def as_lark(text: str) -> str:
    """Return a grammar in Lark syntax; llguidance's own converter reads GBNF.

    Raises:
        InvalidArgument: It is GBNF, but too long or not valid.
    """
    if not _IS_GBNF.search(text):
        return text
    size = len(text.encode())
    if size > MAX_BYTES:
        raise InvalidArgument(
            f"stream: `grammar` in GBNF must have at most {MAX_BYTES} bytes, but has {size}. "
            "A grammar in Lark syntax may be longer.",
            param="grammar",
        )
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(text)
    except Exception as error:  # its own, a bare Exception, or that of an index or of recursion
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InvalidArgument(
            f"stream: `grammar` must be valid GBNF, but is not: {reason}.", param="grammar"
        ) from None


class LibraryMissing(Exception):
    """llguidance is missing, or the wrong release; the message completes a sentence."""


@functools.cache
def functions() -> dict[str, int]:
    """Return the addresses of llguidance's functions by name. The library is never unloaded."""
    library = _load()
    found = {}
    for name in _core.grammar_functions():
        try:
            address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        except AttributeError:
            raise _wrong(f"an installation without `{name}`") from None
        assert address is not None
        found[name] = address
    version = _version(library)
    if not version.startswith(RELEASE):
        raise _wrong(version)
    return found


def _load() -> ctypes.CDLL:
    spec = importlib.util.find_spec("llguidance")
    if spec is None or spec.origin is None:
        raise LibraryMissing(f"llguidance {RELEASE}x, which is not installed. {_REMEDY}")
    files = sorted(Path(spec.origin).parent.glob("_lib*.so"))
    if not files:
        raise _wrong("an installation without its library")
    try:
        return ctypes.CDLL(str(files[0]))
    except OSError as error:
        raise _wrong(f"a library that cannot be loaded ({error})") from None


def _version(library: ctypes.CDLL) -> str:
    """Return "1.9.1" for "llguidance@1.9.1 derivre@0.3.13"."""
    library.llg_get_version.restype = ctypes.c_char_p
    text: bytes = library.llg_get_version()
    return text.decode().partition(" ")[0].rpartition("@")[2]


def _wrong(found: str) -> LibraryMissing:
    return LibraryMissing(f"llguidance {RELEASE}x, but {found} was found. {_REMEDY}")
