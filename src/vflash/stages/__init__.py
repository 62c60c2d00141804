"""The main path, one function a stage: frozen value in, frozen value out."""
