"""Planted mistakes, and the proof that the C++ tests notice every one of them."""
