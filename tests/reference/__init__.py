"""The reference for the fast code: plain float64 loops over numpy arrays.

Every query rotates every key it sees to the key's position within the cache, as StreamingLLM
(section 3.2) says. Nothing here is fast, and the package under test is not imported.
"""
