"""ALiBi: how much each head's scores decrease per token of distance."""

from __future__ import annotations

import math


def alibi_slopes(heads: int, most: float = 8.0) -> tuple[float, ...]:
    """Return each head's slope (ALiBi, section 3).

    With n heads, a power of two, they are 2^(-most · i / n) for i from 1 to n. Any further heads
    have the slopes in between: every other slope of twice as many heads.

    Args:
        heads: The number of heads.
        most: The negative exponent of the last slope.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-most * i / power) for i in range(1, power + 1)]
    between = [2.0 ** (-most * i / (2 * power)) for i in range(1, 2 * power, 2)]
    return (*slopes, *between)[:heads]


def rounded_slopes(heads: int) -> list[float]:
    """Return each head's slope in bfloat16, as Falcon was trained with them."""
    parts = [math.frexp(slope) for slope in alibi_slopes(heads)]
    return [math.ldexp(round(mantissa * 256), exponent - 8) for mantissa, exponent in parts]
