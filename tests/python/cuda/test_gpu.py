"""`device="cuda"`, from load to text, on an emulated GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import sinkstream
from sinkstream import devices
from sinkstream.errors import CheckpointError, InvalidArgument
from tests.data import quantized_folders, tiny
from tests.data.family_models import save_family
from tests.data.quantized_folders import Scheme

QUANTIZED = (
    Scheme("awq", group=64, model="llama-wide", ignore=("mlp.down_proj",)),
    Scheme("gptq", act_order=True, symmetric=True),
    Scheme("gptq", bits=8, group=64, act_order=True, model="llama-wide"),
    Scheme("packed", group=-1, model="llama-wide"),
    Scheme("fp8", bits=8, group=128, scale="float32", model="llama-wide"),
)
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

    @pytest.mark.parametrize("scheme", QUANTIZED, ids=lambda scheme: scheme.name)
    def test_a_quantized_folder_is_the_processors_model(
        self, scheme: Scheme, tmp_path: Path
    ) -> None:
        quantized_folders.write(scheme, tmp_path / "folder")
        ids = torch.arange(80).reshape(1, 80) % 50
        with (
            sinkstream.load(tmp_path / "folder", dtype="bfloat16", **WINDOW) as processor,
            sinkstream.load(tmp_path / "folder", device="cuda", **WINDOW) as gpu,
        ):
            expected = processor.forward(ids, processor.new_cache())
            got = gpu.forward(ids, gpu.new_cache())
            assert (got - expected).abs().max() / expected.abs().max() < BFLOAT16
            cache = gpu.new_cache()
            parts = [gpu.forward(part, cache) for part in ids.split(7, dim=1)]
            assert torch.equal(torch.cat(parts, dim=1), got)

    @pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "glm4_moe"])
    def test_experts_are_the_processors_and_do_not_depend_on_their_company(
        self, family: str, tmp_path: Path
    ) -> None:
        save_family(family, tmp_path, num_hidden_layers=2)
        ids = torch.arange(60).reshape(1, 60) % 50
        options = {"max_tokens": 30, "temperature": 0.8, "seed": 3, "ignore_eos": True}
        with (
            sinkstream.load(tmp_path, dtype="bfloat16", **WINDOW) as processor,
            sinkstream.load(tmp_path, device="cuda", **WINDOW) as gpu,
        ):
            expected = processor.forward(ids, processor.new_cache())
            got = gpu.forward(ids, gpu.new_cache())
            # A router near a tie may decide otherwise: tests/cpp/cuda/cuda_experts_test.cc.
            errors = (got - expected).abs().amax(-1) / expected.abs().max()
            assert (errors < BFLOAT16).float().mean() > 0.8
            cache = gpu.new_cache()
            parts = [gpu.forward(part, cache) for part in ids.split(7, dim=1)]
            assert torch.equal(torch.cat(parts, dim=1), got)
            alone = gpu.stream([1, 2, 3], **options).result()
            together = [gpu.stream(prompt, **options) for prompt in ([1, 2, 3], [9] * 30)]
            assert together[0].result().token_ids == alone.token_ids
            together[1].result()

    def test_experts_without_a_kernel_are_refused_by_a_sentence(self, tmp_path: Path) -> None:
        scheme = Scheme("gptq", act_order=True, symmetric=True)
        save_family("qwen3_moe", tmp_path / "whole", num_hidden_layers=1, moe_intermediate_size=64)
        config = json.loads((tmp_path / "whole" / "config.json").read_text())
        tensors = load_file(tmp_path / "whole" / "model.safetensors")
        weights = {name: tensor.numpy() for name, tensor in tensors.items()}
        whole = tiny.TinyModel("qwen3_moe", config, weights, None)
        quantized_folders.write(scheme, tmp_path / "folder", whole)
        with pytest.raises(CheckpointError) as caught:
            sinkstream.load(tmp_path / "folder", device="cuda", **WINDOW)
        assert str(caught.value) == (
            'load: weight "layers.0.experts.0.gate" must keep the order of its columns on a GPU, '
            'but is sorted by its groups. Use `device="cpu"`.'
        )

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

    def test_guesses_change_no_reply(self, llama: Path) -> None:
        kinds: list[dict[str, Any]] = [
            {"temperature": 0},
            {"temperature": 1.2, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
            {"temperature": 0.8, "logprobs": 2},  # the host samples
        ]

        def bits(stream: sinkstream.Stream) -> tuple[list[int], list[float], int]:
            result = stream.result()
            return list(result.token_ids), list(result.logprobs), result.stats.evicted_tokens

        def replies(speculation: int | None) -> tuple[list[Any], dict[str, Any]]:
            with sinkstream.load(llama, device="cuda", speculation=speculation, **WINDOW) as model:
                found = []
                for kind in kinds:
                    options = {**kind, "max_tokens": 40, "ignore_eos": True}
                    for _ in range(2):  # the second time, everything was said before
                        together = [model.stream([i, 2, 3], seed=i, **options) for i in (1, 5)]
                        found += [bits(stream) for stream in together]
                    with model.session() as session:
                        found.append(bits(session.stream([5, 2, 3], seed=5, **options)))
                        with session.fork() as fork:
                            found.append(bits(fork.stream([5, 2, 3], seed=5, **options)))
                        found.append(bits(session.stream([5, 2, 3], seed=5, **options)))
                return found, model.stats()

        expected, none = replies(0)
        found, some = replies(20)
        assert found == expected
        assert none["draft_tokens"] == replies(None)[1]["draft_tokens"] == 0
        assert some["draft_tokens"] > some["accepted_tokens"] > 100
        assert some["steps"] < none["steps"]

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
