"""Adapters of the linear port."""
