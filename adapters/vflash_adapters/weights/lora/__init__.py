"""Adapters of the adapters port: LoRA files of every plain family, in one canonical form."""
