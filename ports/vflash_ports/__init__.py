"""Ports of Vflash: the protocols that adapters implement. Importing them loads neither torch nor an adapter."""
