"""Which layers have a window of their own, as config.json says it."""

from __future__ import annotations

from sinkstream.checkpoint.families.sizes import MAX_LAYERS, MAX_LENGTH
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.quoting import quoted

_NO_LAYER_WINDOWS = "Layers of this family have no windows of their own."
_FULL, _SLIDING = "full_attention", "sliding_attention"


def no_windows(config: Fields) -> tuple[int, ...]:
    """Refuse windows of single layers, in a family whose layers have none; return nothing."""
    config.must_be("sliding_window", None, _NO_LAYER_WINDOWS)
    config.all_must_be("layer_types", _FULL, _NO_LAYER_WINDOWS)
    return ()


def one_window(config: Fields, default: int | None) -> tuple[int, ...]:
    """Return each layer's own window: the same in all layers, or none at all if it is null.

    Args:
        config: The fields.
        default: The window if the field is absent; None: there is none either.
    """
    if not config.has("sliding_window") and (default is None or config.is_null("sliding_window")):
        config.all_must_be("layer_types", _FULL)
        return ()
    config.all_must_be("layer_types", _SLIDING)
    layers = config.whole("num_hidden_layers", 1, MAX_LAYERS)
    return (config.whole("sliding_window", 1, MAX_LENGTH, default),) * layers


def switched_windows(config: Fields) -> tuple[int, ...]:
    """Return each layer's own window, 0 for none; empty if no layer has one.

    Qwen's configs have a window that a switch enables for the layers from `max_window_layers` on,
    or for those that `layer_types` lists; transformers has defaults for the fields that are absent.
    """
    layers = config.whole("num_hidden_layers", 1, MAX_LAYERS)
    has_window = config.flag("use_sliding_window", False) and not config.is_null("sliding_window")
    window = config.whole("sliding_window", 1, MAX_LENGTH, 4096) if has_window else 0
    first = config.whole("max_window_layers", 0, MAX_LENGTH, 28)
    listed = config.words("layer_types", layers, (_FULL, _SLIDING))
    if listed is None:
        windows = tuple(window if layer >= first else 0 for layer in range(layers))
    elif window == 0 and _SLIDING in listed:
        rule = f"be a list of only {quoted(_FULL)} without `use_sliding_window` and a window"
        raise config.error("layer_types", rule)
    else:
        windows = tuple(window if kind == _SLIDING else 0 for kind in listed)
    return windows if any(windows) else ()


def gguf_window(metadata: Fields, layers: int) -> tuple[int, ...]:
    """Return each layer's own window: what GGUF metadata gives for all of them; empty if none."""
    window = metadata.whole("attention.sliding_window", 0, MAX_LENGTH, 0)
    return (window,) * layers if window else ()
