"""Random decoders, with any combination of features, follow the definition far past the window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sinkstream import _core
from sinkstream.checkpoint.spec import NO_ROPE, Attention, Block, Recurrent
from tests.data.random_specs import load_spec, random_spec, random_weights
from tests.reference.decoder import Decoder

SEEDS = range(48)
TOLERANCE = 1e-4  # relative to a text's largest logit


def sizes(seed: int) -> tuple[int, int, list[int]]:
    """Return S, W and the ids of a text of more than ten windows."""
    draw = np.random.default_rng([seed, 2])
    sinks, window = seed % 5, int(draw.integers(1, 9))
    vocab = random_spec(seed).vocab_size
    return sinks, window, draw.integers(0, vocab, 10 * window + sinks + 5).tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_decoder_follows_the_definition(seed: int, tmp_path: Path) -> None:
    spec, (sinks, window, ids) = random_spec(seed), sizes(seed)
    weights = random_weights(spec, seed)
    expected = Decoder(spec, weights).forward(ids, sinks, window)
    options = {"dtype": "float32", "kv_dtype": "float32", "threads": 1, "max_sequences": 1}
    with load_spec(spec, weights, tmp_path / "w", sinks=sinks, window=window, **options) as model:
        for chunk in (1, 7, len(ids)):
            cache = model.new_cache()
            parts = [model.forward(part[None], cache)[0] for part in torch.tensor(ids).split(chunk)]
            error = np.abs(torch.cat(parts).numpy() - expected).max()
            assert error <= TOLERANCE * np.abs(expected).max(), (sinks, window, chunk, spec)


def shapes(seed: int) -> set[tuple[int, int, int]]:
    """Return the different sizes of heads of a decoder's layers."""
    spec = random_spec(seed)
    return {(each.heads, each.kv_heads, each.head_dim) for each in spec.attentions}


DIFFERENT = [seed for seed in SEEDS if len(shapes(seed)) > 1][:3]


