"""The style of all plots: colours that colour-blind readers can distinguish, as PNG or SVG."""

from __future__ import annotations

import math
import os
from typing import Any

from sinkstream.errors import InvalidArgument, SinkstreamError, how_to_install
from sinkstream.files import expand_home

# Okabe and Ito's colours (https://jfly.uni-koeln.de/color/), each with a line style, so that the
# lines also differ in print.
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    {"color": "#009E73", "linestyle": "-.", "marker": "^"},
    {"color": "#CC79A7", "linestyle": ":", "marker": "D"},
    {"color": "#E69F00", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": "#56B4E9", "linestyle": (0, (3, 1)), "marker": "P"},
)

SUFFIXES = (".png", ".svg")

_GREY = "#555555"


def style_of(number: int) -> dict[str, Any]:
    """Return the style of the n-th line; styles repeat after six."""
    return STYLES[number % len(STYLES)]


def check_picture(path: str | os.PathLike[str]) -> None:
    """Check that a plot can be written, before anything is measured for it.

    Raises:
        InvalidArgument: The file name ends with neither .png nor .svg, or the folder is missing.
        SinkstreamError: matplotlib is not installed.
    """
    target = expand_home(path)
    if target.suffix not in SUFFIXES:
        raise InvalidArgument(
            f'plot: `path` must end with {" or ".join(SUFFIXES)}, but is "{target.name}".',
            param="path",
        )
    if not target.absolute().parent.is_dir():
        raise InvalidArgument(
            f'plot: `path` must be in a folder that exists, but "{target.parent}" does not exist.',
            param="path",
        )
    try:
        import matplotlib.figure  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        raise SinkstreamError(
            f"plot: matplotlib must be installed, but is not. {how_to_install('plot')} installs it."
        ) from None


def new_figure(width: float = 8.0, height: float = 4.5) -> Any:
    """Return an empty figure without a window; sizes are in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def write_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure. The same figure always gives the same bytes."""
    import matplotlib as mpl

    target = expand_home(path)
    metadata = {"Date": None} if target.suffix == ".svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": "sinkstream", "svg.fonttype": "none"}):
        figure.savefig(target, dpi=150, metadata=metadata)


def thousands(axis: Any) -> None:
    """Label an axis with thousands separators: 8,192."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def log_ticks(axes: Any) -> None:
    """Label a logarithmic vertical axis with several plain numbers, however little it spans."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    axis, limits = axes.yaxis, axes.get_ylim()
    span = limits[1] / limits[0]
    if span < 10:
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    else:
        axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 3, 5) if span < 1000 else (1,)))
    axes.set_ylim(limits)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def span_a_decade(axes: Any) -> None:
    """Widen a logarithmic vertical axis to at least a decade, so that flat lines look flat."""
    low, high = axes.get_ylim()
    widen = max(1.0, math.sqrt(10 * low / high))
    axes.set_ylim(low / widen, high * widen)


def mark(axes: Any, positions: dict[int, str]) -> None:
    """Draw a labelled vertical line at each position within the plot."""
    right = axes.get_xlim()[1]
    for position, name in sorted(positions.items()):
        if position > right:
            continue
        axes.axvline(position, color=_GREY, linewidth=1, linestyle=(0, (1, 2)), zorder=0)
        axes.annotate(
            f"{name} {position:,}",
            (position, 1),
            xycoords=("data", "axes fraction"),
            xytext=(3, -3),
            textcoords="offset points",
            rotation=90,
            va="top",
            ha="left",
            fontsize="small",
            color=_GREY,
        )


def shifted(figure: Any, axes: Any, points: float) -> Any:
    """Return a transform that draws data `points` (1/72 inch) to the right of its position."""
    from matplotlib.transforms import ScaledTranslation

    return axes.transData + ScaledTranslation(points / 72, 0, figure.dpi_scale_trans)


def legend(figure: Any, *panels: Any) -> None:
    """Put one legend below the plot; a name in several panels appears once."""
    named: dict[str, Any] = {}
    for axes in panels:
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, line)
    figure.legend(
        named.values(), named.keys(), loc="outside lower center", ncols=min(3, len(named))
    )
