"""Finds the decoder's description in a config.json: of a larger model it is in `text_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinkstream.checkpoint.fields import Fields

_TEXT, _TIE = "text_config", "tie_word_embeddings"


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A config.json, as far as it describes the decoder and its text."""

    whole: Fields
    """All of it."""
    decoder: Fields
    """The decoder's fields."""
    merged: Mapping[str, Any]
    """The fields of the file and, where it does not give them, the decoder's."""
    states_tie: bool
    """Whether it says that the logits use the embedding, or that they do not."""


def decoder_config(config: Mapping[str, Any], where: str) -> DecoderConfig:
    """Return the fields that describe the decoder.

    In a larger model, its own `tie_word_embeddings` decides, as in transformers, not that of
    `text_config`. Where it is absent, transformers has defaults by model, all of which agree with
    what the tensors say.

    Raises:
        CheckpointError: The larger model's fields are of the wrong type, or it is no decoder.
    """
    whole = Fields(config, where)
    states_tie = whole.has(_TIE)
    text = whole.group(_TEXT)
    if text is None:
        return DecoderConfig(whole, whole, config, states_tie)
    whole.must_be("is_encoder_decoder", False)
    nested = {**config[_TEXT], _TIE: whole.flag(_TIE, True)}
    decoder = Fields(
        {f"{_TEXT}.{name}": value for name, value in nested.items()}, where, f"{_TEXT}."
    )
    return DecoderConfig(whole, decoder, {**nested, **config}, states_tie)
