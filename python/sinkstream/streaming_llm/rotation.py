"""Rotates cached keys by a distance: the position-dependent part of a rotary scheme."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class KeyRotation:
    """The rotation of a rotary scheme by an integer distance, with float64 angles.

    It is a pure rotation: the stored keys already include a scheme's attention factor. Dimensions
    past the rotary ones do not change. The two halves of the rotary dimensions form pairs, as in
    all families in `families`.
    """

    def __init__(self, inverse_frequencies: torch.Tensor) -> None:
        # [rotary_dim / 2], radians per position; on the CPU, because not every device has float64.
        self._frequencies = inverse_frequencies.detach().to("cpu", torch.float64)
        # All layers of a model need the same distances, one after another.
        self._last: dict[
            tuple[torch.device, torch.dtype, int],
            tuple[tuple[int, ...], torch.Tensor, torch.Tensor],
        ] = {}

    def partners(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the operands of a rotation: the keys, and each dimension's signed partner.

        Args:
            keys: [..., head_dim].

        Returns:
            Two tensors of the same shape, in float32 or wider: 16-bit keys are rounded only once,
            after the rotation.
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
        key = like.device, like.dtype, like.shape[-1]
        wanted = tuple(distances)
        known = self._last.get(key)
        if known is None or known[0] != wanted:
            angles = torch.tensor(wanted, dtype=torch.float64)[:, None] * self._frequencies
            pairs = len(self._frequencies)
            cos = torch.ones(len(wanted), like.shape[-1], dtype=torch.float64)
            sin = torch.zeros_like(cos)
            cos[:, :pairs] = cos[:, pairs : 2 * pairs] = angles.cos()
            sin[:, :pairs] = sin[:, pairs : 2 * pairs] = angles.sin()
            known = wanted, cos.to(key[0], key[1]), sin.to(key[0], key[1])
            self._last[key] = known
        return known[1], known[2]

    def rotate(self, keys: torch.Tensor, distance: int) -> torch.Tensor:
        """Return keys [..., head_dim] rotated by one distance, in their own type."""
        wide, partner = self.partners(keys)
        cos, sin = self.table((distance,), wide)
        return torch.addcmul(wide * cos[0], partner, sin[0]).to(keys.dtype)
