"""Grammars for the replies of one model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from sinkstream import _core
from sinkstream.errors import InvalidArgument
from sinkstream.structured.gbnf import as_lark
from sinkstream.structured.library import LibraryMissing, functions

_KEPT = 16


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
        self._compiled: OrderedDict[tuple[str, str], _core.CompiledGrammar] = OrderedDict()

    def compile(self, option: str, text: str) -> _core.CompiledGrammar:
        """Return a grammar that replies can follow. Blocks for at most two seconds.

        Args:
            option: What sets it: "schema", "regex", "grammar" or "tools".
            text: Its value. A grammar may be in Lark syntax or in GBNF.

        Raises:
            InvalidArgument: It is too long, takes too long, or is not valid; or there is no
                tokenizer, or no usable llguidance.
        """
        key = (option, text)
        with self._lock:
            if key in self._compiled:
                self._compiled.move_to_end(key)
                return self._compiled[key]
            if self._vocabulary is None:
                self._vocabulary = self._make(option)
            vocabulary = self._vocabulary
        compiled = vocabulary.compile(option, as_lark(text) if option == "grammar" else text)
        with self._lock:
            self._compiled[key] = compiled
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        return compiled

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
