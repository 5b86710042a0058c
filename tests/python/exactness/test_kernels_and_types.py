"""Every kernel table and every cache type follows the definition, in chunks of any size."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import sinkstream
from tests.data import tiny
from tests.python.exactness.streams import reference
from tests.python.lanes import products
from tests.reference.rope import Array

SINKS, WINDOW = 3, 70  # more than a block of 64, and not a multiple of anything
CHUNKS = (1, 3, 64, 65, 100)

# Relative to each row's largest logit. The rounding of up to three layers adds up: these are about
# twice the measured errors. A key at a wrong position costs 1e-1 to 1.
TOLERANCE = {
    ("float32", "float32"): 3e-6,
    ("float32", "float16"): 2.5e-3,
    ("float32", "bfloat16"): 2.5e-2,
    ("float32", "int8"): 4e-2,
    ("bfloat16", "float32"): 3e-2,
    ("bfloat16", "bfloat16"): 4e-2,
    ("int8", "float32"): 3e-2,  # bfloat16 where weights are not quantized, as here
    ("auto", "auto"): 4e-2,
}


TABLES = ("amx", "avx512", "avx2", "generic", "reference")


@pytest.fixture(params=TABLES)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Force one kernel table; skip if this processor lacks it."""
    name = str(request.param)
    if not dict(sinkstream._core.kernel_tables()).get(name, False):
        pytest.skip(f"this processor does not support the kernel table {name}")
    monkeypatch.setenv("SINKSTREAM_KERNELS", name)
    return name


# What rounding keys and values costs this model: 0.0422 in every table, `reference` included.
ROUGHER = {("phi3", "float32", "int8"): 4.5e-2}


@cache
def definition(name: str) -> tuple[torch.Tensor, Array]:
    """Return a stream [1, tokens], and its logits as the definition gives them."""
    vocab = tiny.CONFIGS[name][0]["vocab_size"]
    ids = np.random.default_rng(5).integers(0, vocab, (1, 4 * (SINKS + WINDOW)))
    return torch.from_numpy(ids), reference(name).forward(ids[0].tolist(), SINKS, WINDOW)


@pytest.mark.parametrize(
    ("name", "dtype", "kv_dtype", "kernels"),
    products(tiny.FAMILIES, TOLERANCE, TABLES),
    indirect=["kernels"],
)
def test_stream_equals_the_definition_and_chunks_do_not_matter(
    name: str,
    dtype: str,
    kv_dtype: str,
    kernels: str,
    tiny_folder: Callable[[str], Path],
) -> None:
    ids, wanted = definition(name)
    with sinkstream.load(
        tiny_folder(name),
        dtype=dtype,
        kv_dtype=kv_dtype,
        sinks=SINKS,
        window=WINDOW,
        threads=1,
    ) as model:
        assert model.runtime["kernels"] == kernels
        whole = model.forward(ids, model.new_cache())
        difference = np.abs(whole[0].numpy() - wanted).max(axis=-1)
        worst = (difference / np.abs(wanted).max(axis=-1)).max()
        assert worst <= ROUGHER.get((name, dtype, kv_dtype), TOLERANCE[dtype, kv_dtype])
        for size in CHUNKS if kernels != "reference" else (65,):  # the reference is slow
            cache = model.new_cache()
            pieces = [model.forward(piece, cache) for piece in torch.split(ids, size, dim=1)]
            assert torch.equal(torch.cat(pieces, dim=1), whole), f"chunks of {size}"


@pytest.mark.parametrize("kv_dtype", ["float32", "float16", "bfloat16", "int8"])
def test_rows_of_a_page_that_hold_no_live_token_are_never_read(
    kv_dtype: str, tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for poison in ("0", "1"):  # with 1, rows hold NaN until they are written
        monkeypatch.setenv("SINKSTREAM_POISON_PAGES", poison)
        with sinkstream.load(
            tiny_folder("llama"), kv_dtype=kv_dtype, sinks=SINKS, window=WINDOW
        ) as model:
            cache = model.new_cache()
            ids = torch.arange(300)[None] % 293
            found.append(torch.cat([model.forward(c, cache) for c in ids.split(29, dim=1)], dim=1))
    assert torch.isfinite(found[1]).all()
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("kv_dtype", ["float16", "int8"])
def test_a_narrow_cache_gives_the_same_bits_on_any_threads_and_from_a_copy(
    kv_dtype: str, tiny_folder: Callable[[str], Path]
) -> None:
    ids = torch.arange(400)[None] * 7 % 293
    found = []
    for threads in (1, 3):
        with sinkstream.load(
            tiny_folder("llama"), kv_dtype=kv_dtype, sinks=SINKS, window=WINDOW, threads=threads
        ) as model:
            cache = model.new_cache()
            before = [model.forward(piece, cache) for piece in ids[:, :300].split(29, dim=1)]
            copied = cache.copy()
            model.forward(ids[:, :200], cache)  # must not affect the copy
            after = [model.forward(piece, copied) for piece in ids[:, 300:].split(13, dim=1)]
            found.append(torch.cat(before + after, dim=1))
            whole = model.forward(ids, model.new_cache())
            assert torch.equal(found[-1], whole)
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize(
    ("integers", "most", "storage", "kernels"),
    products([("int16", 3e-4), ("int8", 6e-2)], ["Q8_0", "Q4_0", "Q4_1"], TABLES),
    indirect=["kernels"],
)
def test_inputs_as_integers_cost_little_and_chunks_do_not_matter(
    storage: str, integers: str, most: float, kernels: str, tiny_gguf: Callable[[str, str], Path]
) -> None:
    def read(dtype: str, chunk: int) -> torch.Tensor:
        with sinkstream.load(
            tiny_gguf("llama", storage),
            dtype=dtype,
            kv_dtype="float32",
            sinks=SINKS,
            window=WINDOW,
            threads=2,
        ) as model:
            ids = torch.from_numpy(
                np.random.default_rng(6).integers(0, model.spec.vocab_size, 4 * (SINKS + WINDOW))
            )[None]
            cache = model.new_cache()
            pieces = [model.forward(piece, cache) for piece in torch.split(ids, chunk, dim=1)]
            return torch.cat(pieces, dim=1)[0]

    exact, rounded = read("float32", 1000), read(integers, 1000)
    worst = ((exact - rounded).abs().amax(-1) / exact.abs().amax(-1)).max()
    assert 0 < worst <= most  # bfloat16 inputs: 1e-2
    for chunk in (1, 65) if kernels != "reference" else (65,):
        assert torch.equal(read(integers, chunk), rounded), f"chunks of {chunk}"
