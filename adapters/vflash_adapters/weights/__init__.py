"""Adapters of the weights port."""
