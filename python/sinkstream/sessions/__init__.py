"""Conversations that keep their cache, and the files that hold them."""
