"""sinkstream inside other systems. Nothing here is imported unless it is asked for."""
