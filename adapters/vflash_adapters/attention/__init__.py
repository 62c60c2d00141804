"""Adapters of the attention port."""
