"""Opening Hugging Face folders: one file or shards, required and forbidden content."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sinkstream.checkpoint import Checkpoint
from sinkstream.checkpoint.families import FAMILIES
from sinkstream.checkpoint.spec import weight_slots
from sinkstream.errors import CheckpointError
from sinkstream.loading.open_checkpoint import open_checkpoint
from sinkstream.request.options import OPTIONS, SAMPLING
from sinkstream.request.value_kinds import Number
from tests.data import tiny

TinyFolder = Callable[[str], Path]


@pytest.fixture
def folder(tiny_folder: TinyFolder, tmp_path: Path) -> Path:
    """Give a copy of a tiny llama that a test may damage."""
    return shutil.copytree(tiny_folder("llama"), tmp_path / "llama")


@pytest.fixture
def sharded(tiny_folder: TinyFolder, tmp_path: Path) -> Path:
    """Give a copy of a tiny llama in three shards that a test may damage."""
    return shutil.copytree(tiny_folder("llama-sharded"), tmp_path / "sharded")


def edit(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**values, **changes}))


def assert_holds(checkpoint: Checkpoint, weights: tiny.Weights) -> None:
    """Compare every weight with what was written."""
    names = FAMILIES[checkpoint.spec.family].folder_names
    read: dict[str, list[np.ndarray]] = {}
    for tensor in sorted(checkpoint.tensors, key=lambda t: checkpoint.source.extents(t)[0].offset):
        assert tensor.tensor == names.tensor(tensor.slot.name)
        content = checkpoint.source.read_rows(tensor, 0, tensor.slot.rows)
        # The parts of a fused tensor lie one after another.
        parts = read.setdefault(tensor.tensor.partition("[")[0], [])
        parts.append(np.frombuffer(content, np.float32))
    for name, parts in read.items():
        np.testing.assert_array_equal(np.concatenate(parts), weights[name].ravel())


@pytest.mark.parametrize("form", ["", "-sharded"])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_folder_gives_every_weight_as_it_was_written(
    tiny_folder: TinyFolder, family: str, form: str
) -> None:
    checkpoint = open_checkpoint(tiny_folder(family + form))
    assert checkpoint.spec.family == family
    assert [tensor.slot for tensor in checkpoint.tensors] == list(weight_slots(checkpoint.spec))
    assert_holds(checkpoint, tiny.build(family).weights)
    checkpoint.source.close()


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_weights_open_as_they_are(tmp_path: Path, dtype: str) -> None:
    path = tiny.write_folder(tiny.build("llama"), tmp_path / "half", dtype=dtype)
    checkpoint = open_checkpoint(path)
    assert {tensor.storage for tensor in checkpoint.tensors} == {dtype}
    checkpoint.source.close()


def test_a_folder_of_links_opens_as_hub_caches_need(folder: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in folder.iterdir():
        (linked / path.name).symlink_to(path)
    checkpoint = open_checkpoint(linked)
    assert_holds(checkpoint, tiny.build("llama").weights)
    checkpoint.source.close()


@pytest.mark.parametrize(
    "name",
    ["config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json"],
)
@pytest.mark.parametrize("form", ["", "-sharded"])
def test_a_link_whose_target_is_gone_is_an_error_and_not_absent(
    tiny_folder: TinyFolder, tmp_path: Path, form: str, name: str
) -> None:
    path = shutil.copytree(tiny_folder("llama" + form), tmp_path / "hub")
    if form == "" and name.endswith("index.json"):
        (path / "model.safetensors").unlink()
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to("../../blobs/0a1b")
    with pytest.raises(CheckpointError, match=f'"{name}" must be a regular .* link to ".*0a1b", w'):
        open_checkpoint(path)


def test_a_shard_whose_target_is_gone_is_an_error_that_names_it(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    shard.symlink_to("../../blobs/0a1b")
    with pytest.raises(CheckpointError, match=f'"{shard.name}" must be a regular file, but is a l'):
        open_checkpoint(sharded)


def test_a_folder_that_is_a_link_to_nothing_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "model").symlink_to("gone")
    with pytest.raises(CheckpointError, match=r'"model" must be .* a link to "gone", which does n'):
        open_checkpoint(tmp_path / "model")


def test_end_tokens_and_sampling_defaults_of_the_generation_config_count(folder: Path) -> None:
    edit(
        folder / "generation_config.json",
        eos_token_id=[2, 7], temperature=0.6, top_k=20, top_p=0.9, min_p=None,
        repetition_penalty=1.1, max_new_tokens=5,
    )  # fmt: skip
    checkpoint = open_checkpoint(folder)
    assert checkpoint.text.end_token_ids >= {2, 7}
    assert checkpoint.generation == {
        "temperature": 0.6, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.1,
    }  # fmt: skip
    checkpoint.source.close()


def test_a_generation_config_that_does_not_sample_means_greedy(folder: Path) -> None:
    edit(folder / "generation_config.json", do_sample=False, temperature=0.6)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.generation == {"temperature": 0.0}
    checkpoint.source.close()


@pytest.mark.parametrize("word", [{}, {"do_sample": None}, {"do_sample": True}])
def test_a_generation_config_that_does_not_refuse_to_sample_is_not_greedy(
    folder: Path, word: dict[str, Any]
) -> None:
    edit(folder / "generation_config.json", temperature=0.6, **word)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.generation == {"temperature": 0.6}
    checkpoint.source.close()


def test_a_generation_config_has_the_ranges_of_a_stream(folder: Path) -> None:
    for name in SAMPLING:
        allowed = OPTIONS[name].kind
        if not isinstance(allowed, Number):
            continue
        lowest = math.nextafter(allowed.low, math.inf) if allowed.is_open else allowed.low
        for good in (lowest, allowed.high):
            edit(folder / "generation_config.json", **{name: good})
            checkpoint = open_checkpoint(folder)
            assert checkpoint.generation[name] == good
            checkpoint.source.close()
        for bad in (math.nextafter(lowest, -math.inf), math.nextafter(allowed.high, math.inf)):
            edit(folder / "generation_config.json", **{name: bad})
            with pytest.warns(UserWarning, match=f"`{name}` must be a number in"):
                checkpoint = open_checkpoint(folder)
            assert checkpoint.generation.get(name, allowed.high) in allowed
            checkpoint.source.close()
        edit(folder / "generation_config.json", **{name: None})


def test_a_folder_without_tokenizer_ends_on_the_ids_that_its_configs_name(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    edit(folder / "config.json", eos_token_id=3)
    edit(folder / "generation_config.json", eos_token_id=[2, 7])
    checkpoint = open_checkpoint(folder)
    assert checkpoint.text.tokenizer is None
    assert checkpoint.text.end_token_ids == {2, 3, 7}
    checkpoint.source.close()


@pytest.mark.parametrize(
    ("changes", "expected", "sentence"),
    [
        ({"temperature": -1}, {}, "`temperature` must be a number in [0, 100], but is -1. It is i"),
        ({"temperature": "hot"}, {}, 'but is "hot". It is ignored.'),
        ({"temperature": 200}, {"temperature": 100.0}, "but is 200. It is read as 100."),
        ({"temperature": math.nan}, {}, "NaN is not a JSON number"),
        ({"temperature": [0.7]}, {}, "but is [0.7]. It is ignored."),
        (
            {"temperature": 0, "do_sample": True},
            {"temperature": 0.0},
            "`temperature` must be above 0 if `do_sample` is true, but is 0. Decoding will be "
            "greedy.",
        ),
        ({"top_k": -1}, {"top_k": 0}, "`top_k` must be an integer in [0, 2147483647], but is -1."),
        ({"top_k": 10**400}, {"top_k": 2**31 - 1}, "It is read as 2.14748e+09."),
        ({"top_k": 2.5}, {}, "but is 2.5. It is ignored."),
        ({"top_k": True}, {}, "but is true. It is ignored."),
        ({"top_p": 0}, {"top_p": 1e-6}, "`top_p` must be a number in (0, 1], but is 0. It is read"),
        ({"top_p": -1}, {}, "but is -1. It is ignored."),
        ({"top_p": 1.5}, {"top_p": 1.0}, "but is 1.5. It is read as 1."),
        ({"min_p": -1}, {"min_p": 0.0}, "but is -1. It is read as 0."),
        ({"min_p": True}, {}, "but is true. It is ignored."),
        ({"repetition_penalty": 0}, {}, "`repetition_penalty` must be a number in [0.01, 100], b"),
        ({"repetition_penalty": -1}, {}, "but is -1. It is ignored."),
        ({"repetition_penalty": 1e-9}, {"repetition_penalty": 0.01}, "It is read as 0.01."),
        ({"do_sample": "no"}, {}, '`do_sample` must be true or false, but is "no". It is ignored.'),
    ],
)
def test_sampling_defaults_out_of_range_cause_a_warning(
    folder: Path, changes: dict[str, Any], expected: dict[str, float], sentence: str
) -> None:
    edit(folder / "generation_config.json", **changes)
    with pytest.warns(UserWarning, match=re.escape(sentence)):
        checkpoint = open_checkpoint(folder)
    assert checkpoint.generation == expected
    assert {type(value) for value in checkpoint.generation.values()} == {
        type(value) for value in expected.values()
    }
    checkpoint.source.close()


def test_an_integer_may_have_a_point(folder: Path) -> None:
    edit(folder / "generation_config.json", top_k=20.0)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.generation == {"top_k": 20}
    assert type(checkpoint.generation["top_k"]) is int
    checkpoint.source.close()


@pytest.mark.parametrize(
    ("value", "kept", "sentence"),
    [
        (-1, set(), "`eos_token_id` must be an integer or a list of integers from 0"),
        ("x", set(), "`eos_token_id` must be an integer or a list of integers from 0"),
        (7.0, set(), "`eos_token_id` must be an integer or a list of integers from 0"),
        ([7, "x", None, True, -3], {7}, "`eos_token_id` must be an integer or a list of integers"),
        (100_000, set(), "end_token_ids should be in [0, 293), the model's vocabulary, but 100000"),
        (
            [293, 7],
            {7},
            "end_token_ids should be in [0, 293), the model's vocabulary, but 293 is",
        ),
        (10**400, set(), "`eos_token_id` must be an integer or a list of integers from 0"),
    ],
)
@pytest.mark.parametrize("has_tokenizer", [True, False])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_end_tokens_that_the_model_lacks_cause_a_warning(
    folder: Path, name: str, has_tokenizer: bool, value: Any, kept: set[int], sentence: str
) -> None:
    if not has_tokenizer:
        (folder / "tokenizer.json").unlink()
    edit(folder / "config.json", eos_token_id=2)
    edit(folder / name, eos_token_id=value)
    with pytest.warns(UserWarning, match=re.escape(sentence)):
        checkpoint = open_checkpoint(folder)
    ends = kept | ({2} if has_tokenizer or name != "config.json" else set())
    assert checkpoint.text.end_token_ids == ends
    checkpoint.source.close()


@pytest.mark.parametrize("value", [-1, 100_000, "x", [293]])
def test_a_start_token_that_the_model_lacks_causes_a_warning(folder: Path, value: Any) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["bos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    edit(folder / "config.json", bos_token_id=value)
    with pytest.warns(UserWarning, match=r"bos_token_id.* ignored\."):
        checkpoint = open_checkpoint(folder)
    assert (checkpoint.text.bos_token_id, checkpoint.text.bos_ids) == (None, [])
    checkpoint.source.close()


def save(folder: Path, weights: dict[str, Any]) -> None:
    from safetensors.numpy import save_file

    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_redundant_tensors_of_older_savers_are_not_a_mismatch(tmp_path: Path) -> None:
    path = tiny.write_folder(tiny.build("qwen2"), tmp_path / "qwen2")
    weights: dict[str, Any] = dict(tiny.build("qwen2").weights)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]  # tied
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(16, np.float32)
    save(path, weights)
    open_checkpoint(path).source.close()


def test_every_mismatch_is_listed_at_once(folder: Path) -> None:
    weights: dict[str, Any] = dict(tiny.build("llama").weights)
    del weights["model.norm.weight"]
    weights["model.layers.1.mlp.up_proj.weight"] = np.zeros((96, 160), np.float32)
    weights["model.layers.2.self_attn.q_proj.weight"] = np.zeros((96, 96), np.int64)
    weights["model.layers.0.self_attn.q_proj.bias"] = np.zeros(96, np.float32)
    save(folder, weights)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    assert str(caught.value) == (
        "load: llama does not match its own description in 4 places:\n"
        '  tensor "model.layers.1.mlp.up_proj.weight" must have shape [160, 96], '
        "but has [96, 160]\n"
        '  tensor "model.layers.2.self_attn.q_proj.weight" must be stored as one of '
        "BF16, F16, F32, but is I64\n"
        '  tensor "model.norm.weight" of shape [96] is missing\n'
        '  tensor "model.layers.0.self_attn.q_proj.bias" of shape [96] belongs to no weight of a '
        "llama decoder with 3 layers"
    )


def test_tensors_that_the_decoder_lacks_cause_a_warning(folder: Path) -> None:
    edit(folder / "config.json", num_hidden_layers=2)
    with pytest.warns(UserWarning, match="belongs to no weight") as caught:
        checkpoint = open_checkpoint(folder)
    assert str(caught[0].message) == (
        'load: llama: tensor "model.layers.2.input_layernorm.weight" of shape [96] belongs to no '
        "weight of a llama decoder with 2 layers, and the same is true of 8 more. These "
        "tensors are not read."
    )
    assert (checkpoint.spec.layers, len(checkpoint.tensors)) == (2, 21)
    checkpoint.source.close()


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.uint8])
def test_a_buffer_of_any_type_causes_a_warning(folder: Path, dtype: type) -> None:
    weights: dict[str, Any] = dict(tiny.build("llama").weights)
    weights["model.layers.0.self_attn.bias"] = np.zeros((1, 1, 4, 4), dtype)
    save(folder, weights)
    with pytest.warns(UserWarning, match=r"self_attn.bias.* belongs to no .*\. It is not read\."):
        open_checkpoint(folder).source.close()


def test_an_index_with_names_that_no_file_holds_causes_a_warning(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    shards = json.loads(index.read_text())["weight_map"]
    shard = shards["model.norm.weight"]
    edit(index, weight_map={**shards, "a.bias": shard, "b.bias": shard})
    with pytest.warns(UserWarning, match='files hold, but names "a.bias" and 1 more. The model'):
        open_checkpoint(sharded).source.close()


@pytest.mark.parametrize(
    ("field", "value", "count"),
    [
        ("vocab_size", 294, 2),
        ("hidden_size", 192, 30),
        ("intermediate_size", 161, 9),
        ("num_hidden_layers", 4, 9),
        ("num_key_value_heads", 3, 6),
        ("head_dim", 32, 12),
        ("attention_bias", True, 12),
        ("mlp_bias", True, 9),
    ],
)
def test_a_config_that_disagrees_with_its_weights_is_an_error(
    folder: Path, field: str, value: Any, count: int
) -> None:
    edit(folder / "config.json", **{field: value})
    with pytest.raises(CheckpointError, match=f"does not match its own .* in {count} places"):
        open_checkpoint(folder)


CODE_FIELDS = {
    "auto_map": {"AutoModel": "modeling_evil.Evil"},
    "custom_pipelines": {"evil": {"impl": "evil.Evil"}},
    "custom_generate": "evil.py",
    "_attn_implementation": "evil/kernels",
    "_attn_implementation_internal": "evil/kernels",
}


@pytest.mark.parametrize("field", CODE_FIELDS)
def test_a_config_that_names_code_is_refused(folder: Path, field: str) -> None:
    edit(folder / "config.json", **{field: CODE_FIELDS[field]})
    with pytest.raises(CheckpointError, match=f'must not name code to run, but has .* "{field}"'):
        open_checkpoint(folder)


def test_an_unknown_model_type_is_an_error_that_lists_the_known(folder: Path) -> None:
    edit(folder / "config.json", model_type="../evil")
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    texts = {text for family in FAMILIES.values() for text in family.text_of}
    known = ", ".join(sorted({*FAMILIES, *texts}))
    sentence = f'load: config.json has model_type "../evil"; the supported ones are {known}.'
    assert str(caught.value) == sentence


def test_a_folder_without_a_config_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config.json or a GGUF file, but does not\.$"):
        open_checkpoint(tmp_path)
    (tmp_path / "adapter_config.json").touch()
    with pytest.raises(CheckpointError, match=r"It holds a LoRA adapter: merge that into its mod"):
        open_checkpoint(tmp_path)


def test_the_current_folder_has_its_name_in_errors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=f'folder "{tmp_path.name}" must hold config.json'):
        open_checkpoint(".")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "config.json must be valid JSON"),
        (b"[]", "config.json must be a JSON object"),
        (b"\xff\xfe", "config.json must be valid JSON"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "config.json must be valid JSON"),
        (b"[" * 100_000, "config.json must be JSON, but is nested too deeply"),
        (b" " * ((1 << 20) + 1), "config.json must have at most 1048576 bytes, but has 1048577"),
        (b"{}", "`model_type` must be a string, but is missing"),
        (b'{"model_type": ["llama"]}', "`model_type` must be a string"),
    ],
)
def test_a_config_that_is_not_a_description_is_an_error(
    folder: Path, content: bytes, sentence: str
) -> None:
    (folder / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=sentence):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (
            '"vocab_size": 293',
            '"vocab_size": 7, "vocab_size": 293',
            'key "vocab_size" appears',
        ),
        ('"vocab_size": 293', '"a": {"b": 1, "b": 2}, "vocab_size": 293', 'key "b" appears twice'),
        ('"vocab_size": 293', '"a": NaN, "vocab_size": 293', "NaN is not a JSON number"),
        ('"vocab_size": 293', '"a": [-Infinity], "vocab_size": 293', "-Infinity is not a JSON nu"),
        ('"vocab_size": 293', '"a": 1e999, "vocab_size": 293', "1e999 is not a JSON number"),
    ],
)
def test_json_that_other_readers_accept_causes_a_warning(
    folder: Path, old: str, new: str, fault: str
) -> None:
    config = folder / "config.json"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    with pytest.warns(UserWarning, match=f"config.json should be strictly valid JSON, .*{fault}"):
        checkpoint = open_checkpoint(folder)
    assert checkpoint.spec.vocab_size == 293
    checkpoint.source.close()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
@pytest.mark.parametrize("field", ["rope_theta", "rms_norm_eps", "hidden_size"])
def test_a_number_that_is_read_must_be_finite(folder: Path, field: str, number: str) -> None:
    config = folder / "config.json"
    edit(config, **{field: "here"})
    config.write_text(config.read_text().replace('"here"', number))
    with (
        pytest.warns(UserWarning, match="is not a JSON number"),
        pytest.raises(CheckpointError, match=f"`{field}` must be a"),
    ):
        open_checkpoint(folder)


def test_a_config_that_is_a_pipe_is_an_error_and_does_not_hang(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(CheckpointError, match=r'"config.json" must be a regular file'):
        open_checkpoint(folder)


def test_a_folder_with_pickled_weights_only_is_an_error_that_says_why(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"must hold model.safetensors or .*, but does not.$"):
        open_checkpoint(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(CheckpointError, match="Pickled weights are never read: convert them to"):
        open_checkpoint(folder)


def test_a_truncated_shard_is_an_error_that_names_it(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(CheckpointError, match=f"tensor .* of {shard.name} must end at byte"):
        open_checkpoint(sharded)


def test_a_missing_shard_is_an_error_that_names_it(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=f'file "{shard.name}" cannot be opened: No such'):
        open_checkpoint(sharded)


@pytest.mark.parametrize(
    "name",
    [
        "../model.safetensors", "/etc/passwd", "sub/model.safetensors", "..", ".", "", 7, None,
        "model\0.safetensors", "..\\model.safetensors", "pytorch_model.bin",
    ],
)  # fmt: skip
def test_a_shard_outside_the_folder_is_refused(sharded: Path, name: Any) -> None:
    index = sharded / "model.safetensors.index.json"
    shards = json.loads(index.read_text())["weight_map"]
    edit(index, weight_map={**shards, "model.norm.weight": name})
    with pytest.raises(CheckpointError, match="a shard must be the plain name of a safetensors"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("value", [None, {}, [], "model.safetensors"])
def test_an_index_without_a_map_is_an_error(sharded: Path, value: Any) -> None:
    edit(sharded / "model.safetensors.index.json", weight_map=value)
    with pytest.raises(CheckpointError, match="`weight_map` must name the file of each tensor"):
        open_checkpoint(sharded)


def test_an_index_with_too_many_shards_is_an_error(sharded: Path) -> None:
    shards = {f"t{i}": f"m{i}.safetensors" for i in range(1025)}
    edit(sharded / "model.safetensors.index.json", weight_map=shards)
    with pytest.raises(CheckpointError, match="at most 1024 shards, but names 1025"):
        open_checkpoint(sharded)


def test_an_index_that_disagrees_with_its_shards_is_an_error(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    shards = json.loads(index.read_text())["weight_map"]
    elsewhere = next(shard for shard in shards.values() if shard != shards["model.norm.weight"])
    edit(index, weight_map={**shards, "model.norm.weight": elsewhere})
    with pytest.raises(CheckpointError, match=r'says that tensor "model.norm.weight" is in'):
        open_checkpoint(sharded)


def test_a_tensor_in_two_shards_is_an_error(sharded: Path) -> None:
    first, second, _ = sorted(sharded.glob("*.safetensors"))
    shutil.copy(first, second)
    with pytest.raises(CheckpointError, match="is both in"):
        open_checkpoint(sharded)


def test_a_failed_opening_leaves_no_file_open(sharded: Path) -> None:
    edit(sharded / "config.json", num_hidden_layers=4)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(CheckpointError):
            open_checkpoint(sharded)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
