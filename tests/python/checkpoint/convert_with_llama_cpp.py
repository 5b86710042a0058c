"""Converts folders to GGUF files in float32 with llama.cpp's own converter, one after the other.

    python convert_with_llama_cpp.py SOURCES ROOT

SOURCES holds llama.cpp's `conversion` and `gguf-py`; each folder in ROOT becomes FOLDER.gguf next
to it. Prints a JSON object: for each folder null, or why the converter refused it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any


def main(sources: Path, root: Path) -> None:
    """Convert every folder; a refusal of one does not keep the others from being converted."""
    sys.path[:0] = [str(sources), str(sources / "gguf-py")]
    refusals: dict[str, str | None] = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        with tempfile.TemporaryDirectory() as name:
            copy = shutil.copytree(folder, Path(name) / folder.name)
            file = folder.with_name(f"{folder.name}.gguf")
            try:
                _convert(copy, file)
                refusals[folder.name] = None
            except Exception as error:
                traceback.print_exc()
                file.unlink(missing_ok=True)
                refusals[folder.name] = f"{type(error).__name__}: {error}"
    print(json.dumps(refusals))


def _convert(folder: Path, file: Path) -> None:
    base = import_module("conversion.base")
    config = base.ModelBase.load_hparams(folder, False)
    _write_as_published(config, folder)
    architecture = base.get_model_architecture(config, base.ModelType.TEXT)
    converter = import_module("conversion").get_model_class(architecture)
    # Tiny models have ids alone. Every class has its own way to read a tokenizer, and some hand
    # their work to another class, so all of them write none.
    for known in _subclasses(base.TextModel):
        known.set_vocab = _set_no_vocab
    converter(folder, base.gguf.LlamaFileType.ALL_F32, file, hparams=config).write()


def _write_as_published(config: dict[str, Any], folder: Path) -> None:
    """Change what transformers writes today and published models of the family have otherwise."""
    kind = config["model_type"]
    if kind == "mpt":
        config["architectures"] = ["MPTForCausalLM"]
    if kind == "phimoe":
        config["architectures"] = ["PhiMoEForCausalLM"]
    if kind in ("gpt_neox", "cohere2"):
        config.setdefault("rotary_pct", config["rope_parameters"].get("partial_rotary_factor", 1.0))
    if kind == "falcon" and config["multi_query"] and not config["new_decoder_architecture"]:
        config["num_kv_heads"] = 1  # otherwise that of a kind of model which it is not
    if kind in ("gemma3", "gemma3_text"):  # counts the tokens of a tokenizer
        words = {f"{i}": i for i in range(config.get("text_config", config)["vocab_size"])}
        tokenizer = {"model": {"vocab": words}, "added_tokens": []}
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def _set_no_vocab(model: Any) -> None:
    model.gguf_writer.add_tokenizer_model("none")
    model.gguf_writer.add_vocab_size(model.hparams["vocab_size"])


def _subclasses(kind: type) -> set[type]:
    direct = set(kind.__subclasses__())
    return direct.union(*(_subclasses(each) for each in direct))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
