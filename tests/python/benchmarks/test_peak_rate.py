"""`_core.probes.peak_rate`: the instructions of the loop that prompts are compared with."""

from __future__ import annotations

import pytest

import sinkstream
from sinkstream import _core

HAS_TILES = dict(_core.kernel_tables()).get("amx", False)


def test_any_processor_has_vectors() -> None:
    instruction, rate = _core.probes.peak_rate(1)
    assert "bits" in instruction
    assert rate > 1e7


@pytest.mark.skipif(HAS_TILES, reason="this processor has tiles")
def test_missing_tiles_are_refused() -> None:
    with pytest.raises(ValueError, match="`tiles` must be False") as caught:
        _core.probes.peak_rate(1, tiles=True)
    assert isinstance(caught.value, sinkstream.InvalidArgument)
    assert caught.value.param == "tiles"


@pytest.mark.skipif(not HAS_TILES, reason="this processor has no tiles")
def test_tiles_multiply_faster_than_vectors() -> None:
    instruction, rate = _core.probes.peak_rate(1, tiles=True)
    assert instruction.startswith("tdpbf16ps")
    assert rate > _core.probes.peak_rate(1)[1]
