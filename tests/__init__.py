"""Tests. A package, so that the reference and the tiny checkpoints can be imported by name."""
