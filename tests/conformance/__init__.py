"""Test suites of other projects, and their clients, run against `sinkstream serve`."""
