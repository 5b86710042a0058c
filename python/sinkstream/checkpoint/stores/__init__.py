"""Where other programs keep models on this machine: one module per program.

Each finds a model by its name and lists the names that it has. Their folders are only read, none of
these programs is run, and nothing is fetched.
"""
