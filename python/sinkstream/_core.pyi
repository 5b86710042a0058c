"""The native core. Private: `load`, `Model` and `Stream` are what a program uses."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from sinkstream.params import StreamRequest

FinishReason = Literal["stop", "stop_string", "length", "cancelled", "error"]

# text, ids, logprobs, characters of each token, alternatives of each token (empty where none were
# asked for), and marks: (kind, tokens of the batch before it, count).
Batch = tuple[
    str,
    list[int],
    list[float],
    list[int],
    list[tuple[tuple[int, float], ...]],
    list[tuple[str, int, int]],
]

# step, begin, end of the forward, end, sequences that decoded, prompt tokens; times in seconds of
# the clock of time.monotonic.
Step = tuple[int, float, float, float, int, int]

def kernel_refusals() -> dict[str, str]:
    """Say by name why the system withholds a kernel table that the processor could run."""

def kernel_tables() -> list[tuple[str, bool]]:
    """List (name, supported here) of every kernel table of this build, best first."""

def read_rate(count: int, threads: int) -> float:
    """Read `count` bytes of memory and return bytes a second: what bounds a token's forward."""

def usable_threads() -> int:
    """Count the cores that the affinity mask and the CPU quota allow."""

def process_logits(
    logits: Sequence[float],
    *,
    counts: Sequence[tuple[int, int]] = ...,
    bias: Sequence[tuple[int, float]] = ...,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    temperature: float = 1.0,
    table: str = "",
) -> list[float]:
    """Apply bias, penalties and temperature to one row of logits, as a stream does."""

def kept_tokens(
    logits: Sequence[float],
    *,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    table: str = "",
) -> list[int]:
    """List the ids that top-k, then top-p, then min-p leave to be drawn."""

class TokenTable:
    """The bytes of every token."""

    def __init__(
        self, pieces: Sequence[bytes], special: Sequence[int], strip_leading_space: bool
    ) -> None: ...

class TokenStream:
    """What one sequence produces, for one consumer."""

    def take(self) -> Batch | None:
        """Wait for the next batch; None at the end."""

    def cancel(self) -> None: ...
    def close(self) -> None: ...
    def rethrow(self) -> None:
        """Raise the error that ended the stream, if one did."""

    def stats(self) -> dict[str, Any]: ...
    @property
    def finish_reason(self) -> FinishReason | None: ...
    @property
    def phase(self) -> str: ...

class ModelBuilder:
    """A model's description and weights, on their way in."""

    def __init__(self, spec: Mapping[str, Any]) -> None: ...
    def declare(self, slot: str, storage: str, rows: int, cols: int) -> None: ...
    def allocate(self) -> None: ...
    def write(self, slot: str, source: bytes, rows: int) -> None:
        """Pack the next `rows` rows of a weight from bytes as they lie in the file."""

class ForwardCache:
    """Keys and values for `Model.forward`."""

    @property
    def batch(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def live(self) -> int: ...
    @property
    def evicted(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def evict_for_space(self, n: int) -> None: ...
    def restart(self) -> None: ...
    def jump(self, index: int) -> None: ...

class Model:
    """Weights, threads, kernels, pages and the engine."""

    def __init__(
        self,
        builder: ModelBuilder,
        options: Mapping[str, Any],
        tokens: TokenTable | None,
        end_token_ids: Sequence[int],
    ) -> None: ...
    def close(self) -> None: ...
    def forward(self, ids: torch.Tensor, cache: ForwardCache | None) -> torch.Tensor: ...
    def new_cache(self, batch: int, sinks: int, window: int) -> ForwardCache: ...
    def copy_of(self, cache: ForwardCache) -> ForwardCache: ...
    def evict_range(self, cache: ForwardCache, start: int, end: int) -> None: ...
    def submit(self, request: StreamRequest) -> TokenStream: ...
    def stats(self) -> dict[str, Any]: ...
    def steps(self, begin: int) -> list[Step]: ...
    @property
    def served_by(self) -> list[tuple[str, str]]: ...
    @property
    def kernels(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def kv_dtype(self) -> str: ...
    @property
    def prefill_chunk(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def weight_bytes_per_token(self) -> int: ...
    @property
    def scratch_bytes(self) -> int: ...
    @property
    def cache_bytes(self) -> int: ...
    @property
    def bytes_per_token(self) -> int: ...
    @property
    def bytes_per_sequence(self) -> int: ...
