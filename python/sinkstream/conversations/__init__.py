"""Conversations as a tree of turns on disk, a few of which are in the model's cache."""
