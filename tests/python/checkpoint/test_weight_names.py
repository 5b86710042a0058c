"""Where a family says its weights are: prefixes, constants, and tensors that are not read."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sinkstream
from sinkstream import CheckpointError
from sinkstream.checkpoint.families import FAMILIES, llama
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES, Fused
from sinkstream.checkpoint.open_tensors import open_tensors
from tests.data import tiny

Rename = Callable[[str], str]
NORMS = ("attention_norm", "mlp_norm", "final_norm")


def fingerprint(path: Path) -> str:
    """Return a digest of every packed weight."""
    with sinkstream.load(path, window=100) as model:
        return model._native.fingerprint()


def sentences(path: Path) -> list[str]:
    """Open a folder and return its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        open_tensors(path).source.close()
    return [str(warning.message) for warning in caught]


def write(
    folder: Path,
    rename: Rename = lambda name: name,
    others: dict[str, tuple[int, ...]] | None = None,
) -> Path:
    """Write a tiny llama with other names, and with other tensors."""
    model = tiny.build("llama")
    weights = {rename(name): weight for name, weight in model.weights.items()}
    weights |= {name: np.zeros(shape, np.float32) for name, shape in (others or {}).items()}
    return tiny.write_folder(replace(model, weights=weights), folder)


def in_language_model(name: str) -> str:
    return name.replace("model.", "model.language_model.", 1)


def below_language_model(name: str) -> str:
    return f"language_model.{name}"


def in_text_model(name: str) -> str:
    return name.replace("model.", "model.text_model.", 1)


@pytest.mark.parametrize("rename", [in_language_model, below_language_model, in_text_model])
def test_a_decoder_inside_a_larger_model_is_found(
    rename: Rename, tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    assert fingerprint(write(tmp_path / "m", rename)) == fingerprint(tiny_folder("llama"))


def test_errors_have_the_names_of_the_checkpoint(tmp_path: Path) -> None:
    def without_a_norm(name: str) -> str:
        return (
            below_language_model(name) if name != "model.layers.1.input_layernorm.weight" else "x"
        )

    with pytest.raises(
        CheckpointError, match=r'"language_model.model.layers.1.input_layernorm.weight" of .* missi'
    ):
        open_tensors(write(tmp_path / "m", without_a_norm))


def test_without_any_decoder_errors_have_the_usual_names(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r'"model.embed_tokens.weight" of .* is missing'):
        open_tensors(write(tmp_path / "m", lambda name: f"other.{name}"))


def test_a_tied_pair_inside_a_larger_model_may_lack_the_embedding(tmp_path: Path) -> None:
    model = tiny.build("qwen2")
    weights = {below_language_model(name): weight for name, weight in model.weights.items()}
    head = weights.pop("language_model.model.embed_tokens.weight")
    weights["language_model.lm_head.weight"] = head
    folder = tiny.write_folder(replace(model, weights=weights), tmp_path / "m")
    assert fingerprint(folder) == fingerprint(tiny.write_folder(model, tmp_path / "plain"))


def test_fused_tensors_have_the_prefix_too(tmp_path: Path) -> None:
    model = tiny.build("phi3")
    weights = {in_language_model(name): weight for name, weight in model.weights.items()}
    folder = tiny.write_folder(replace(model, weights=weights), tmp_path / "m")
    assert fingerprint(folder) == fingerprint(tiny.write_folder(model, tmp_path / "plain"))


def test_tensors_for_images_and_sound_cause_one_warning(tmp_path: Path) -> None:
    others = {"vision_tower.layers.0.q.weight": (4, 4), "audio_tower.conv.bias": (4,),
              "model.image_newline": (4,), "multi_modal_projector.norm.weight": (4,)}  # fmt: skip
    (found,) = sentences(write(tmp_path / "m", below_language_model, others))
    assert " and 3 more are for images or sound and are not read. The model takes" in found
    one = {"model.visual.norm.weight": (4,)}
    assert sentences(write(tmp_path / "one", in_language_model, one)) == [
        'load: one: tensor "model.visual.norm.weight" is for images or sound and is not read. '
        "The model takes only text."
    ]


def test_a_name_that_only_begins_like_another_part_is_not_ignored(tmp_path: Path) -> None:
    (found,) = sentences(write(tmp_path / "m", others={"visuals.weight": (4,)}))
    assert '"visuals.weight" of shape [4] belongs to no weight' in found


@pytest.mark.parametrize(
    "name", ["mtp.layers.0.q_proj.weight", "model.layers.0.self_attn.rotary_emb.inv_freq",
             "model.layers.2.nextn.norm.weight"]
)  # fmt: skip
def test_tensors_without_use_are_ignored_in_silence(name: str, tmp_path: Path) -> None:
    assert sentences(write(tmp_path / "m", others={name: (4,)})) == []


def test_a_family_may_ignore_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "m", others={"model.layers.1.attention.masked_bias": (1,)})
    assert "belongs to no weight" in sentences(folder)[0]
    names = replace(FOLDER_NAMES, unused=(*FOLDER_NAMES.unused, "*.attention.masked_bias"))
    monkeypatch.setitem(FAMILIES, "llama", replace(llama.FAMILY, folder_names=names))
    assert sentences(folder) == []


def test_a_pattern_never_hides_a_tensor_that_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_folder: Callable[[str], Path]
) -> None:
    names = replace(FOLDER_NAMES, unused=("*",), other_parts=("*",))
    expected = fingerprint(tiny_folder("llama"))
    monkeypatch.setitem(FAMILIES, "llama", replace(llama.FAMILY, folder_names=names))
    assert fingerprint(tiny_folder("llama")) == expected


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_norms_that_are_stored_without_their_one(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.build("llama")
    less, whole = dict(model.weights), dict(model.weights)
    for name, weight in model.weights.items():
        if "norm" in name:
            less[name] = np.round(weight * 64) / 64 - 1  # exact in all three
            whole[name] = less[name] + 1
    plain = tiny.write_folder(replace(model, weights=whole), tmp_path / "plain", dtype=dtype)
    expected = fingerprint(plain)
    stored = tiny.write_folder(replace(model, weights=less), tmp_path / "less", dtype=dtype)
    names = FOLDER_NAMES.with_added(1.0, NORMS)
    monkeypatch.setitem(FAMILIES, "llama", replace(llama.FAMILY, folder_names=names))
    assert fingerprint(stored) == expected
    assert fingerprint(plain) != expected


def test_constants_of_several_kinds_are_kept() -> None:
    names = FOLDER_NAMES.with_added(1.0, NORMS).with_added(0.5, ["q_norm"])
    assert [names.added_to(slot) for slot in ("layers.3.mlp_norm", "final_norm")] == [1.0, 1.0]
    assert [names.added_to(slot) for slot in ("layers.3.q_norm", "layers.3.q")] == [0.5, 0.0]


def test_fused_tensors_of_two_calls_are_kept() -> None:
    names = FOLDER_NAMES.with_fused({"a.weight": Fused(("q", "k", "v"))})
    names = names.with_fused({"b.weight": Fused(("gate", "up"))})
    assert set(names.fused) - set(FOLDER_NAMES.fused) == {"a.weight", "b.weight"}
    assert names.tensor("layers.2.k") == "model.layers.2.a.weight[k]"


@pytest.mark.parametrize("slot", ["layers.0.shared.gate", "other_bias"])
def test_a_weight_that_a_family_does_not_have_is_named(slot: str) -> None:
    with pytest.raises(CheckpointError, match=f'but "{slot}" is none'):
        FOLDER_NAMES.tensor(slot)
