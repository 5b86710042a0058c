"""A simulated cluster of servers, in discrete events; `cluster_simulation.py` runs it."""
