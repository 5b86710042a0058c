"""The native core. Private: programs use `load`, `Model` and `Stream`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from sinkstream._core import probes as probes
from sinkstream._core import testing as testing
from sinkstream.streams.batch import Batch

FinishReason = Literal["stop", "stop_string", "length", "timeout", "cancelled", "error"]
Phase = Literal["waiting", "prefill", "decode", "parked", "finished"]

# step, begin, end of the forward pass, end, sequences that decoded, prompt tokens, free pages;
# times in seconds, by time.monotonic.
Step = tuple[int, float, float, float, int, int, int]

# A request has entered a phase: request, time, phase, finish reason, prompt tokens, tokens
# generated so far.
PhaseChange = tuple[int, float, Phase, FinishReason | None, int, int]

def kernel_refusals() -> dict[str, str]:
    """Say why the system withholds kernel tables that the CPU could run, by table."""

def kernel_tables() -> list[tuple[str, bool]]:
    """List (name, supported here) of every kernel table of this build, best first."""

def find_gpu(library: str) -> dict[str, Any]:
    """Describe the GPU for the CUDA kernels in `library`, or say why there is none."""

def usable_threads() -> int:
    """Count the logical CPUs that the affinity mask and the CPU quota allow."""

def storages() -> dict[str, tuple[int, int]]:
    """Return the numbers in a block, and its bytes, for each number format of files by name."""

def quantizable() -> list[str]:
    """List the number formats that weights can be rounded to as they are read."""

def quantize_rows(from_storage: str, rows: bytes, cols: int, to_storage: str) -> bytes | None:
    """Round rows of 16- or 32-bit numbers to one of `quantizable`, as loading does.

    None if a number is NaN, infinite or too large. Other threads run meanwhile.
    """

def read_texts(encoded: bytes, begin: int, count: int) -> tuple[list[str], int]:
    """Read at most `count` strings as GGUF writes them, up to the first incomplete one.

    Also returns the offset after them.
    """

def split_pairs(texts: list[str]) -> list[tuple[str, str]]:
    """Split each string at its first space."""

def ranked_merges(
    tokens: list[str], ordinary: list[int], scores: list[float], limit: int
) -> list[tuple[str, str]] | None:
    """List every split of a token into two tokens, all of them with ids in `ordinary`, best first.

    The score of the whole ranks them, then the length of the left part, then the id of the whole.
    Returns None if there are more than `limit`.
    """

def byte_level_bytes(tokens: list[str]) -> list[bytes]:
    """List the bytes of tokens in GPT-2's alphabet; for other tokens, their UTF-8."""

class TokenTable:
    """The bytes of every token."""

    def __init__(
        self, pieces: Sequence[bytes], special: Sequence[int], strip_leading_space: bool
    ) -> None: ...

class CompiledGrammar:
    """A grammar that any number of replies may follow."""

class GrammarVocabulary:
    """The tokens of a model, as llguidance needs them."""

    def __init__(
        self,
        functions: Mapping[str, int],
        tokens: TokenTable,
        vocab_size: int,
        end_token_ids: Sequence[int],
    ) -> None: ...
    def compile(self, option: str, text: str) -> CompiledGrammar:
        """Compile a grammar; `option` says what it is written in: schema, regex or grammar."""

def grammar_functions() -> list[str]:
    """List the functions of llguidance that a vocabulary needs."""

class LoopBell:
    """Wakes one event loop through a descriptor, which is readable from a ring to `clear`."""

    def __init__(self) -> None: ...
    def fileno(self) -> int: ...
    def clear(self) -> None: ...

def request_options() -> list[str]:
    """List the options that are read from a request, by name."""

class _Request(Protocol):
    """What `submit` reads; request/stream_request.py documents the fields."""

    @property
    def prompt(self) -> list[int]: ...
    @property
    def options(self) -> dict[str, Any]: ...
    @property
    def grammar(self) -> CompiledGrammar | None: ...
    @property
    def sinks(self) -> int | None: ...
    @property
    def continues_text(self) -> bool: ...
    @property
    def cache_salt(self) -> str: ...
    @property
    def called_at(self) -> float: ...

class TokenStream:
    """The output of one sequence, for one consumer."""

    def take(self) -> Batch | None:
        """Wait for the next batch; None at the end."""

    @property
    def is_ready(self) -> bool:
        """Whether `take` would return immediately."""

    def ring_when_ready(self, bell: LoopBell) -> bool:
        """Ring the bell once when `is_ready` becomes true; return False if it already is."""

    def cancel(self) -> None: ...
    def close(self) -> None: ...
    def rethrow(self) -> None:
        """Raise the error that ended the stream, if any."""

    def stats(self) -> dict[str, Any]: ...
    @property
    def finish_reason(self) -> FinishReason | None: ...
    @property
    def phase(self) -> Phase: ...
    @property
    def request_id(self) -> int: ...

