"""Where other programs keep models on this machine: one module per program.

Each finds a model by its name and lists the names that it has. Their folders are only read, no
program of theirs runs, and nothing is fetched.
"""
