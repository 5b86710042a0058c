"""Which layers have a window of their own, according to config.json."""

from __future__ import annotations

from collections.abc import Sequence

from sinkstream.checkpoint.families.sizes import MAX_LAYERS, MAX_LENGTH, NO_LAYER_WINDOWS
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.quoting import quoted

_FULL, _SLIDING = "full_attention", "sliding_attention"
_WINDOW, _PATTERN = "sliding_window", "sliding_window_pattern"


def no_windows(config: Fields) -> tuple[int, ...]:
    """Refuse per-layer windows, in a family whose layers have none; return no windows."""
    config.must_be(_WINDOW, None, NO_LAYER_WINDOWS)
    config.all_must_be("layer_types", _FULL, NO_LAYER_WINDOWS)
    return ()


def one_window(config: Fields, default: int | None) -> tuple[int, ...]:
    """Return each layer's own window: the same in all layers, or none at all if it is null.

    Args:
        config: The fields.
        default: The window if the field is absent; None: there is none either.
    """
    if not config.has(_WINDOW) and (default is None or config.is_null(_WINDOW)):
        config.all_must_be("layer_types", _FULL)
        return ()
    config.all_must_be("layer_types", _SLIDING)
    layers = config.whole("num_hidden_layers", 1, MAX_LAYERS)
    return (config.whole(_WINDOW, 1, MAX_LENGTH, default),) * layers


def last_windows(config: Fields) -> tuple[int, ...]:
    """Return `switched_windows` of Qwen: the layers from `max_window_layers` on have the window."""
    layers = config.whole("num_hidden_layers", 1, MAX_LAYERS)
    first = config.whole("max_window_layers", 0, MAX_LENGTH, 28)
    return switched_windows(config, [layer >= first for layer in range(layers)], 4096)


def switched_windows(
    config: Fields, slides: Sequence[bool], default: int | None
) -> tuple[int, ...]:
    """Return each layer's own window, 0 for none; empty if no layer has one.

    A switch enables a window for the layers that `layer_types` lists.

    Args:
        config: The fields.
        slides: Whether each layer has the window, if `layer_types` is absent.
        default: The window if the field is absent; None: there is none either.
    """
    is_given = config.has(_WINDOW) or not (default is None or config.is_null(_WINDOW))
    has_window = config.flag("use_sliding_window", False) and is_given
    window = config.whole(_WINDOW, 1, MAX_LENGTH, default) if has_window else 0
    listed = config.words("layer_types", len(slides), (_FULL, _SLIDING))
    if listed is None:
        windows = tuple(window if each else 0 for each in slides)
    elif window == 0 and _SLIDING in listed:
        enabled = "`use_sliding_window` is true and a window is given"
        raise config.error("layer_types", f"contain only {quoted(_FULL)} unless {enabled}")
    else:
        windows = tuple(window if kind == _SLIDING else 0 for kind in listed)
    return windows if any(windows) else ()


def listed_windows(config: Fields, slides: Sequence[bool], default: int) -> tuple[int, ...]:
    """Return each layer's own window, 0 for none; empty if no layer has one.

    Args:
        config: The fields.
        slides: Whether each layer has the window, if `layer_types` is absent.
        default: The window if the field is absent.
    """
    listed = config.words("layer_types", len(slides), (_FULL, _SLIDING))
    has_window = slides if listed is None else [kind == _SLIDING for kind in listed]
    if not any(has_window):
        return ()
    window = config.whole(_WINDOW, 1, MAX_LENGTH, default)
    return tuple(window if each else 0 for each in has_window)


def periodic_windows(config: Fields, period: int, default: int) -> tuple[int, ...]:
    """Return each layer's own window, 0 for none; empty if no layer has one.

    All layers except every N-th have the same window, unless `layer_types` says otherwise.

    Args:
        config: The fields.
        period: N, if `sliding_window_pattern` does not give it.
        default: The window if the field is absent.
    """
    layers = config.whole("num_hidden_layers", 1, MAX_LAYERS)
    kinds = _pattern(config, layers, period)
    listed = config.words("layer_types", layers, (_FULL, _SLIDING))
    if listed is not None and listed != kinds and config.has(_PATTERN):
        remedy = "Remove the one that is wrong."
        raise config.error("layer_types", f"agree with `{_PATTERN}`", remedy=remedy)
    if config.is_null(_WINDOW):
        config.all_must_be("layer_types", _FULL, "`sliding_window` is null.")
        return ()
    window = config.whole(_WINDOW, 1, MAX_LENGTH, default)
    windows = tuple(window if kind == _SLIDING else 0 for kind in listed or kinds)
    return windows if any(windows) else ()


def _pattern(config: Fields, layers: int, period: int) -> list[str]:
    """Return each layer's kind: a period, or letters such as "LLLG", after which the last is G."""
    letters = config.value(_PATTERN)
    if isinstance(letters, str) and letters and set(letters) <= set("LG"):
        found = [_SLIDING if letters[i % len(letters)] == "L" else _FULL for i in range(layers)]
        return [*found[:-1], _FULL]
    period = config.whole(_PATTERN, 0, MAX_LAYERS, period)
    return [_SLIDING if period and (i + 1) % period else _FULL for i in range(layers)]


def gguf_window(
    metadata: Fields, layers: int, period: int = 0, default: int = 0
) -> tuple[int, ...]:
    """Return each layer's own window, 0 for none; empty if no layer has one.

    Args:
        metadata: The fields.
        layers: The number of layers.
        period: N, if the file does not give it: every N-th layer has no window; 0: all have one.
        default: The window if the field is absent; 0: there is none either.
    """
    window = metadata.whole("attention.sliding_window", 0, MAX_LENGTH, default)
    name = "attention.sliding_window_pattern"
    slides = metadata.value(name)
    if not isinstance(slides, list):
        period = metadata.whole(name, 0, MAX_LAYERS, period)
        slides = [period == 0 or (i + 1) % period != 0 for i in range(layers)]
    elif len(slides) != layers or any(type(each) is not bool for each in slides):
        raise metadata.error(name, f"be an integer, or a list of {layers} booleans")
    windows = tuple(window if each else 0 for each in slides)
    return windows if any(windows) else ()
