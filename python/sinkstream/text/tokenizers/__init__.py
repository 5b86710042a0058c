"""Tokenizers from checkpoints, and the bytes of their tokens."""
