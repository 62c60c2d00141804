"""Adapters of the text encoder port."""
