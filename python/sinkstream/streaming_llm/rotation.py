"""Turns cached keys by a distance: the part of a rotary scheme that depends on positions only."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class KeyRotation:
    """A rotary scheme's rotation by whole positions, with the angle in float64.

    It is a pure rotation: a scheme's attention factor is in the stored keys already. Dimensions
    past the rotary ones stay as they are. The pairs are the two halves of the rotary dimensions, as
    every family has them that `families` lists.
    """

    def __init__(self, inverse_frequencies: torch.Tensor) -> None:
        # [rotary_dim / 2], radians per position; on the CPU, since not every device has float64.
        self._frequencies = inverse_frequencies.detach().to("cpu", torch.float64)
        # All layers of a model ask for the same distances, one after the other.
        self._last: dict[
            tuple[torch.device, torch.dtype, int],
            tuple[tuple[int, ...], torch.Tensor, torch.Tensor],
        ] = {}

    def partners(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what a rotation mixes: the keys, and each dimension's partner with its sign.

        Args:
            keys: [..., head_dim].

        Returns:
            Two tensors of the same shape, in float32 or wider: 16-bit keys are rounded once, after
            they were turned.
        """
        wide = keys if keys.dtype == torch.float64 else keys.float()
        pairs = len(self._frequencies)
        first, second = wide[..., :pairs], wide[..., pairs : 2 * pairs]
        rest = torch.zeros_like(wide[..., 2 * pairs :])
        return wide, torch.cat([-second, first, rest], dim=-1)

    def table(
        self, distances: Sequence[int], like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin [distances, head_dim] in the type and on the device of `like`."""
        place = like.device, like.dtype, like.shape[-1]
        wanted = tuple(distances)
        known = self._last.get(place)
        if known is None or known[0] != wanted:
            angles = torch.tensor(wanted, dtype=torch.float64)[:, None] * self._frequencies
            pairs = len(self._frequencies)
            cos = torch.ones(len(wanted), like.shape[-1], dtype=torch.float64)
            sin = torch.zeros_like(cos)
            cos[:, :pairs] = cos[:, pairs : 2 * pairs] = angles.cos()
            sin[:, :pairs] = sin[:, pairs : 2 * pairs] = angles.sin()
            known = wanted, cos.to(place[0], place[1]), sin.to(place[0], place[1])
            self._last[place] = known
        return known[1], known[2]

    def turn(self, keys: torch.Tensor, distance: int) -> torch.Tensor:
        """Return keys [..., head_dim] turned by one distance, in their own type."""
        wide, partner = self.partners(keys)
        cos, sin = self.table((distance,), wide)
        return torch.addcmul(wide * cos[0], partner, sin[0]).to(keys.dtype)
