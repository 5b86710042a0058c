"""Separates a reply's thoughts from its text."""
