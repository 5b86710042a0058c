"""`device="cuda"`, from load to text, on an emulated GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import sinkstream
from sinkstream import devices
from sinkstream.errors import InvalidArgument

WINDOW = {"sinks": 4, "window": 20, "max_sequences": 2, "prefill_chunk": 16}
# The table of tests/cpp/kernels/tolerance.h, relative to the scale of the logits.
BFLOAT16 = 4e-2


@pytest.fixture
def llama(tiny_folder: Callable[[str], Path]) -> Path:
    return tiny_folder("llama")


def test_a_machine_without_a_gpu_says_why(llama: Path, tmp_path: Path) -> None:
    missing = tmp_path / "_cuda.so"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SINKSTREAM_CUDA_LIBRARY", str(missing))
        with pytest.raises(InvalidArgument) as caught:
            sinkstream.load(llama, device="cuda")
        assert caught.value.param == "device"
        assert str(caught.value) == (
            'load: `device` must be "cpu" on this machine, but is "cuda": this build has no CUDA '
            "kernels. Rebuild it with nvcc on PATH and SINKSTREAM_CUDA=ON."
        )
        missing.write_text("no library")
        assert "cannot be loaded" in str(devices.find_gpu())


def test_a_gpu_that_is_not_visible_is_no_gpu() -> None:
    """This build's library, on a machine with hidden GPUs."""
    if not Path(devices.cuda_library_path()).exists():
        pytest.skip("this build has no CUDA kernels")
    code = "from sinkstream import devices; print(devices.find_gpu())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": "", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() in {
        "there is no NVIDIA driver.",
        "no GPU is visible. Is CUDA_VISIBLE_DEVICES set?",
    }


@pytest.mark.usefixtures("gpu")
class TestEmulated:
    def test_the_logits_are_the_processors(self, llama: Path) -> None:
        ids = torch.arange(60).reshape(1, 60) % 50
        with (
            sinkstream.load(llama, dtype="bfloat16", **WINDOW) as processor,
            sinkstream.load(llama, device="cuda", **WINDOW) as gpu,
        ):
            assert gpu.runtime["device"] == "cuda"
            expected = processor.forward(ids, processor.new_cache())
            got = gpu.forward(ids, gpu.new_cache())
            dense = gpu.forward(ids), processor.forward(ids)
        for ours, theirs in ((got, expected), dense):
            error = (ours - theirs).abs().max() / theirs.abs().max()
            assert error < BFLOAT16

    def test_memory_of_freed_caches_is_kept_for_the_next_ones(self, llama: Path) -> None:
        with sinkstream.load(llama, device="cuda", **WINDOW) as model:
            cache = model.new_cache()
            size = cache.nbytes
            assert size == model.capacity.bytes_per_sequence
            assert model.spare_cache_bytes == 0
            copy = cache.copy()
            del cache, copy
            assert model.spare_cache_bytes == 2 * size == model.capacity.cache_bytes
            held = model.new_cache()
            assert model.spare_cache_bytes == size
            text = sinkstream.prometheus_text(model)
            assert f"sinkstream_spare_cache_bytes {size}\n" in text
        assert model.spare_cache_bytes == 0
        del held
        assert model.spare_cache_bytes == 0

    def test_streams_do_not_depend_on_their_company(self, llama: Path) -> None:
        options = {"max_tokens": 40, "temperature": 0.8, "seed": 3, "ignore_eos": True}
        with sinkstream.load(llama, device="cuda", **WINDOW) as model:
            alone = model.stream([1, 2, 3], **options).result()
            together = [model.stream(prompt, **options) for prompt in ([1, 2, 3], [9] * 30)]
            results = [stream.result() for stream in together]
        assert alone.stats.evicted_tokens > 0
        assert results[0].token_ids == alone.token_ids
        assert results[1].token_ids != alone.token_ids

    def test_a_session_moves_from_a_gpu_to_the_processor(self, llama: Path, tmp_path: Path) -> None:
        path = tmp_path / "talk.safetensors"
        with sinkstream.load(llama, device="cuda", **WINDOW) as model:
            with model.session() as session:
                session.append([5, 6, 7] * 12)
                session.save(path)
                ids = session.token_ids
                fork = session.fork()
                assert fork.token_ids == ids
            with model.load_session(path) as again:
                assert again.token_ids == ids
        with (
            sinkstream.load(llama, dtype="bfloat16", **WINDOW) as model,
            model.load_session(path) as moved,
        ):
            assert moved.token_ids == ids
            assert len(moved.stream([8], max_tokens=4, ignore_eos=True).result().token_ids) == 4

    def test_types_that_a_gpu_cannot_have_are_refused(self, llama: Path) -> None:
        with pytest.raises(InvalidArgument, match=r"`dtype` must be .* on a GPU"):
            sinkstream.load(llama, device="cuda", dtype="float32")
        with pytest.raises(InvalidArgument, match=r"`kv_dtype` must be one of .* on a GPU"):
            sinkstream.load(llama, device="cuda", kv_dtype="float32")

    def test_info_shows_the_gpu(self, llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
        from sinkstream.cli.info import info

        assert info(as_json=True, model=str(llama), device="cuda") == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["gpu"]["name"] == "an emulated GPU"
        assert facts["kernels"]["operations"]["attention"] == "cuda"
        assert facts["kernels"]["operations"]["sample"] == "cuda"
