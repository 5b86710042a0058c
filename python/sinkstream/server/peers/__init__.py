"""Servers that share a store of conversations ask each other over HTTP."""
