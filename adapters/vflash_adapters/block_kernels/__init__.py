"""Adapters of the block kernels port."""
