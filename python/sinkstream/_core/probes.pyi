"""Memory bandwidth and peak arithmetic of this machine, for benchmarks."""

def read_rate(count: int, threads: int) -> float:
    """Read `count` bytes with two prefetch patterns; return the faster one's bytes per second."""

def sustained_read_rate(count: int, threads: int, seconds: float) -> float:
    """Read `count` bytes repeatedly for `seconds`; return the mean bytes per second."""

class PlainReads:
    """Memory that is read repeatedly."""

    def __init__(self, count: int) -> None:
        """Allocate `count` bytes."""

    def times(self, threads: int, reads: int) -> list[float]:
        """Read all of it `reads` times; return the seconds of each read."""

def peak_rate(threads: int, tiles: bool = False) -> tuple[str, float]:
    """Multiply and add in registers; return (instruction, operations per second)."""
