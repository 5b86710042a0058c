"""Decode and prefill beside llama.cpp: the same file, the same threads, alternating in one run.

    python tests/bench/llama_cpp_bench.py --threads 2 --rounds 5

llama.cpp is driven through its low-level decode call, with flash attention on and off; the better
counts. Both sides compute logits of the last token only and draw none, on our side through the
decoder alone for prefill and through a stream, sampling included, for decode. Needs the extra
`bench`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from machine import report

PREFILL = 512
DECODE = 64


class LlamaCpp:
    """One llama.cpp context."""

    def __init__(self, path: str, threads: int, *, flash: bool) -> None:
        import llama_cpp

        self._lib: Any = llama_cpp
        llama_cpp.llama_log_set(_silent(llama_cpp), None)
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 2048, PREFILL, PREFILL
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = 1 if flash else 0
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._memory = llama_cpp.llama_get_memory(self._context)

    def decode(self, ids: list[int]) -> None:
        """Append ids and compute the last one's logits."""
        array = (self._lib.llama_token * len(ids))(*ids)
        code = self._lib.llama_decode(self._context, self._lib.llama_batch_get_one(array, len(ids)))
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        self._lib.llama_synchronize(self._context)

    def prefill_rate(self, ids: list[int]) -> float:
        """Return tokens per second of reading ids from the start."""
        self._lib.llama_memory_clear(self._memory, True)
        started = time.perf_counter()
        self.decode(ids)
        return len(ids) / (time.perf_counter() - started)

    def decode_rate(self, cached: int) -> float:
        """Return tokens per second of single tokens behind `cached` ones."""
        self._lib.llama_memory_clear(self._memory, True)
        for begin in range(0, cached, PREFILL):
            self.decode([100 + i % 400 for i in range(begin, min(begin + PREFILL, cached))])
        started = time.perf_counter()
        for i in range(DECODE):
            self.decode([200 + i])
        return DECODE / (time.perf_counter() - started)


_kept: list[Any] = []


def _silent(llama_cpp: Any) -> Any:
    callback = llama_cpp.llama_log_callback(lambda *_: None)
    _kept.append(callback)  # llama.cpp keeps the pointer for ever
    return callback


class Sinkstream:
    """The same figures from a model of ours."""

    def __init__(self, path: str | None, threads: int) -> None:
        import sinkstream

        self._token = sinkstream.Token
        self._prefill = sinkstream.Prefill
        self.model = sinkstream.load(path, threads=threads, window=2040, max_sequences=1)
        self.evicted = 0  # a figure beside llama.cpp's must not come from a shorter cache

    def prefill_rate(self, ids: list[int]) -> float:
        """Return tokens per second from the call to the first token, that token included."""
        started = time.perf_counter()
        with self.model.stream(ids, max_tokens=1, temperature=0) as stream:
            stream.result()
        return len(ids) / (time.perf_counter() - started)

    def decode_rate(self, cached: int) -> float:
        """Return tokens per second of a stream behind `cached` tokens."""
        ids = [100 + i % 400 for i in range(cached)]
        stamps = []
        with self.model.stream(
            ids, max_tokens=DECODE + 1, ignore_eos=True, temperature=0
        ) as stream:
            for event in stream.events():
                if isinstance(event, self._token):
                    stamps.append(time.perf_counter())
        self.evicted += stream.stats.evicted_tokens
        return DECODE / (stamps[-1] - stamps[0])


def main() -> None:
    """Alternate and report medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--path", default=None)
    args = parser.parse_args()
    ours = Sinkstream(args.path, args.threads)
    theirs = {
        f"llama.cpp flash {'on' if flash else 'off'}": LlamaCpp(
            ours.model.path, args.threads, flash=flash
        )
        for flash in (True, False)
    }
    ids = [100 + i % 400 for i in range(PREFILL)]
    measures = {
        "prefill 512": lambda side: side.prefill_rate(ids),
        "decode at 16": lambda side: side.decode_rate(16),
        "decode at 1024": lambda side: side.decode_rate(1024),
    }
    sides: dict[str, Any] = {"sinkstream": ours, **theirs}
    rates: dict[str, dict[str, list[float]]] = {m: {s: [] for s in sides} for m in measures}
    for _ in range(args.rounds):
        for measure, run in measures.items():
            for side, subject in sides.items():
                rates[measure][side].append(run(subject))
    figures: dict[str, Any] = {"threads": args.threads, "rounds": args.rounds}
    for measure, by_side in rates.items():
        medians = {side: statistics.median(values) for side, values in by_side.items()}
        best = max((side for side in theirs), key=lambda side: medians[side])
        ratios = [a / b for a, b in zip(by_side["sinkstream"], by_side[best], strict=True)]
        figures[measure] = {
            **{f"{side}, tokens/s": round(value, 1) for side, value in medians.items()},
            f"ratio to {best}": round(statistics.median(ratios), 2),
            "ratio's range": [round(min(ratios), 2), round(max(ratios), 2)],
        }
    figures["evicted_tokens"] = ours.evicted
    ours.model.close()
    report("llama_cpp", figures)


if __name__ == "__main__":
    main()
