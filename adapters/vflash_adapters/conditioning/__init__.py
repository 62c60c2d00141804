"""Adapters of the conditioning port."""
