"""Several servers that share one store: PostgreSQL, fencing, peers, Ray; the extra `cluster`."""
