"""llama.cpp through its low-level decode call: logits of the last token, no sampling."""

from __future__ import annotations

import time
from typing import Any

import llama_cpp

from peers.peer import PREFILL_CHUNK, Peer, prompt

_CONTEXT = 4352
_MOST_SEQUENCES = 32
_BATCH_CACHED = 512

_silence = llama_cpp.llama_log_callback(lambda *_: None)  # llama.cpp keeps the pointer


def _instructions() -> str:
    """Return the instruction sets that llama.cpp was compiled for and lists as available."""
    listed = llama_cpp.llama_print_system_info().decode().replace("CPU :", "")
    entries = (entry.partition("=") for entry in listed.split("|"))
    sets = [name.strip() for name, _, is_there in entries if is_there.strip() == "1"]
    return " ".join(sets)


class LlamaCpp(Peer):
    """One context for one sequence; another one for batches, created on first use."""

    def __init__(self, path: str, threads: int, *, flash: bool) -> None:
        llama_cpp.llama_log_set(_silence, None)
        llama_cpp.llama_backend_init()
        self._threads = threads
        self._flash = flash
        self._model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError("llama.cpp does not load the file")
        self._one = self._new_context(_CONTEXT, 1)
        self._held = 0  # tokens of the prompt at the start of its cache
        self._many: Any = None

    def prefill(self, tokens: int) -> float:
        self._truncate(0)
        started = time.perf_counter()
        self._read_on(tokens)
        return time.perf_counter() - started

    def decode(self, cached: int, tokens: int) -> float:
        self._truncate(cached)
        self._read_on(cached)
        self._read([100])  # its threads wake up
        self._truncate(cached)
        started = time.perf_counter()
        for i in range(tokens):
            self._read([200 + i % 200])
        seconds = (time.perf_counter() - started) / tokens
        self._truncate(cached)
        return seconds

    def batch(self, sequences: int, cached: int, tokens: int) -> float:
        if self._many is None:
            self._many = self._new_context(_BATCH_CACHED * _MOST_SEQUENCES, _MOST_SEQUENCES)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._many), True)
        for begin in range(0, cached, PREFILL_CHUNK):
            piece = prompt(cached)[begin : begin + PREFILL_CHUNK]
            self._read_rows([(token, begin + i, 0) for i, token in enumerate(piece)])
        memory = llama_cpp.llama_get_memory(self._many)
        for sequence in range(1, sequences):  # each sequence has its own cells, so this copies them
            llama_cpp.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
        self._step(sequences, cached)  # performs the copies
        started = time.perf_counter()
        for i in range(tokens):
            self._step(sequences, cached + 1 + i)
        return (time.perf_counter() - started) / tokens

    def describe(self) -> str:
        return (
            f"llama-cpp-python {llama_cpp.__version__}, flash attention "
            f"{'on' if self._flash else 'off'}, cache float16; {_instructions()}"
        )

    def _new_context(self, cells: int, sequences: int) -> Any:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = cells, PREFILL_CHUNK, PREFILL_CHUNK
        params.n_seq_max = sequences
        params.kv_unified = False  # sequences do not scan each other's cells
        params.n_threads = params.n_threads_batch = self._threads
        params.flash_attn_type = 1 if self._flash else 0
        return llama_cpp.llama_init_from_model(self._model, params)

    def _truncate(self, tokens: int) -> None:
        """Keep at most `tokens` tokens of the one sequence."""
        memory = llama_cpp.llama_get_memory(self._one)
        llama_cpp.llama_memory_seq_rm(memory, 0, tokens, -1)
        self._held = min(self._held, tokens)

    def _read_on(self, tokens: int) -> None:
        """Read the prompt from the end of the cache up to `tokens` tokens."""
        self._read(prompt(tokens)[self._held :])
        self._held = tokens

    def _read(self, ids: list[int]) -> None:
        for begin in range(0, len(ids), PREFILL_CHUNK):
            piece = ids[begin : begin + PREFILL_CHUNK]
            array = (llama_cpp.llama_token * len(piece))(*piece)
            self._run(self._one, llama_cpp.llama_batch_get_one(array, len(piece)))

    def _step(self, sequences: int, position: int) -> None:
        # Different tokens: those that are alike would choose the same experts.
        rows = [(100 + 7 * sequence, position, sequence) for sequence in range(sequences)]
        self._read_rows(rows)

    def _read_rows(self, rows: list[tuple[int, int, int]]) -> None:
        batch = llama_cpp.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (token, position, sequence) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = position == rows[-1][1]
        self._run(self._many, batch)
        llama_cpp.llama_batch_free(batch)

    def _run(self, context: Any, batch: Any) -> None:
        code = llama_cpp.llama_decode(context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        llama_cpp.llama_synchronize(context)
