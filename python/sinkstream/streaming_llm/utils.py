"""What the original's two scripts import from its `utils`, under the same names.

Two things differ: no code of a checkpoint runs, and downloads verify the server's certificate.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sinkstream.files import replace_whole

__all__ = ["download_url", "load", "load_jsonl", "parse_args"]


def load(model_name_or_path: str) -> tuple[Any, Any]:
    """Load a transformers model and its tokenizer, onto the GPU in float16 if there is one.

    Args:
        model_name_or_path: A folder or a name that transformers can load.

    Returns:
        The model, in evaluation mode, and the tokenizer, which has a padding token.

    Raises:
        Exception: Any error of `from_pretrained`.
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(model_name_or_path)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = 0 if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    has_gpu = torch.cuda.is_available()
    model: Any = AutoModelForCausalLM.from_pretrained(
        model_name_or_path, dtype=torch.float16 if has_gpu else "auto"
    )
    return model.to("cuda" if has_gpu else "cpu").eval(), tokenizer


def load_jsonl(file_path: str | os.PathLike[str]) -> list[Any]:
    """Return the values of a JSON Lines file, one for each line that is not blank.

    Raises:
        ValueError: A line is not JSON; the message names it.
    """
    values = []
    with Path(file_path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    values.append(json.loads(line))
                except ValueError as error:
                    raise ValueError(
                        f"load_jsonl: every line must be JSON, but line {number} of {file_path} is "
                        f"not: {error}."
                    ) from None
    return values


def download_url(url: str, folder: str | os.PathLike[str] = "folder") -> str:
    """Download a file into a folder, unless it is there, and return its path.

    Raises:
        OSError: It cannot be downloaded or written; no partial file is left.
    """
    path = Path(folder, Path(urllib.parse.urlsplit(url).path).name)
    if path.exists():
        return str(path)
    with urllib.request.urlopen(url) as source:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_whole(path) as target:
            shutil.copyfileobj(source, target)
    return str(path)


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the options of the original's eval_long_ppl.py.

    Args:
        arguments: The command line; if None, the program's own.
    """
    parser = argparse.ArgumentParser(description="Perplexity of a long text.")
    parser.add_argument("--model_name_or_path", default="models/llama/llama-7b")
    parser.add_argument("--revision", default="main")
    parser.add_argument("--tokenizer_name_or_path")
    parser.add_argument("--dataset_name", default="wikitext")
    parser.add_argument("--task", default="wikitext-2-raw-v1")
    parser.add_argument("--split", default="test", choices=["validation", "test"])
    parser.add_argument("--num_samples", type=int, default=1)
    parser.add_argument("--output_dir", default="outputs/debug")
    parser.add_argument("--enable_start_recent_kv_cache", action="store_true")
    parser.add_argument("--start_size", type=int, default=1)
    parser.add_argument("--recent_size", type=int, default=255)
    parser.add_argument("--enable_pos_shift", action="store_true")
    parser.add_argument("--num_eval_tokens", type=int)
    return parser.parse_args(arguments)
