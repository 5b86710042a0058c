"""Test data: tiny checkpoints, and prose."""
