"""How many replicas the running and waiting replies need.

Ray counts requests, and an open socket is one for as long as it lasts, idle or not.
"""

from __future__ import annotations

from typing import Any

STATISTIC = "sequences"
"""The statistic from `record_autoscaling_stats`: replies that are running or waiting."""


def replicas_wanted(context: Any) -> tuple[float, dict[str, Any]]:
    """Return the number of replicas, and no state; Ray applies delays and bounds.

    Args:
        context: Ray's `AutoscalingContext`.
    """
    by_replica = context.aggregated_metrics.get(STATISTIC, {})
    if not by_replica:  # no replica has reported yet
        return context.target_num_replicas, {}
    return sum(by_replica.values()) / context.config.target_ongoing_requests, {}
