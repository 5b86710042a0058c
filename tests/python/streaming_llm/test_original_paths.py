"""Imports written for the original work with `sinkstream.` put in front of their module."""

from __future__ import annotations

import json
import sys
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import sinkstream

PACKAGE = "sinkstream.streaming_llm"
PATHS = [
    "from sinkstream.streaming_llm.enable_streaming_llm import enable_streaming_llm",
    "from sinkstream.streaming_llm.kv_cache import StartRecentKVCache\n"
    "from sinkstream.streaming_llm.utils import load, download_url, load_jsonl, parse_args\n"
    "from sinkstream.streaming_llm.pos_shift.modify_llama import enable_llama_pos_shift_attention",
]


@pytest.fixture
def not_imported() -> Iterator[None]:
    """Forget the package's modules for one test: a process would import transformers again."""
    kept = {name: sys.modules.pop(name) for name in modules_of_package()}
    attribute = sinkstream.__dict__.pop("streaming_llm", None)
    yield
    for name in modules_of_package():
        del sys.modules[name]
    sys.modules.update(kept)
    sinkstream.__dict__.pop("streaming_llm", None)
    if attribute is not None:
        sinkstream.__dict__["streaming_llm"] = attribute


def modules_of_package() -> list[str]:
    return [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]


@pytest.mark.usefixtures("not_imported")
@pytest.mark.parametrize("line", PATHS, ids=["enable", "others"])
def test_the_originals_paths_can_be_imported_in_any_order(line: str) -> None:
    program = (
        f"{line}\n"
        "from sinkstream.streaming_llm import enable_streaming_llm as function\n"
        "from sinkstream.streaming_llm.enable_streaming_llm import enable_streaming_llm as same\n"
        "import sinkstream.streaming_llm\n"
        "assert function is same is sinkstream.streaming_llm.enable_streaming_llm\n"
        "assert callable(function)\n"
    )
    exec(program, {})


def test_load_returns_the_model_and_its_tokenizer(tiny_folder: Callable[[str], Path]) -> None:
    from sinkstream.streaming_llm.utils import load

    model, tokenizer = load(str(tiny_folder("llama")))
    assert not model.training
    assert tokenizer.pad_token_id is not None
    with torch.no_grad():
        model(**tokenizer("Hello there", return_tensors="pt"))


def test_load_jsonl_reads_one_value_per_line(tmp_path: Path) -> None:
    from sinkstream.streaming_llm.utils import load_jsonl

    path = tmp_path / "questions.jsonl"
    path.write_text('{"turns": ["é", "b"]}\n\n{"turns": []}\n', encoding="utf-8")
    assert load_jsonl(path) == [{"turns": ["é", "b"]}, {"turns": []}]
    path.write_text('{"turns": 1}\n{"turns"\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 2 of .*questions\.jsonl is not"):
        load_jsonl(path)


def test_parse_args_knows_the_originals_options(monkeypatch: pytest.MonkeyPatch) -> None:
    from sinkstream.streaming_llm.utils import parse_args

    monkeypatch.setattr(sys, "argv", ["eval_long_ppl.py"])
    args = parse_args()
    assert (args.start_size, args.recent_size, args.num_samples) == (1, 255, 1)
    assert not args.enable_pos_shift
    args = parse_args(["--start_size", "4", "--enable_start_recent_kv_cache", "--split", "test"])
    assert args.start_size == 4
    assert args.enable_start_recent_kv_cache


def test_download_url_keeps_what_is_there_and_leaves_no_part(tmp_path: Path) -> None:
    from sinkstream.streaming_llm.utils import download_url

    source = tmp_path / "question.jsonl"
    source.write_text(json.dumps({"turns": ["a"]}))
    folder = tmp_path / "data"
    path = download_url(source.as_uri(), str(folder))
    assert Path(path) == folder / "question.jsonl"
    assert Path(path).read_bytes() == source.read_bytes()
    source.write_text("another")
    assert Path(download_url(source.as_uri() + "?raw=1", str(folder))).read_text() != "another"
    with pytest.raises(urllib.error.URLError):
        download_url((tmp_path / "absent.jsonl").as_uri(), str(folder))
    assert [each.name for each in folder.iterdir()] == ["question.jsonl"]
