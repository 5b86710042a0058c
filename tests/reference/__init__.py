"""The definition of what the fast code must compute: plain float64 loops over numpy arrays.

Every query re-rotates every key it sees at the key's position within the cache, as StreamingLLM
(section 3.2) says. Nothing here is fast, and nothing of the package under test is imported.
"""
