"""Adapters of the media port."""
