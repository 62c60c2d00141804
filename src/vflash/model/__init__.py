"""MiniMax-H3 in torch: positions, modulation tables, blocks, transformer, patching."""
