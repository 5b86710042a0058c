"""Writes checkpoints as GGUF files."""
