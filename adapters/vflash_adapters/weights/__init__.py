"""Adapters of the weights port: where the bytes of a checkpoint come from. Every source yields the same bits."""
