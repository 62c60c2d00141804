"""Adapters of Vflash: one folder a port. They import ports and third parties, never `vflash`."""
