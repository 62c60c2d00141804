"""Names that integrators import directly: weight codec, buffered weights, FP8 operators, MP4 encoding."""
