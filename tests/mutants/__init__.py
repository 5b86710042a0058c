"""Planted bugs, and the proof that the tests notice every one of them."""
