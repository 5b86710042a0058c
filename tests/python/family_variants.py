"""The tiny models of all families, and few of them that together have every part of a decoder.

`make test` runs what holds for every decoder with those few, `make test-full` with all.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from sinkstream.checkpoint.families import FAMILIES
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec
from tests.data import tiny
from tests.data.family_configs import FAMILY_CONFIGS
from tests.python.lanes import covering_set

CONFIGS = {**FAMILY_CONFIGS, **{name: config for name, (config, _) in tiny.CONFIGS.items()}}


def spec_of(name: str) -> DecoderSpec:
    """Return the decoder that a config describes, without the weights and files of its model."""
    config = CONFIGS[name].get("text_config", CONFIGS[name])
    config = {"rms_norm_eps": 1e-6, **config}  # which transformers adds
    return FAMILIES[config["model_type"]].spec_from_config(Fields(config, name))


def parts_of(spec: DecoderSpec) -> set[Hashable]:
    """Return what a decoder has: a value of every field, and windows in no, some or all layers.

    A number is 0, 1 or another. A family's name is no part of a decoder, only of its files.
    """
    found = {part for part in _parts(spec, "") if part[0] != ".family"}
    return found | {("windows of layers", frozenset(map(bool, spec.own_windows)))}


def _parts(value: Any, name: str) -> Iterator[tuple[str, Hashable]]:
    if is_dataclass(value):
        yield name, type(value).__name__
        for field in fields(value):
            yield from _parts(getattr(value, field.name), f"{name}.{field.name}")
    elif isinstance(value, tuple):
        yield name, min(len(value), 2)
        for one in value:
            yield from _parts(one, name) if is_dataclass(one) else ()
    elif isinstance(value, bool | str) or value is None:
        yield name, value
    else:
        yield name, value if value in (0, 1) else "another"


@cache
def covering_variants() -> frozenset[str]:
    """Return the names of few models that have every part which any of them has."""
    return frozenset(covering_set({name: parts_of(spec_of(name)) for name in CONFIGS}))
