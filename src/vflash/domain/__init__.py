"""Rules of MiniMax-H3 as pure functions over numbers: no torch, instant to import."""
