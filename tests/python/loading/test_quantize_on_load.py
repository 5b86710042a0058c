"""`load(quantize=…)` gives the model that ggml's quantizer would give, and says what it leaves."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, get_args

import gguf
import libgguf
import numpy as np
import numpy.typing as npt
import pytest

import sinkstream
from sinkstream import _core
from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.loading.open_checkpoint import Quantize, as_quantization, rounded
from tests.data import tiny
from tests.data.family_models import save_family
from tests.python.lanes import products

STORAGES = (
    "Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "MXFP4",
    "Q3_K", "Q2_K",
)  # fmt: skip
OF_GGUF_PACKAGE = ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")  # another program that rounds to them
SEARCHED = ("q6_k", "q5_k", "q4_k", "q3_k", "q2_k", "iq4_nl", "iq4_xs")
WIDTHS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
Floats = npt.NDArray[np.float32]


def numbers(kind: str) -> Floats:
    """Return rows with all that rounding can meet: ties, zeros, equal extremes, tiny numbers.

    A group of 16 or 32 numbers may be far smaller than the others of its block.
    """
    draw = np.random.Generator(np.random.PCG64(7))
    rows = draw.normal(size=(600, 512)) * 10.0 ** draw.integers(-9, 4, (600, 1))
    rows[0] = 0
    rows[1] = -0.0
    rows[2, ::2] = 3  # the largest magnitude has both signs
    rows[2, 1::2] = -3
    rows[3] = np.arange(512) - 31.5  # half-way cases
    rows[4] = np.tile([127, -127, 0.5, -0.5, 1.5, -1.5, 63.5, 0.49999997], 64)
    rows[5] = 1e-30  # a scale that float16 cannot hold
    rows[6] = -5
    rows[7] = np.where(draw.random(512) < 0.5, 0.0, -0.0)
    rows[8:200] *= 10.0 ** np.repeat(draw.integers(-12, 3, (192, 32)), 16, axis=1)
    rows[200:300] = draw.standard_t(2, (100, 512))  # heavy tails
    rows[300:330] = np.abs(rows[300:330])  # no minimum
    rows[330:360] = -np.abs(rows[330:360])
    rows[360:370, 5:] = 0
    rows[370:390] *= 1e-16  # they vanish
    rows = rows.clip(-6e4, 6e4)  # the range of float16
    return rows.astype(np.float32).astype(WIDTHS[kind] if kind == "F16" else np.float32)


def stored(rows: Floats, kind: str) -> tuple[list[bytes], Floats]:
    """Return the rows as a file stores them, and the numbers that it then holds."""
    if kind == "BF16":
        high = (rows.view(np.uint32) >> 16).astype("<u2")
        return [row.tobytes() for row in high], (high.astype(np.uint32) << 16).view(np.float32)
    kept = rows.astype(WIDTHS[kind])
    return [row.tobytes() for row in kept], kept.astype(np.float32)


@pytest.mark.parametrize("kind", WIDTHS)
@pytest.mark.parametrize("storage", STORAGES)
def test_blocks_are_ggmls_bit_for_bit(storage: str, kind: str) -> None:
    rows, values = stored(numbers(kind).astype(np.float32), kind)
    found = _core.quantize_rows(kind, b"".join(rows), 512, storage)
    assert found is not None
    number = gguf.GGMLQuantizationType[storage]
    blocks = np.frombuffer(found, np.uint8).reshape(len(rows), -1)
    expected = np.asarray(libgguf.quantize_rows(values, int(number))).view(np.uint8)
    np.testing.assert_array_equal(blocks, expected.reshape(blocks.shape))
    if storage not in OF_GGUF_PACKAGE:
        return
    other = gguf.quants.quantize(values, number).reshape(blocks.shape)
    agree = (values != 0).all(axis=1)  # it may take a zero of the other sign
    np.testing.assert_array_equal(blocks[agree], other[agree])


def test_every_native_type_has_a_name() -> None:
    assert sorted(_core.quantizable()) == sorted(STORAGES)
    assert {as_quantization(name) for name in map(str.lower, STORAGES)} == set(STORAGES)
    assert set(get_args(Quantize)) == {"int8", "int4", *map(str.lower, STORAGES)}
    assert as_quantization("int8") == as_quantization("Q8_0") == "Q8_0"
    assert as_quantization("int4") == "Q4_0"
    assert as_quantization(None) is None


def blocks_of(path: Path, quantize: str | None) -> dict[str, str]:
    """Return how each weight of a checkpoint is kept."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = open_tensors(path)
        opened.source.close()
        return {t.slot.name: t.kept for t in rounded(opened, as_quantization(quantize)).tensors}


