"""Tokenizers out of checkpoints, and the bytes of their tokens."""
