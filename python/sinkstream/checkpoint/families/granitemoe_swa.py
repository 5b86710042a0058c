"""Granite with windows and experts: the layers of `granite_swa`, the experts of `granitemoe`."""

from __future__ import annotations

from dataclasses import replace

from sinkstream.checkpoint.families.experts import COUNTS, SHARED_SIZE
from sinkstream.checkpoint.families.family import Family
from sinkstream.checkpoint.families.granite_parts import (
    SHARED_FUSED,
    SHARED_NAMES,
    granite_experts,
    spec_from_config,
    swa_layers_from_config,
)
from sinkstream.checkpoint.families.granite_swa import FAMILY as GRANITE_SWA
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES, Fused
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec


def _from_config(config: Fields) -> DecoderSpec:
    spec = spec_from_config("granitemoe_swa", config, lambda sizes: granite_experts(config))
    return swa_layers_from_config(spec, config)


_EXPERTS = "block_sparse_moe."

FAMILY = Family(
    "granitemoe_swa",
    _from_config,
    GRANITE_SWA.spec_from_gguf,
    folder_names=FOLDER_NAMES.with_names(
        {"router": f"{_EXPERTS}router.weight", **SHARED_NAMES}
    ).with_fused(
        {
            f"{_EXPERTS}experts.gate_up_proj": Fused(("experts.*.gate", "experts.*.up")),
            f"{_EXPERTS}experts.down_proj": Fused(("experts.*.down",)),
            **SHARED_FUSED,
        }
    ),
    written=replace(
        GRANITE_SWA.written, fields={**GRANITE_SWA.written.fields, **COUNTS, **SHARED_SIZE}
    ),
    architectures=(),
    models="Granite 4.5 with experts",
)
