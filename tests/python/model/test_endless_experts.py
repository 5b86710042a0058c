"""100,000 tokens through experts, trained sinks, convolutions: 20 are as defined, no growth."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import sinkstream
from tests.data.family_models import save_family
from tests.data.slot_weights import decoder_of
from tests.reference.decoder import Decoder
from tests.reference.window import live_indices

pytestmark = pytest.mark.slow
TOKENS, CHECKED, CHUNK = 100_000, 20, 500
SINKS, WINDOW = 4, 60  # longer than the windows that layers have of their own
TOLERANCE = 1e-4  # relative to the largest logit of a token


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def logits_at(decoder: Decoder, ids: list[int], t: int) -> np.ndarray:
    """Return the definition's logits of token `t`.

    A layer's output depends on the sinks and on as many tokens as its window has, so those of the
    last token on all layers' windows, one after the other: tokens before these are left out.
    """
    begin = max(SINKS, t - decoder.layers * WINDOW)
    read = [*ids[:SINKS], *ids[begin : t + 1]]
    kept = [decoder.kept(layer, SINKS, WINDOW) for layer in range(decoder.layers)]
    seen = [[live_indices(i, s, w) for i in range(len(read))] for s, w in kept]
    found: np.ndarray = decoder.forward_seen(read, seen)[-1]
    return found


@pytest.mark.parametrize("name", ["gpt_oss", "granite_swa", "granitemoe_swa", "lfm2"])
def test_the_last_of_100000_tokens_is_as_the_definition_says(name: str, tmp_path: Path) -> None:
    save_family(name, tmp_path)
    decoder = decoder_of(tmp_path)
    draw = np.random.default_rng(7)
    ids = draw.integers(3, decoder.spec.vocab_size, TOKENS).tolist()
    checked = {*draw.integers(WINDOW, TOKENS, CHECKED - 1).tolist(), TOKENS - 1}
    assert len(checked) == CHECKED
    sizes = []
    with sinkstream.load(
        tmp_path, dtype="float32", kv_dtype="float32", sinks=SINKS, window=WINDOW, threads=1
    ) as model:
        cache = model.new_cache()
        for begin in range(0, TOKENS, CHUNK):
            logits = model.forward(torch.tensor([ids[begin : begin + CHUNK]]), cache)[0]
            for t in range(begin, begin + CHUNK):
                if t in checked:
                    expected = logits_at(decoder, ids, t)
                    error = np.abs(logits[t - begin].numpy() - expected).max()
                    assert error <= TOLERANCE * np.abs(expected).max(), t
            sizes.append(cache.nbytes)
        assert len(set(sizes)) == 1
        assert cache.length == TOKENS
        assert cache.live == max(sum(decoder.kept(i, SINKS, WINDOW)) for i in range(4))
        del logits
        with model.stream(
            ids[:CHUNK], max_tokens=TOKENS // 10, ignore_eos=True, temperature=1.0, seed=1
        ) as stream:
            begun, grown = 0, 0
            for count, _ in enumerate(stream.events()):
                if count == TOKENS // 50:
                    begun = resident_bytes()
            grown = resident_bytes() - begun
        assert grown <= 0, "the process has grown"