@pytest.mark.parametrize("kernels", [name for name, _ in _core.kernel_tables()])
@pytest.mark.parametrize("seed", DIFFERENT)
def test_layers_with_heads_of_their_own_follow_the_definition_in_every_table(
    seed: int, kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not dict(_core.kernel_tables())[kernels]:
        pytest.skip(f"this processor does not support the kernel table {kernels}")
    monkeypatch.setenv("SINKSTREAM_KERNELS", kernels)
    spec, (sinks, window, ids) = random_spec(seed), sizes(seed)
    weights = random_weights(spec, seed)
    expected = Decoder(spec, weights).forward(ids, sinks, window)
    options = {"dtype": "float32", "kv_dtype": "float32", "threads": 2, "max_sequences": 1}
    with load_spec(spec, weights, tmp_path / "w", sinks=sinks, window=window, **options) as model:
        found = []
        for chunk in (1, 7, len(ids)):
            cache = model.new_cache()
            parts = [model.forward(part[None], cache)[0] for part in torch.tensor(ids).split(chunk)]
            found.append(torch.cat(parts))
        half = len(ids) // 2
        cache = model.new_cache()
        begin = model.forward(torch.tensor(ids[:half])[None], cache)[0]
        fork = cache.copy()
        model.forward(torch.tensor(ids[:half])[None], cache)  # leaves the copy as it is
        found.append(torch.cat([begin, model.forward(torch.tensor(ids[half:])[None], fork)[0]]))
    for logits in found:
        assert torch.equal(logits, found[0])
        error = np.abs(logits.numpy() - expected).max()
        assert error <= TOLERANCE * np.abs(expected).max()


def _attention(**fields: Any) -> Callable[[Block], Block]:
    def change(block: Block) -> Block:
        is_other = isinstance(block.mixer, Recurrent)
        return block if is_other else replace(block, mixer=replace(block.mixer, **fields))

    return change


def _recurrent(**fields: Any) -> Callable[[Block], Block]:
    def change(block: Block) -> Block:
        is_this = isinstance(block.mixer, Recurrent)
        return replace(block, mixer=replace(block.mixer, **fields)) if is_this else block

    return change


def _mlp(**fields: Any) -> Callable[[Block], Block]:
    def change(block: Block) -> Block:
        mlp, experts = replace(block.mlp, **fields), block.experts
        found = mlp if experts is None else replace(experts, expert=mlp)
        return replace(block, feed_forward=found)

    return change


def _experts(**fields: Any) -> Callable[[Block], Block]:
    def change(block: Block) -> Block:
        experts = block.experts
        return block if experts is None else replace(block, feed_forward=replace(experts, **fields))

    return change


def _block(**fields: Any) -> Callable[[Block], Block]:
    return lambda block: replace(block, **fields)


def _norm(**fields: Any) -> Callable[[Block], Block]:
    return lambda block: replace(block, norm=replace(block.norm, **fields))


def _rope(**fields: Any) -> Callable[[Block], Block]:
    def change(block: Block) -> Block:
        if not isinstance(block.mixer, Attention):
            return block
        return _attention(rope=replace(block.mixer.rope, **fields))(block)

    return change


def _xielu(block: Block) -> Block:
    numbers = (0.3, 0.3, 0.5, -1e-3) if block.mlp.xielu else ()
    return _mlp(xielu=numbers)(block)


def _rotated_norms_first(block: Block) -> Block:
    is_after = isinstance(block.mixer, Attention) and block.mixer.qk_norm == "rotated_head"
    return _attention(qk_norm="head")(block) if is_after else block


MISTAKES: dict[str, Callable[[Block], Block]] = {
    "not rotated": _attention(rope=NO_ROPE),
    "other pairs": _rope(pairing="half"),
    "attention factor": _rope(attention_factor=1.0),
    "window": _attention(window=0),
    "soft-cap": _attention(soft_cap=0.0),
    "slopes": _attention(slopes=()),
    "no norm of queries and keys": _attention(qk_norm="none"),
    "biases of q, k, v": _attention(qkv_bias=False),
    "bias of the output": _attention(output_bias=False),
    "clip": _attention(clip=0.0),
    "temperature": _attention(temperature=0.0),
    "temperature length": _attention(temperature_length=1),
    "silu": _mlp(activation="silu"),
    "gelu's approximation": _mlp(activation="gelu"),
    "no gate": _mlp(gated=False),
    "biases of the MLP": _mlp(bias=False),
    "clamped": _mlp(activation="silu"),
    "xIELU's numbers": _xielu,
    "norms before the rotation": _rotated_norms_first,
    "sink logits": _attention(sink_logits=False),
    "bias of the convolution": _recurrent(conv_bias=False),
    "biases around the convolution": _recurrent(bias=False),
    "softmax over all experts": _experts(score="softmax"),
    "bias of the router": _experts(router_bias=False),
    "bias of the choice": _experts(choice_bias=False),
    "a scale of each expert": _experts(expert_scale=False),
    "groups of experts": _experts(groups=1, chosen_groups=1),
    "the two best of a group": _experts(group_score="largest"),
    "normalized weights": _experts(normalize=False),
    "scale of the weights": _experts(weight_scale=1.0),
    "close logits": _experts(jitter=10.0),
    "the shared expert": _experts(shared_size=0),
    "the gate of the shared expert": _experts(shared_gate=False),
    "RMS norm": _norm(kind="rms"),
    "bias of norms": _norm(bias=False),
    "attention's norm": _block(attention_norm=False),
    "the MLP's norm": _block(mlp_norm=False),
    "attention's post-norm": _block(attention_post_norm=False),
    "the MLP's post-norm": _block(mlp_post_norm=False),
    "one after the other": _block(parallel=False),
    "residual scale": _block(residual_scale=1.0),
}
"""Each takes a feature from a block; the block still has all the weights that are left."""


@pytest.mark.parametrize("name", MISTAKES)
def test_the_definition_without_a_feature_is_far_off(name: str) -> None:
    """So the test above covers the feature: a model that ignores it cannot pass."""
    change = MISTAKES[name]
    worst = 0.0
    for seed in SEEDS:
        spec, (sinks, window, ids) = random_spec(seed), sizes(seed)
        wrong = replace(spec, blocks=tuple(change(block) for block in spec.blocks))
        if wrong == spec:
            continue
        weights = random_weights(spec, seed)
        expected = Decoder(spec, weights).forward(ids[:60], sinks, window)
        found = Decoder(wrong, weights).forward(ids[:60], sinks, window)
        worst = np.abs(found - expected).max() / np.abs(expected).max()
        if worst > 10 * TOLERANCE:
            return
    pytest.fail(f"no decoder shows it: {worst}")
