"""Chat templates with tools, in the shapes that models' own have, and tokenizers that fit them."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

from sinkstream.checkpoint.checkpoint import TextFormat
from tests.python.text.reasoning_templates import THINK, text_format
from tests.python.text.vocabularies import plain, special

_END = "<|im_end|>\n"
_ASK = "{% if add_generation_prompt %}<|im_start|>assistant\n"
_SYSTEM = (
    "{% if tools %}<|im_start|>system\nYou may call:{% for t in tools %}\n{{ t | tojson }}"
    "{% endfor %}" + _END + "{% endif %}"
)
_RESULT = (
    "{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n"
    "</tool_response>" + _END
)
_CALLS = (
    "{% for c in m.tool_calls or [] %}{% if not loop.first or m.content %}{{ '\\n' }}{% endif %}"
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}"
)

# Hermes, Qwen2.5: tags in text; arguments are objects.
HERMES = (
    _SYSTEM + "{% for m in messages %}" + _RESULT + "{% else %}<|im_start|>{{ m.role }}\n"
    "{{ m.content or '' }}" + _CALLS + _END + "{% endif %}{% endfor %}" + _ASK + "{% endif %}"
)
# Qwen3: the same after a thought, which a last reply has even if it is empty; arguments are either.
THINKING = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}" + _SYSTEM
    + "{% for m in messages %}" + _RESULT + "{% else %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or "
    "m.reasoning_content) %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}"
    "{{ m.content or '' }}"
    + _CALLS.replace("{{ c.function.arguments | tojson }}", "{% if c.function.arguments is string "
                     "%}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}"
                     "{% endif %}")
    + _END + "{% endif %}{% endfor %}" + _ASK + "{% if enable_thinking is defined and not "
    "enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)  # fmt: skip
# DeepSeek-R1's distillations and others: the prompt opens the thought.
OPENED = THINKING.replace(_ASK + "{% if enable_thinking is defined and not enable_thinking %}"
                          "<think>\n\n</think>\n\n{% endif %}", _ASK + "<think>\n")  # fmt: skip
# Llama 3: bare JSON, one call at a time.
LLAMA = (
    "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('one call') }}{% endif %}<|start_header_id|>assistant<|end_header_id|>\n\n"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": '
    "{{ m.tool_calls[0].function.arguments | tojson }}}<|eot_id|>{% else %}<|start_header_id|>"
    "{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>\n\n"
    "{% if loop.first and tools %}{% for t in tools %}{{ t | tojson(indent=4) }}\n\n{% endfor %}"
    "{% endif %}{{ m.content }}<|eot_id|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
# Mistral: a control token, a list, and ids of nine characters.
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}{% if loop.last and tools %}"
    "[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST]{{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}{% if c.id | length != 9 %}"
    "{{ raise_exception('ids have nine characters') }}{% endif %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, '
    '"id": "{{ c.id }}"}{{ ", " if not loop.last else "" }}{% endfor %}]</s>'
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
# Later ones of Mistral: the name is not in the JSON.
ARGS = MISTRAL.replace('[TOOL_CALLS][{% for', "{% for").replace(
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, '
    '"id": "{{ c.id }}"}{{ ", " if not loop.last else "" }}{% endfor %}]</s>',
    "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}</s>",
)  # fmt: skip
# Their reasoning models: control tokens around thoughts, too.
REASONING = ARGS.replace("{% elif m.tool_calls %}", "{% elif m.role == 'assistant' and "
                         "m.reasoning_content %}[THINK]{{ m.reasoning_content }}[/THINK]"
                         "{{ m.content }}</s>{% elif m.tool_calls %}")  # fmt: skip
# The tag is completed by the name; the arguments are read as text.
FUNCTION = HERMES.replace(
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>",
    "<function={{ c.function.name }}>{{ c.function.arguments }}</function>",
)
# DeepSeek: control tokens around all calls and around each, and Markdown.
DEEPSEEK = (
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}"
    "{% if m.role == 'user' %}<|User|>{{ m.content }}{% elif m.tool_calls %}<|Assistant|><|calls|>"
    "{% for c in m.tool_calls %}{{ '' if loop.first else '\n' }}<|call|>function<|sep|>"
    "{{ c.function.name }}\n```json\n{{ c.function.arguments | tojson }}\n```<|/call|>{% endfor %}"
    "<|/calls|><|end|>{% elif m.role == 'tool' %}<|out|>{{ m.content }}<|/out|>"
    "{% else %}<|Assistant|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|>{% endif %}"
)
# Qwen3-Coder: XML instead of JSON.
XML = HERMES.replace(
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}',
    "<function={{ c.function.name }}>{% for k, v in c.function.arguments | items %}"
    "<parameter={{ k }}>{{ v }}</parameter>{% endfor %}</function>",
)

# gpt-oss: messages on channels; a result is written only after its call, and the date first of all.
HARMONY = (
    "<|start|>system<|message|>Current date: {{ strftime_now('%Y-%m-%d') }}{% if reasoning_effort "
    "is defined %} Reasoning: {{ reasoning_effort }}{% endif %}<|end|>"
    "{% set first = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% if first or tools %}<|start|>developer<|message|>{{ first }}{% for t in tools or [] %}\n"
    "{{ t | tojson }}{% endfor %}<|end|>{% endif %}"
    "{% set ns = namespace(call=none) %}{% for m in (messages[1:] if first else messages) %}"
    "{% if m.tool_calls %}{% set later = namespace(final=false) %}"
    "{% for n in (messages[1:] if first else messages)[loop.index:] %}"
    "{% if n.role == 'assistant' and not n.tool_calls %}{% set later.final = true %}{% endif %}"
    "{% endfor %}{% set c = m.tool_calls[0].function %}{% if m.thinking and not later.final %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant to=functions.{{ c.name }}<|channel|>commentary json<|message|>"
    "{{ c.arguments | tojson }}<|call|>{% set ns.call = c.name %}"
    "{% elif m.role == 'assistant' and loop.last and not add_generation_prompt %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>"
    "{% endif %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|return|>"
    "{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
    "<|end|>{% set ns.call = none %}{% elif m.role == 'tool' %}{% if ns.call is none %}"
    "{{ raise_exception('no call') }}{% endif %}<|start|>functions.{{ ns.call }} to=assistant"
    "<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>{% else %}"
    "<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)

LLAMA_TOKENS = special("<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")
MISTRAL_TOKENS = special("</s>", "[TOOL_CALLS]", "[ARGS]", "[INST]", "[/INST]")
DEEPSEEK_TOKENS = special("<|end|>", "<|calls|>", "<|/calls|>", "<|call|>", "<|/call|>", "<|sep|>")
CALL = plain("<tool_call>")


HARMONY_TOKENS = special(
    "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"
)


def tool_format(template: str, end: str, *added: Any, also_ends: str = "") -> TextFormat:
    """Return a text format with a template whose replies end with the token `end`, or another."""
    text = text_format(template, *added)
    assert text.tokenizer is not None
    ends = frozenset(text.tokenizer.token_to_id(one) for one in (end, also_ends) if one)
    return dataclasses.replace(text, end_token_ids=ends)


FORMATS: dict[str, TextFormat] = {
    "hermes": tool_format(HERMES, "<|im_end|>"),
    "thinking": tool_format(THINKING, "<|im_end|>", *THINK, *CALL),
    "opened": tool_format(OPENED, "<|im_end|>", *THINK, *CALL),
    "llama": tool_format(LLAMA, "<|eot_id|>", *LLAMA_TOKENS, *plain('{"name": "')),
    "mistral": tool_format(MISTRAL, "</s>", *MISTRAL_TOKENS),
    "args": tool_format(ARGS, "</s>", *MISTRAL_TOKENS),
    "reasoning": tool_format(REASONING, "</s>", *MISTRAL_TOKENS, *special("[THINK]", "[/THINK]")),
    "function": tool_format(FUNCTION, "<|im_end|>", *plain("<function=")),
    "deepseek": tool_format(DEEPSEEK, "<|end|>", *DEEPSEEK_TOKENS),
}
CHANNELS = {"harmony": tool_format(HARMONY, "<|return|>", *HARMONY_TOKENS, also_ends="<|call|>")}
"""Calls are messages on a channel."""
# Without a place for tools. ChatML writes any role, and a system text if there is none.
CHATML = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind." + _END + "{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}" + _END + "{% endfor %}"
    + _ASK + "{% endif %}"
)  # fmt: skip
# Gemma and others: no system text, and a question after each reply.
STRICT = (
    "{% for m in messages %}{% if m.role not in ('user', 'assistant') or "
    "(m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}" + _END + "{% endfor %}"
    + _ASK + "{% endif %}"
)  # fmt: skip
# Phi: other roles are left out.
OMITTING = CHATML.replace("for m in messages %}", "for m in messages if m.role != 'tool' %}")
# A thought in the prompt, and none in earlier replies.
THINKER = CHATML.replace(_ASK, _ASK + "<think>\n").replace(
    "{{ m.content }}", "{{ (m.content or '').split('</think>')[-1] | trim }}"
)
WITHOUT_TOOLS: dict[str, TextFormat] = {
    "chatml": tool_format(CHATML, "<|im_end|>"),
    "omitting": tool_format(OMITTING, "<|im_end|>"),
    "strict": tool_format(STRICT, "<|im_end|>"),
    "thinker": tool_format(THINKER, "<|im_end|>", *THINK),
    "xml": tool_format(XML, "<|im_end|>"),
}


def function(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    """Return a tool in OpenAI's form."""
    fields = {"name": name, **({} if parameters is None else {"parameters": parameters}), **more}
    return {"type": "function", "function": fields}


WEATHER = function(
    "get_weather",
    {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", 'a</tool_call>"}\\']}},
        "required": ["city"],
        "additionalProperties": False,
    },
    description="Tell the weather.",
)
TIME = function(
    "get_time",
    {
        "type": "object",
        "properties": {"zone": {"type": "integer", "minimum": -12, "maximum": 12}},
        "required": ["zone"],
        "additionalProperties": False,
    },
)
TOOLS = [WEATHER, TIME]


def write_tool_folder(base: Path, folder: Path, name: str) -> Path:
    """Write a copy of a tiny checkpoint with one of FORMATS, CHANNELS or WITHOUT_TOOLS."""
    text = (FORMATS | CHANNELS | WITHOUT_TOOLS)[name]
    assert text.tokenizer is not None
    assert text.chat_template is not None
    shutil.copytree(base, folder)
    text.tokenizer.save(str(folder / "tokenizer.json"))
    ends = sorted(text.end_token_ids)
    for file, fields in (
        ("tokenizer_config.json", {"chat_template": text.chat_template}),
        ("config.json", {"eos_token_id": ends if len(ends) > 1 else ends[0]}),
    ):
        path = folder / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return folder
