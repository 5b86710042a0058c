"""OLMo 3: OLMo 2 with windows in three of four layers, whose RoPE is not scaled."""

from __future__ import annotations

from sinkstream.checkpoint.families.family import Family
from sinkstream.checkpoint.families.olmo2 import FAMILY as OLMO2
from sinkstream.checkpoint.families.olmo2 import OLMO_NAMES, from_gguf, olmo_block
from sinkstream.checkpoint.families.parts import biases_from_config, ropes_from_config
from sinkstream.checkpoint.families.sizes import (
    rms_norm_from_config,
    sizes_from_config,
)
from sinkstream.checkpoint.families.windows import periodic_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec

_BASE = 500_000.0


def _from_config(config: Fields) -> DecoderSpec:
    sizes = sizes_from_config(config)
    local, full = ropes_from_config(config, sizes, _BASE, _BASE)
    return sizes.spec(
        "olmo3",
        olmo_block(sizes, rms_norm_from_config(config), local, biases_from_config(config)),
        periodic_windows(config, 4, 4096),
        full_rope=full,
    )


FAMILY = Family(
    "olmo3",
    _from_config,
    from_gguf,
    OLMO_NAMES,
    written=OLMO2.written,
    architectures=(),
    models="OLMo 3",
)
