"""An endless conversation, with a transformers model and sinkstream's cache.

    python examples/run_streaming_llama.py PATH_OR_NAME --prompts prompts.txt

reads one prompt per line ("-" reads the keyboard) and answers each, in one conversation. The cache
never holds more than `--start-size` + `--recent-size` tokens, so the conversation can run for days.
Tokens that leave the window are forgotten; the line below each answer counts them.

The options of the original's script are accepted as well:

    python examples/run_streaming_llama.py --enable_streaming --model_name_or_path PATH_OR_NAME

answers the questions of MT-Bench, downloaded to `--data_root`.

Works with any model of the families falcon (rotary), gpt_neox, llama, mistral, mpt, qwen2 and
qwen3. Needs transformers (`pip install transformers`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

from sinkstream.streaming_llm import StartRecentKVCache, enable_streaming_llm
from sinkstream.streaming_llm.utils import download_url, load_jsonl

QUESTIONS = (
    "https://raw.githubusercontent.com/lm-sys/FastChat/main/fastchat/llm_judge/data/mt_bench/"
    "question.jsonl"
)


def questions(folder: str) -> str:
    """Return the path of MT-Bench's questions in a folder, downloaded if they are not there."""
    path = Path(folder, "mt_bench.jsonl")
    if not path.exists():
        Path(download_url(QUESTIONS, folder)).rename(path)
    return str(path)


def prompts(source: str) -> Iterator[str]:
    """Yield the prompts of a file: one per line, the "turns" of .jsonl lines, or typed ones."""
    if source.endswith(".jsonl"):
        for question in load_jsonl(source):
            for turn in question["turns"]:
                print(f"You: {turn}")
                yield turn
        return
    if source == "-":
        print("You: ", end="", flush=True)
        for line in sys.stdin:
            if line.strip():
                yield line.strip()
            print("You: ", end="", flush=True)
        return
    with open(source, encoding="utf-8") as lines:  # noqa: PTH123 (a line at a time)
        for line in lines:
            if line.strip():
                print(f"You: {line.strip()}")
                yield line.strip()


# Placeholder for an answer in the output of a chat template; no template changes it.
ANSWER = "[[the answer]]"


def turn_text(tokenizer: Any, prompt: str, is_first: bool) -> str:
    """Return the text of one turn, with the marks of the chat template if there is one.

    A template renders entire conversations, perhaps with a start that must not be repeated, and
    with a last answer that differs from earlier ones. A later turn is therefore rendered after a
    placeholder answer, and starts with the mark that closes that answer.
    """
    if not tokenizer.chat_template:
        return f"USER: {prompt}\n\nASSISTANT: "

    def render(messages: list[dict[str, str]]) -> str:
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )

    turn = {"role": "user", "content": prompt}
    if is_first:
        return render([turn])
    before = [{"role": "user", "content": "?"}, {"role": "assistant", "content": ANSWER}]
    return render([*before, turn]).rpartition(ANSWER)[2]


def ends_of_answers(model: Any, tokenizer: Any) -> set[int]:
    """Return the tokens at which generate() stops."""
    ends = model.generation_config.eos_token_id
    return {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}


def converse(
    model: Any,
    tokenizer: Any,
    kv_cache: StartRecentKVCache,
    source: str,
    max_new_tokens: int,
) -> None:
    """Answer every prompt in one conversation."""
    cache = kv_cache.new_cache()
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    marks_turns = bool(tokenizer.chat_template)
    unread: list[int] = []  # the end of the last answer, not in the cache yet
    for prompt in prompts(source):
        text = turn_text(tokenizer, prompt, is_first=cache.seen_tokens == 0)
        special = cache.seen_tokens == 0 and not marks_turns
        ids = torch.tensor([unread + tokenizer(text, add_special_tokens=special).input_ids])
        print("Model: ", end="", flush=True)
        begin = time.perf_counter()
        inputs = kv_cache.inputs_for_generate(ids.to(model.device), cache)
        out = model.generate(
            **inputs, max_new_tokens=max_new_tokens, do_sample=False, streamer=streamer
        )
        unread = out[0, -1:].tolist()
        if marks_turns and unread[0] in ends_of_answers(model, tokenizer):
            unread = []  # the next turn's text closes the answer, whether or not it was complete
        answered = out.shape[1] - 1
        seconds = time.perf_counter() - begin
        print(
            f"[{ids.shape[1]} tokens read, {answered} written in {seconds:.1f} s; the cache holds "
            f"{cache.live_tokens}, {cache.evicted_tokens} are forgotten]\n"
        )


def main(arguments: list[str] | None = None) -> None:
    """Load the model and run the conversation."""
    parser = argparse.ArgumentParser(description="An endless conversation.")
    parser.add_argument("model", nargs="?", help="a folder or a name that transformers can load")
    parser.add_argument("--model_name_or_path", help="the same, as the original names it")
    parser.add_argument("--prompts", help="a text or .jsonl file, or - for the keyboard")
    parser.add_argument(
        "--data_root", default="data/", help="the folder of MT-Bench, if no prompts"
    )
    parser.add_argument("--enable_streaming", action="store_true", help="no effect: always on")
    sizes = parser.add_argument_group("sizes")
    sizes.add_argument("--start-size", "--start_size", type=int, default=4, help="sinks [4]")
    sizes.add_argument(
        "--recent-size", "--recent_size", type=int, default=2000, help="others [2000]"
    )
    parser.add_argument("--max-new-tokens", type=int, default=500, help="per answer [500]")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16 [auto]")
    options = parser.parse_args(arguments)
    options.model = options.model or options.model_name_or_path
    if options.model is None:
        parser.error("a model is required")
    if options.prompts is None:
        options.prompts = questions(options.data_root)

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=options.dtype).eval()
    if torch.cuda.is_available():
        model = model.to("cuda")
    kv_cache = enable_streaming_llm(model, options.start_size, options.recent_size)
    converse(model, tokenizer, kv_cache, options.prompts, options.max_new_tokens)


if __name__ == "__main__":
    main()
