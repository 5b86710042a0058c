"""Runs the server as a deployment of Ray Serve; needs the extra `cluster`."""

from sinkstream.cluster.ray.deployment import app, build

__all__ = ["app", "build"]
