"""Adapters of the assets port."""
