"""The policy that config files of Ray Serve name; needs the extra `cluster`."""

from sinkstream.cluster.ray.scaling import replicas_wanted

__all__ = ["replicas_wanted"]
