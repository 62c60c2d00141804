"""Adapters of the event log port."""
