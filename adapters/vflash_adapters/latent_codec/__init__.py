"""Adapters of the latent codec port."""
