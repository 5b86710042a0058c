"""OpenVINO GenAI with its own GGUF reader and its defaults: 8-bit activations and cache."""

from __future__ import annotations

import numpy
import openvino
import openvino_genai

from peers.peer import Peer, prompt


class OpenVino(Peer):
    """Times are the pipeline's own: to the first token, and between tokens, greedy.

    It caches prompts and skips a known prefix, so each prompt starts with another token.
    """

    def __init__(self, path: str, threads: int) -> None:
        self._prompts = 0
        self._pipeline = openvino_genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads)
        self._generate(16, 2)  # compiles

    def prefill(self, tokens: int) -> float:
        first: float = self._generate(tokens, 1).get_ttft().mean
        return first / 1000

    def decode(self, cached: int, tokens: int) -> float:
        between: float = self._generate(cached, tokens + 1).get_tpot().mean
        return between / 1000

    def describe(self) -> str:
        return f"openvino-genai {openvino_genai.__version__}, its defaults for the CPU"

    def _generate(self, tokens: int, more: int) -> openvino_genai.PerfMetrics:
        ids = numpy.array([prompt(tokens)], dtype=numpy.int64)
        ids[0, 0] = 500 + self._prompts
        self._prompts += 1
        inputs = openvino_genai.TokenizedInputs(
            openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids))
        )
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = more, True, False
        return self._pipeline.generate(inputs, config).perf_metrics
