"""A model that answers perfectly from the visible tokens, and knows nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.host import Host
from sinkstream.request.options import Sampling
from sinkstream.text.conversation_formats import ConversationFormats
from tests.data.tiny_tokenizer import TinyTokenizer

_ASKED = re.compile(
    r"(?:Query: The REGISTER_CONTENT in line (\d+) is|What is the pass key\? The pass key is)"
    r"([ <\d>]*)$"
)


@dataclass
class ScriptedCache:
    """The tokens read so far; `visible` are those that a query sees."""

    sinks: int
    window: int
    tokens: list[int] = field(default_factory=list)

    def copy(self) -> ScriptedCache:
        return ScriptedCache(self.sinks, self.window, list(self.tokens))

    @property
    def evicted(self) -> int:
        return max(0, len(self.tokens) - self.sinks - self.window)

    @property
    def visible(self) -> list[int]:
        kept = min(self.sinks, len(self.tokens))
        return self.tokens[:kept] + self.tokens[max(kept, len(self.tokens) - self.window) :]


class ScriptedModel:
    """Looks like `sinkstream.Model`; continues a question with the answer if it can see it."""

    def __init__(self, sinks: int = 4, window: int = 1000, *, bos: int | None = None) -> None:
        self.tokenizer = TinyTokenizer("smollm").build()
        text = TextFormat(
            self.tokenizer, chat_template=None, bos_token_id=bos, add_bos=bos is not None
        )
        unused: Any = None
        self._host = Host(
            model=None, native=unused, spec=unused, text=text, table=None, options=unused,
            defaults=Sampling(), control_tokens={}, grammars=unused,
            formats=ConversationFormats(text, None), tool_replies=unused,
        )  # fmt: skip
        self._vocab = self.tokenizer.get_vocab_size()
        self.spec = SimpleNamespace(vocab_size=self._vocab, layers=1, trained_length=4096)
        self.capacity = SimpleNamespace(sinks=sinks, window=window, tokens=sinks + window)
        self.path = "scripted"
        self.runtime = {
            "dtype": "float32",
            "kv_dtype": "float32",
            "quantize": None,
            "kernels": "none",
        }
        self.caches: list[ScriptedCache] = []

    def new_cache(
        self, batch: int = 1, *, sinks: int | None = None, window: int | None = None
    ) -> ScriptedCache:
        assert batch == 1
        assert sinks is not None
        assert window is not None
        self.caches.append(ScriptedCache(sinks, window))
        return self.caches[-1]

    def forward(self, ids: torch.Tensor, cache: ScriptedCache) -> torch.Tensor:
        assert ids.dtype == torch.int64
        cache.tokens += ids[0].tolist()
        logits = torch.zeros(1, ids.shape[1], self._vocab)
        logits[0, -1, self._next(self.tokenizer.decode(cache.visible))] = 1.0
        return logits

    def _next(self, text: str) -> int:
        """Return the token that continues a text: one byte of the answer, or a dot."""
        asked = _ASKED.search(text)
        following = "."
        if asked is not None:
            line = asked[1]
            fact = (
                "The pass key is " if line is None else f"The REGISTER_CONTENT in line {line} is "
            )
            known = re.search(rf"(?<!Query: ){re.escape(fact)}(<\d+>)\.", text)
            answer = f" {known[1]}" if known else " <00000>"
            following = answer.removeprefix(asked[2])[:1] or "."
        return self.tokenizer.encode(following, add_special_tokens=False).ids[0]
