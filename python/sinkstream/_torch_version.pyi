"""Written by the build (cmake/SinkstreamTorch.cmake)."""

BUILT_AGAINST: str
