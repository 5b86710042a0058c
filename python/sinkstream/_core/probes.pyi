"""What this machine reads and multiplies at best, for benchmarks."""

def read_rate(count: int, threads: int) -> float:
    """Read `count` bytes, asking ahead in two ways; return the bytes a second of the faster."""

def sustained_read_rate(count: int, threads: int, seconds: float) -> float:
    """Read `count` bytes in the faster of two ways, for so long; return the mean bytes a second."""

class PlainReads:
    """Memory that is read whole, again and again."""

    def __init__(self, count: int) -> None:
        """Take `count` bytes, and keep them."""

    def times(self, threads: int, reads: int) -> list[float]:
        """Read all of it in the faster of two ways, so many times; return the seconds of each."""

def peak_rate(threads: int, tiles: bool = False) -> tuple[str, float]:
    """Multiply and add in registers, of vectors or tiles; return (instruction, operations a s)."""
