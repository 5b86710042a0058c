"""Grammars for the replies of one model, compiled by llguidance.

The engine calls the functions of llguidance without Python.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import logging
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sinkstream import _core
from sinkstream.errors import InvalidArgument, how_to_install
from sinkstream.structured import schemas
from sinkstream.structured.lru_cache import LruCache

logger = logging.getLogger("sinkstream.structured")
_DECODER = json.JSONDecoder()
_REFUSES = " must be valid for llguidance, but is not: "
_KEPT = 16
_KEPT_SCHEMAS = 256
_JSON = re.compile(r"%json\s*(?=\{)")
_IS_GBNF = re.compile(r"^\s*root\s*::=", re.MULTILINE)
MAX_GBNF_BYTES = 16384
"""The converter's time grows with the square of the number of rules."""
RELEASE = "1.9."
"""What the version of a library with the functions that the core knows begins with."""


class Grammars:
    """Compiles grammars for a model's vocabulary, and keeps recent ones. Any thread may call it."""

    def __init__(
        self,
        tokens: _core.TokenTable | None,
        vocab_size: int,
        end_token_ids: Iterable[int],
        check_wanted: Callable[[], object],
    ) -> None:
        """Remember the vocabulary; llguidance gets it with the first grammar.

        `check_wanted` is called between the parts of long work, and may end it with an error.
        """
        self._check_wanted = check_wanted
        self._tokens = tokens
        self._vocab_size = vocab_size
        self._end_token_ids = sorted(i for i in end_token_ids if 0 <= i < vocab_size)
        self._lock = threading.Lock()
        self._vocabulary: _core.GrammarVocabulary | None = None
        self._compiled: LruCache[tuple[str, str], _core.CompiledGrammar] = LruCache(_KEPT)
        self._schemas: LruCache[tuple[str, str], str] = LruCache(_KEPT_SCHEMAS)

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

    def followed_schema(self, text: str, *, option: str, what: str) -> str:
        """Return the schema that replies follow in place of another one. Blocks.

        It is exact, or refused. If it asks for that (`schemas.is_lenient`), what cannot be enforced
        is dropped, and the log says so.

        Args:
            text: A JSON schema.
            option: What sets it, for errors: `param`.
            what: The same in words.

        Raises:
            InvalidArgument: As `compile`.
        """
        follow = functools.partial(self._followed_schema, text, option, what)
        return self._schemas.get((what, text), follow)

    def _followed_schema(self, text: str, option: str, what: str) -> str:
        fault = functools.partial(self._fault, option, what)
        try:
            schema = json.loads(text)
            if schemas.is_lenient(schema):
                kept, dropped = schemas.enforceable(schema, fault)
                if dropped:
                    names = ", ".join(sorted(set(dropped)))
                    logger.warning("%s: not enforced, without `strict`: %s", what, names)
            else:
                kept = schemas.exact(schema)
                if option == "tools" and (reason := fault(kept)):
                    raise self._refusal(kept, option, what, reason)
            bounded = _written(schemas.with_bounded_blanks(kept))
            # A schema is not refused for what is added here.
            return bounded if len(bounded.encode()) <= _core.MAX_GRAMMAR_BYTES else _written(kept)
        except schemas.Unenforceable as error:
            raise InvalidArgument(f"stream: {what}: {error}.", param=option) from None
        except (json.JSONDecodeError, RecursionError):
            return text  # llguidance says what is wrong

    def _fault(self, option: str, what: str, schema: Any) -> str:
        """Return why llguidance refuses a schema; "" if it takes it."""
        self._check_wanted()
        try:
            self._known_vocabulary(option).compile("schema", _written(schema))
        except InvalidArgument as error:
            if _REFUSES in str(error):
                return str(error).partition(_REFUSES)[2]
            # It is too long, or takes too long.
            raise InvalidArgument(str(error).replace("`schema`", what), param=option) from None
        return ""

    def _refusal(self, schema: Any, option: str, what: str, reason: str) -> InvalidArgument:
        path = ""
        with suppress(RecursionError):
            path = schemas.faulty_path(schema, functools.partial(self._fault, option, what))
        at = f" (at {path})" if path else ""
        return InvalidArgument(f"stream: {what}{at}{_REFUSES}{reason}", param=option)

    def _compile(self, option: str, text: str) -> _core.CompiledGrammar:
        if option == "schema":
            text = self.followed_schema(text, option=option, what="`schema`")
        elif option == "grammar":
            text = self._with_followed_schemas(as_lark(text))
        try:
            return self._known_vocabulary(option).compile(option, text)
        except InvalidArgument as error:
            if option != "schema" or _REFUSES not in str(error):
                raise
            reason = str(error).partition(_REFUSES)[2]
        try:
            schema = json.loads(text)
        except (ValueError, RecursionError):
            schema = None
        raise self._refusal(schema, option, "`schema`", reason)

    def _with_followed_schemas(self, lark: str) -> str:
        """Return a grammar whose schemas are those that replies follow."""
        written, end = "", 0
        for found in _JSON.finditer(lark):
            if found.start() < end:
                continue
            try:
                _, length = _DECODER.raw_decode(lark[found.end() :])
            except (ValueError, RecursionError):  # llguidance says what is wrong
                continue
            schema = lark[found.end() : found.end() + length]
            written += lark[end : found.end()]
            written += self.followed_schema(schema, option="grammar", what="`grammar`")
            end = found.end() + length
        return written + lark[end:]

    def _known_vocabulary(self, option: str) -> _core.GrammarVocabulary:
        with self._lock:  # one vocabulary serves all grammars
            if self._vocabulary is None:
                self._vocabulary = self._make(option)
            return self._vocabulary

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


def _written(schema: Any) -> str:
    return json.dumps(schema, ensure_ascii=False)


def as_lark(text: str) -> str:
    """Return a grammar in Lark syntax; llguidance's own converter reads GBNF.

    Raises:
        InvalidArgument: It is GBNF, but too long or not valid.
    """
    if not _IS_GBNF.search(text):
        return text
    size = len(text.encode())
    if size > MAX_GBNF_BYTES:
        raise InvalidArgument(
            f"stream: `grammar` in GBNF must have at most {MAX_GBNF_BYTES} bytes, but has {size}. "
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
        raise LibraryMissing(f"llguidance {RELEASE}x, which is not installed. {_remedy()}")
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
    return LibraryMissing(f"llguidance {RELEASE}x, but {found} was found. {_remedy()}")


def _remedy() -> str:
    return f"{how_to_install('structured')} installs it."
