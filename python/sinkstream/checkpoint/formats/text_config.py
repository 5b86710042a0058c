"""Finds the decoder's description in a config.json; in a larger model's, `text_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinkstream.checkpoint.fields import Fields

_TEXT, _TIE = "text_config", "tie_word_embeddings"


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The parts of a config.json that describe the decoder and its text."""

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

    In a larger model, its own `tie_word_embeddings` decides, as in transformers, rather than the
    one in `text_config`. If it is absent, transformers has a default for each model, all of which
    agree with the tensors.

    Raises:
        CheckpointError: The larger model's fields are of the wrong type, or it is not a decoder.
    """
    whole = Fields(config, where)
    states_tie = whole.has(_TIE)
    text = whole.group(_TEXT)
    if text is None:
        return DecoderConfig(whole, whole, config, states_tie)
    whole.must_be("is_encoder_decoder", False)
    if whole.value("model_type") == "paligemma":  # whose config.json does not say it
        reason = "Tokens of a prompt attend to later ones in this model."
        raise whole.error("model_type", "be that of a causal model", remedy=reason)
    nested = {**config[_TEXT], _TIE: whole.flag(_TIE, True)}
    decoder = Fields(
        {f"{_TEXT}.{name}": value for name, value in nested.items()}, where, f"{_TEXT}."
    )
    return DecoderConfig(whole, decoder, {**nested, **config}, states_tie)
