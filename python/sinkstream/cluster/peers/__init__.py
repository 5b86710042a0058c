"""Servers that share a store ask each other over HTTP."""