def test_routers_are_not_quantized(tmp_path: Path) -> None:
    save_family("qwen2_moe", tmp_path, num_hidden_layers=2)
    kept = blocks_of(tmp_path, "q8_0")
    routers = [name for name in kept if name.endswith((".router", ".shared_gate"))]
    assert len(routers) == 4
    assert {kept[name] for name in routers} == {"F32"}
    assert kept["layers.1.shared.gate"] == kept["layers.1.experts.0.gate"] == "Q8_0"


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("source", ["folder", "F16", "BF16", "F32"])
def test_the_embedding_and_the_output_get_eight_bits(
    tiny_folder: Callable[[str], Path],
    tiny_gguf: Callable[[str, str], Path],
    source: str,
    storage: str,
) -> None:
    name = tiny.model_for(storage)
    path = tiny_folder(name) if source == "folder" else tiny_gguf(name, source)
    before, kept = blocks_of(path, None), blocks_of(path, storage.lower())
    of_layers = {"q", "k", "v", "o", "gate", "up", "down"}
    matrices = [name for name in kept if name.rpartition(".")[2] in of_layers]
    assert len(matrices) == 7 * tiny.CONFIGS[name][0]["num_hidden_layers"]
    assert {kept[name] for name in matrices} == {storage}
    assert kept["embedding"] == kept["output"] == "Q8_0"
    rest = kept.keys() - {*matrices, "embedding", "output"}
    assert rest
    assert all(kept[name] == before[name] for name in rest)


