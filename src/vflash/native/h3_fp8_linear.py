"""FP8 linear operators: E4M3 codes [out, in] with one float32 scale for each row.

`RowFP8Execution` is a numeric operator, `RowFP8Linear` a module over it. Neither reads files nor chooses a device or a
precision; who fills the weights vouches for them.
"""

from vflash_adapters.linear.row_fp8 import RowFP8Execution
from vflash_adapters.linear.row_fp8_linear import RowFP8Linear

__all__ = ["RowFP8Execution", "RowFP8Linear"]
