"""Metrics, traces, logs, and the list of open models."""