@pytest.mark.parametrize(
    ("wanted", "used"),
    [
        ("q6_k", "Q8_0"), ("q5_k", "Q5_1"), ("q4_k", "Q5_0"), ("q3_k", "Q4_0"), ("q2_k", "Q4_0"),
        ("iq4_xs", "IQ4_NL"),
    ],
)  # fmt: skip
def test_rows_that_are_not_whole_blocks_of_256_get_a_type_with_smaller_ones(
    tiny_folder: Callable[[str], Path], wanted: str, used: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = open_tensors(tiny_folder("llama"))
        opened.source.close()
        tensors = rounded(opened, as_quantization(wanted)).tensors
    assert {t.kept for t in tensors if t.slot.name.endswith((".q", ".down"))} == {used}


def test_a_rounded_model_is_the_quantized_file(
    tiny_gguf: Callable[[str, str], Path],
) -> None:
    with (
        sinkstream.load(tiny_gguf("llama", "F32"), quantize="int8", window=60) as rounded_model,
        sinkstream.load(tiny_gguf("llama", "Q8_0"), window=60) as quantized,
    ):
        assert rounded_model._native.fingerprint() == quantized._native.fingerprint()
        assert rounded_model.capacity == quantized.capacity
        assert rounded_model.runtime["quantize"] == "Q8_0"
        assert quantized.runtime["quantize"] is None


def test_every_quantization_is_another_model(tiny_folder: Callable[[str], Path]) -> None:
    seen: dict[str, int] = {}
    names: tuple[Any, ...] = (
        None, "int8", "q6_k", "q5_1", "q5_k", "q4_1", "q4_k", "mxfp4", "q3_k", "q2_k"
    )  # fmt: skip
    for name in names:
        folder = tiny_folder("llama-wide")
        with sinkstream.load(folder, quantize=name, window=60, threads=2) as model:
            seen[model._native.fingerprint()] = model.capacity.weight_bytes
            assert len(model.generate([1, 2, 3], max_tokens=3, ignore_eos=True).token_ids) == 3
    sizes = list(seen.values())
    assert len(seen) == len(names)
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(names)


def test_threads_and_kernels_do_not_change_what_is_rounded(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fingerprint(threads: int) -> str:
        with sinkstream.load(tiny_folder("llama"), quantize="int4", threads=threads) as model:
            return model._native.fingerprint()

    found = fingerprint(1)
    assert fingerprint(2) == found
    monkeypatch.setenv("SINKSTREAM_KERNELS", "generic")
    assert fingerprint(1) == found


def test_a_session_of_one_quantization_is_refused_under_another(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, file = tiny_folder("llama"), tmp_path / "talk.session"
    with sinkstream.load(folder, quantize="int8", window=60) as model:
        with model.session() as session:
            session.stream([1, 2, 3], max_tokens=2, ignore_eos=True).result()
            session.save(file)
        model.load_session(file).close()
    with (
        sinkstream.load(folder, quantize="int4", window=60) as model,
        pytest.raises(sinkstream.SinkstreamError, match="fingerprint is"),
    ):
        model.load_session(file)


@pytest.mark.parametrize(
    ("value", "error"), [("q9_9", ValueError), ("", ValueError), (8, TypeError)]
)
def test_an_unknown_name_lists_all(
    tiny_folder: Callable[[str], Path], value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="load: `quantize` must be") as caught:
        sinkstream.load(tiny_folder("llama"), quantize=value)
    if error is ValueError:
        names = ", ".join(f'"{name}"' for name in sorted(get_args(Quantize)))
        assert f'must be one of {names}, but is "{value}".' in str(caught.value)


def test_a_file_that_is_quantized_stays_as_it_is(tiny_gguf: Callable[[str, str], Path]) -> None:
    path = tiny_gguf("llama", "Q4_1")
    with (
        pytest.warns(UserWarning, match="`quantize` applies to") as caught,
        sinkstream.load(path, quantize="int8") as model,
    ):
        rounded_print = model._native.fingerprint()
    assert [str(warning.message) for warning in caught] == [
        "load: `quantize` applies to 16-bit and 32-bit matrices, but "
        '"token_embd.weight" (Q4_1) and 22 more are already quantized in the file and will '
        "not be quantized again."
    ]
    with sinkstream.load(path) as model:
        assert model._native.fingerprint() == rounded_print


def test_rows_that_are_not_whole_blocks_stay_as_they_are(
    tiny_folder: Callable[[str], Path],
) -> None:
    with pytest.warns(UserWarning, match="must have a multiple of 32 columns to be quantized"):
        sinkstream.load(tiny_folder("qwen3"), quantize="int4").close()


TOO_LARGE = [np.nan, np.inf, -np.inf, 1e31, 3e38]  # for every type


@pytest.mark.parametrize(
    ("quantize", "value"),
    [
        *products(("int8", "int4", "q5_1", *SEARCHED), [*TOO_LARGE, 1e20, 9e8], together=1),
        *product(["mxfp4"], TOO_LARGE),
    ],
)
def test_a_number_without_a_code_is_an_error_that_names_its_row(
    tmp_path: Path, quantize: Any, value: float
) -> None:
    model = tiny.build("llama-wide")
    model.weights["model.layers.1.mlp.up_proj.weight"][37, 5] = value
    folder = tiny.write_folder(model, tmp_path / "damaged")
    with pytest.raises(sinkstream.CheckpointError) as caught:
        sinkstream.load(folder, quantize=quantize)
    kind = as_quantization(quantize)
    assert str(caught.value) == (
        'load: weight "layers.1.up" must hold finite numbers within the range of '
        f"{kind} to be rounded to it, but row 37 does not."
    )
    sinkstream.load(folder).close()