UNDONE_TOKENS: int
MAX_GRAMMAR_BYTES: int
"""How many tokens back every turn of a session can be undone."""

class Session:
    """A conversation that keeps its cache."""

    def close(self) -> None: ...
    def stats(self) -> dict[str, int]: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def sinks(self) -> int: ...
    @property
    def window(self) -> int: ...

def weight_slots(spec: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """List the name, rows and columns of every weight that a decoder needs, in loading order.

    A vector has one column.
    """

def split_row_bytes(storage: str, cols: int, group: int) -> int:
    """Return the bytes of a row in memory, with scales of its own for every `group` columns."""

class ModelBuilder:
    """Collects a model's description and weights."""

    def __init__(self, spec: Mapping[str, Any]) -> None: ...
    def declare(
        self,
        weight: str,
        file: str,
        storage: str,
        rows: int,
        cols: int,
        added: float = 0.0,
        is_transposed: bool = False,
    ) -> None:
        """Declare a weight: how the file stores it, and how it is kept.

        If these differ, it is rounded as it is read, to one of `quantizable`. `added`: to each
        number of a vector. `is_transposed`: the tensor's columns follow each other, each with all
        rows.
        """

    def declare_split(
        self,
        weight: str,
        *,
        layout: str,
        storage: str,
        scale_type: str,
        group: int,
        scale_rows: int,
        has_zero_points: bool,
        zero_point: int,
        rows: int,
        cols: int,
        order: bytes,
    ) -> None:
        """Declare a matrix whose codes, scales and zero points are tensors of their own.

        `order`: int32 of its columns in the order of their groups, or empty.
        """

    def read(
        self, extents: Sequence[tuple[str, Sequence[tuple[int, int, int, int]]]], threads: int
    ) -> None:
        """Allocate memory, and start reading every weight into it in the background.

        `extents`: the name of each weight, and of each of its tensors the descriptor, the offset,
        the bytes of a run of its rows (0: they are contiguous) and the bytes from run to run.
        """

    def wait(self, at_most_s: float) -> bool:
        """Wait at most `at_most_s` for reading to end, and return whether it has."""

    @property
    def bytes_read(self) -> int: ...
    @property
    def unread(self) -> tuple[str, int, int] | None:
        """Name of the weight, first row and end row that could not be read.

        None if all were read.
        """

    def stop_reading(self) -> None:
        """Stop reading, and wait until all files are free. May be called at any time."""

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
    def fingerprint(self) -> str:
        """Return a digest of the weights and the spec, computed on first call: 32 hex digits."""

    def check_forward(self, ids: npt.NDArray[np.int64], cache: ForwardCache | None) -> None:
        """Raise what `forward` would raise for `ids` and `cache`."""

    def forward(
        self,
        ids: npt.NDArray[np.int64],
        logits: npt.NDArray[np.float32],
        cache: ForwardCache | None,
    ) -> None:
        """Write the logits of `ids` [batch, tokens] to `logits` [batch, tokens, vocab]."""

    def new_cache(self, batch: int, sinks: int, window: int) -> ForwardCache: ...
    def copy_of(self, cache: ForwardCache) -> ForwardCache: ...
    def evict_range(self, cache: ForwardCache, start: int, end: int) -> None: ...
    def submit(self, request: _Request, session: Session | None = None) -> TokenStream: ...
    def open_session(
        self, sinks: int | None, prompt: Sequence[int], cache_salt: str = ""
    ) -> Session: ...
    def fork_session(self, session: Session) -> Session: ...
    def contents_of(self, session: Session) -> dict[str, Any]: ...
    def restore_session(
        self, sinks: int, contents: Mapping[str, Any], cache_salt: str = ""
    ) -> Session: ...
    def position_of(self, session: Session) -> tuple[int, int | None, int]:
        """Return the session's length, its pending token, and its turns."""

    def go_back(self, session: Session, to: tuple[int, int | None, int], reads_again: bool) -> bool:
        """Return the session to a position; return whether that was possible."""

    def ids_of(self, session: Session, kept: bool = False) -> list[int]: ...
    def last_token(self, session: Session) -> int | None: ...
    def stats(self) -> dict[str, Any]: ...
    def steps(self, begin: int) -> list[Step]:
        """List the steps from number `begin` on that are still kept."""

    def phase_changes(self, begin: int) -> tuple[int, list[PhaseChange]]:
        """Return the same for phase changes, with the number of the first one."""

    def finish_step(self) -> None:
        """Wait until the step in progress, if there is one, has been recorded."""

    @property
    def served_by(self) -> list[tuple[str, str]]: ...
    @property
    def kernels(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def is_on_gpu(self) -> bool: ...
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
    @property
    def state_bytes_per_sequence(self) -> int: ...
    @property
    def layer_memory(self) -> list[tuple[int, int, int]]:
        """Of each layer its key heads, head_dim and bytes of state; 0 where it has none."""

    @property
    def spare_cache_bytes(self) -> int: ...
