"""Granite 3 with experts: Granite's scales; a softmax over the chosen experts."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.experts import COUNTS, GGUF_FIELDS, SHARED_SIZE
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.granite_parts import (
    GGUF_SCALES,
    SHARED_FUSED,
    SHARED_NAMES,
    granite_experts,
    granite_experts_from_gguf,
    spec_from_config,
    spec_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES, Fused
from sinkstream.checkpoint.families.windows import no_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec


def _from_config(config: Fields) -> DecoderSpec:
    no_windows(config)
    return spec_from_config("granitemoe", config, lambda sizes: granite_experts(config))


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    return spec_from_gguf(
        "granitemoe", file, lambda sizes: granite_experts_from_gguf(file, sizes), GGUF_FIELDS
    )


_EXPERTS = "block_sparse_moe."

FAMILY = Family(
    "granitemoe",
    _from_config,
    _from_gguf,
    folder_names=FOLDER_NAMES.with_names(
        {"router": f"{_EXPERTS}router.layer.weight", **SHARED_NAMES}
    ).with_fused(
        {
            f"{_EXPERTS}input_linear.weight": Fused(("experts.*.gate", "experts.*.up")),
            f"{_EXPERTS}output_linear.weight": Fused(("experts.*.down",)),
            **SHARED_FUSED,
        }
    ),
    written=Architecture(
        "granitemoe",
        {**GGUF_SCALES, **COUNTS, **SHARED_SIZE},
        schemes=("llama3",),
        pairs_adjoin=True,
    ),
    models="Granite 3 1B-A400M, 3B-A800M",
)
