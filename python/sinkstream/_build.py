"""What this build is: its version, and the torch release that it was compiled against."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """Return the installed version of the package."""
    return metadata.version("sinkstream")


def check_torch_version() -> None:
    """Refuse a torch release that the core was not compiled against.

    libtorch's C++ interface is that of one release: with another, the core would crash or compute
    nonsense instead of failing to load.

    Raises:
        ImportError: The releases differ.
    """
    import torch

    from sinkstream._torch_version import BUILT_AGAINST

    running = torch.__version__.split("+")[0]
    if running != BUILT_AGAINST.split("+")[0]:
        raise ImportError(
            f"import: torch must be {BUILT_AGAINST}, which this build of sinkstream was compiled "
            f"against, but is {torch.__version__}. Reinstall sinkstream to compile it again: "
            "pip install --force-reinstall --no-deps sinkstream"
        )
