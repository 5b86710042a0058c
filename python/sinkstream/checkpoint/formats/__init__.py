"""One file for each kind of checkpoint on disk."""
