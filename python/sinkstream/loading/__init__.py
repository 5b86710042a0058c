"""`load()`, `open_checkpoint()` and `list_models()`: from files on this machine to a model."""
