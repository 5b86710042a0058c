"""Conversations as a tree of turns on disk, of which a few are in the model's cache."""
