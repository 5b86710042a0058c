"""The conversation answers every prompt, and its turns follow the chat template."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.python.scripts import module_of

SCRIPT = Path(__file__).parents[3] / "examples" / "run_streaming_llama.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return module_of(SCRIPT)


def test_every_prompt_is_answered_and_the_cache_stays_bounded(
    script: ModuleType,
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Hello there\n\nTell me about the sea, the land and the sky\nAnd so?\n")
    sizes = ("--recent-size=30", "--max-new-tokens=20")
    script.main([str(tiny_folder("llama")), "--prompts", str(prompts), *sizes])
    out = capsys.readouterr().out
    assert re.findall("^You: .*$", out, re.MULTILINE) == [
        "You: Hello there",
        "You: Tell me about the sea, the land and the sky",
        "You: And so?",
    ]
    lines = re.findall(
        r"\[(\d+) tokens read, (\d+) written .*? holds (\d+), (\d+) are forgotten\]",
        out,
    )
    turns = [tuple(map(int, line)) for line in lines]
    total = 0
    for read, written, held, forgotten in turns:
        total += read + written - 1  # the last written token is read with the next turn
        assert held == min(34, total)
        assert forgotten == total - held
    assert len(turns) == 3
    assert turns[-1][-1] > 34


def test_the_originals_options_answer_the_turns_of_its_questions(
    script: ModuleType,
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "mt_bench.jsonl").write_text(
        '{"turns": ["Hello there", "And so?"]}\n{"turns": ["The sea"]}\n'
    )
    options = (
        f"--enable_streaming --model_name_or_path {tiny_folder('llama')} --data_root {tmp_path}"
    )
    sizes = "--start_size=2 --recent_size=30 --max-new-tokens=20"
    script.main([*options.split(), *sizes.split()])
    out = capsys.readouterr().out
    assert re.findall("^You: (.*)$", out, re.MULTILINE) == ["Hello there", "And so?", "The sea"]
    assert re.findall(r"holds (\d+)", out)[-1] == "32"


def test_a_model_must_be_named(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script.main(["--enable_streaming"])
    assert "a model is required" in capsys.readouterr().err


# With a default system prompt, like SmolLM2's.
CHATML = """\
{% for message in messages -%}
{% if loop.first and message.role != 'system' %}{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}\
{% endif %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}\
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# Adds an empty thinking block to an answer after the last question, like Qwen3's.
THINKING = """\
{%- set ns = namespace(asked=0) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.asked = loop.index0 %}\
{% endif %}{% endfor %}
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\n' }}\
{% if message.role == 'assistant' and loop.index0 > ns.asked %}\
{{ '<think>\n\n</think>\n\n' + message.content.lstrip('\n') }}\
{% else %}{{ message.content }}{% endif %}{{ '<|im_end|>\n' }}\
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# With a start of the text, spaces around answers, and no mark before questions.
INSTRUCT = """\
{{- '<|begin|>' }}{% for message in messages %}\
{% if message.role == 'user' %}{{ '[INST] ' + message.content + ' [/INST]' }}\
{% else %}{{ ' ' + message.content | trim + '<|im_end|>' }}{% endif %}{% endfor %}"""


def tokenizer_with(template: str) -> Any:
    """Return a tokenizer of bytes and marks, which ends answers with <|im_end|>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast,
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>", "<|begin|>", "<|other_end|>"],
    )
    tokenizer.chat_template = template
    return tokenizer


LATER_TURNS = {
    CHATML: "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    THINKING: "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    INSTRUCT: "<|im_end|>[INST] Hi [/INST]",
}
TEMPLATES = pytest.mark.parametrize("template", LATER_TURNS, ids=["chatml", "thinking", "instruct"])


@TEMPLATES
def test_later_turns_close_the_answer_and_have_no_beginning(
    script: ModuleType, template: str
) -> None:
    text = script.turn_text(tokenizer_with(template), "Hi", is_first=False)
    assert text == LATER_TURNS[template]


def test_the_first_turn_has_the_beginning(script: ModuleType) -> None:
    assert script.turn_text(tokenizer_with(CHATML), "Hi", is_first=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


class Scripted:
    """Model and cache in one: gives fixed answers, and records what a cache would read."""

    device = "cpu"
    live_tokens = evicted_tokens = 0

    def __init__(self, answers: list[list[int]], ends: Any) -> None:
        self.answers = iter(answers)
        self.generation_config = SimpleNamespace(eos_token_id=ends)
        self.read: list[int] = []

    @property
    def seen_tokens(self) -> int:
        return len(self.read)

    def new_cache(self) -> Scripted:
        return self

    def inputs_for_generate(self, ids: torch.Tensor, cache: Scripted) -> dict[str, torch.Tensor]:
        assert cache is self
        self.read += ids[0].tolist()
        return {"input_ids": ids[:, -1:]}

    def generate(self, input_ids: torch.Tensor, **options: Any) -> torch.Tensor:
        answer = next(self.answers)
        self.read += answer[:-1]  # the last is sampled but not read
        return torch.cat([input_ids, torch.tensor([answer])], dim=1)


@pytest.mark.parametrize("end", ["<|im_end|>", "<|other_end|>", ""], ids=["eos", "other", "cut"])
@TEMPLATES
def test_what_the_model_reads_is_what_the_template_writes(
    script: ModuleType, tmp_path: Path, template: str, end: str
) -> None:
    tokenizer = tokenizer_with(template)
    questions, answers = ["Hi", "And the sea?", "Why?"], ["Hello.", "It is wide", "Oh"]
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(questions))
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|other_end|>"])
    model = Scripted([tokenizer(answer + end).input_ids for answer in answers], ends)
    script.converse(model, tokenizer, model, str(prompts), max_new_tokens=50)
    conversation = [{"role": "user", "content": questions[0]}]
    for answer, question in zip(answers[:2], questions[1:], strict=True):
        conversation.append({"role": "assistant", "content": answer})
        conversation.append({"role": "user", "content": question})
    whole = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    if template == INSTRUCT:
        whole = whole.replace("[/INST] ", "[/INST]")  # the model does not write that space
    unread = "" if end else answers[-1][-1]
    assert tokenizer.decode(model.read) + unread == whole + answers[-1]
