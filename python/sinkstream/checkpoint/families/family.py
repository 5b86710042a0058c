"""A model family: how its descriptions become a `DecoderSpec`, and where its tensors are.

What the families share is here, in `sizes.py` and in `windows.py`; each family's own file holds
only what is specific to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES, GGUF_NAMES, WeightNames
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class GgufDescription:
    """Everything in a GGUF file that describes the decoder."""

    metadata: Fields
    """The fields with the architecture's prefix."""
    tensors: frozenset[str]
    """Names. GGUF has no fields for biases and ties: the presence of a tensor decides."""
    tokens: int
    """Size of the file's vocabulary list; 0 if it has none."""
    rope_divisors: tuple[float, ...] | None
    """The numbers of `rope_freqs.weight`, or of `rope_factors_short.weight`."""
    long_divisors: tuple[float, ...] | None = None
    """The numbers of `rope_factors_long.weight`."""


@dataclass(frozen=True, slots=True)
class Family:
    """One family."""

    name: str
    """As `model_type` in config.json."""
    spec_from_config: Callable[[Fields], DecoderSpec]
    spec_from_gguf: Callable[[GgufDescription], DecoderSpec]
    folder_names: WeightNames = FOLDER_NAMES
    gguf_names: WeightNames = GGUF_NAMES
    xielu: tuple[str, ...] = field(default=(), kw_only=True)
    """The tensors of a folder's layer that hold the numbers of its activation: `Dense.xielu`."""
    written: Architecture = field(kw_only=True)
    """What `sinkstream quantize` makes of a folder."""
    architectures: tuple[str, ...] | None = field(default=None, kw_only=True)
    """Its names in GGUF files; None: the one it is written as. Empty if another family reads its
    files."""
    models: str = field(kw_only=True)
    """The models, as their publishers call them, separated by commas."""
    text_of: tuple[str, ...] = field(default=(), kw_only=True)
    """Model types of texts in larger models that are decoders of this family."""
    notes: str = field(default="", kw_only=True)
    """What else a user should know, in sentences: which of the models load from one format only, or
    not at all."""

    @property
    def gguf_architectures(self) -> tuple[str, ...]:
        """Return its names in GGUF files."""
        return (self.written.name,) if self.architectures is None else self.architectures
