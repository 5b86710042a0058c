"""`sinkstream serve`: an OpenAI-compatible API. Needs the extra `serve`."""
