"""Keys rotate by integer distances with float64 angles, and are otherwise unchanged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sinkstream.streaming_llm.rotation import KeyRotation
from tests.reference.rope import Rope

FREQUENCIES = 10_000.0 ** (-np.arange(0, 16, 2) / 16)


@pytest.mark.parametrize("distance", [0, 1, 999, 1_000_000, 10_000_007])
@pytest.mark.parametrize("head_dim", [16, 20, 64])
def test_keys_turn_as_the_definition_says_at_any_distance(distance: int, head_dim: int) -> None:
    keys = torch.randn(2, 3, 5, head_dim, generator=torch.Generator().manual_seed(distance))
    rotated = KeyRotation(torch.from_numpy(FREQUENCIES)).rotate(keys, distance)
    rows = keys.double().numpy().reshape(-1, 1, head_dim)
    expected = Rope(FREQUENCIES).rotate(rows, [distance] * len(rows)).reshape(keys.shape)
    np.testing.assert_allclose(rotated, expected, rtol=0, atol=1e-6)
    assert torch.equal(rotated[..., 16:], keys[..., 16:])  # past the rotary dimensions


def test_angles_are_computed_once_for_all_layers_and_anew_for_another_type() -> None:
    rotation = KeyRotation(torch.from_numpy(FREQUENCIES))
    single, double = torch.zeros(16), torch.zeros(16, dtype=torch.float64)
    first = rotation.table([7, 9], single)
    assert rotation.table([7, 9], single)[0] is first[0]
    assert rotation.table([7, 9], double)[0].dtype == torch.float64
    assert rotation.table([7, 9], single)[0] is first[0]
    assert not torch.equal(rotation.table([7, 8], single)[0], first[0])


def test_16_bit_keys_are_rounded_once() -> None:
    keys = torch.randn(1, 1, 9, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    rotated = KeyRotation(torch.from_numpy(FREQUENCIES)).rotate(keys, 12_345)
    exact = KeyRotation(torch.from_numpy(FREQUENCIES)).rotate(keys.double(), 12_345)
    assert rotated.dtype == torch.bfloat16
    assert torch.equal(rotated, exact.bfloat16())
