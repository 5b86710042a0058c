"""Tools: how a model is told of them, how it calls them, and how calls are read from a reply."""
