"""Adapters of the residency port."""
