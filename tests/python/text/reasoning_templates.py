"""Chat templates with the structure of reasoning models' own, and tokenizers that fit them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sinkstream.checkpoint.checkpoint import TextFormat
from tests.data.tiny_tokenizer import TinyTokenizer
from tests.python.text.vocabularies import plain, special

_TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
_ASK = "{% if add_generation_prompt %}<|im_start|>assistant\n"
_LATER = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
)

# The model writes the tags; thoughts of earlier replies are left out (Qwen3).
WRITTEN = (
    _LATER + _TURNS + "{% if m.role == 'assistant' and m.reasoning_content and "
    "loop.index0 > ns.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}" + _ASK + "{% if enable_thinking is defined and "
    "not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
# The prompt opens the thought, and messages have no field for it (DeepSeek-R1's distillations).
OPENED = (
    _TURNS + "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}"
    "<|im_end|>\n{% endfor %}" + _ASK + "<think>\n{% endif %}"
)
# The prompt opens it, and every earlier reply has an empty one.
EMPTIED = (
    _LATER + _TURNS + "{% if m.role == 'assistant' %}<think>\n"
    "{{ m.reasoning_content if m.reasoning_content and loop.index0 > ns.last else '' }}"
    "\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    + _ASK
    + "<think>\n{% endif %}"
)
# Earlier thoughts stay.
KEPT = (
    _TURNS + "{% if m.role == 'assistant' and m.reasoning_content %}[THINK]"
    "{{ m.reasoning_content }}[/THINK]{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    + _ASK
    + "{% endif %}"
)
# Thoughts and text are channels, with names between control tokens (gpt-oss).
CHANNELS = (
    _LATER + "{% for m in messages %}{% if m.role == 'assistant' %}{% if m.thinking and "
    "loop.index0 > ns.last %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}"
    "<|end|>{% endif %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% if reasoning_effort is defined %}"
    "{% endif %}{% endif %}"
)

THINK = plain("<think>", "</think>")
CHANNEL_TOKENS = special("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>")


def tokenizer_with(*added: Any) -> Tokenizer:
    """Return the tiny tokenizer with further tokens."""
    tokenizer = TinyTokenizer("smollm").build()
    for token in added:
        tokenizer.add_special_tokens([token]) if token.special else tokenizer.add_tokens([token])
    return tokenizer


def text_format(template: str, *added: Any) -> TextFormat:
    """Return a text format with a template."""
    return TextFormat(tokenizer_with(*added), template, end_token_ids=frozenset({2}))


def write_folder(base: Path, folder: Path, template: str, *added: Any) -> Path:
    """Write a copy of a tiny checkpoint with another template and further tokens."""
    shutil.copytree(base, folder)
    tokenizer_with(*added).save(str(folder / "tokenizer.json"))
    path = folder / "tokenizer_config.json"
    fields = {**json.loads(path.read_text()), "chat_template": template}
    path.write_text(json.dumps(fields))
    return folder
