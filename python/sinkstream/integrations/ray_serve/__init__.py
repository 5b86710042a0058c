"""Runs the server as a deployment of Ray Serve; needs the extra `ray`."""

from sinkstream.integrations.ray_serve.deployment import app, build

__all__ = ["app", "build"]
