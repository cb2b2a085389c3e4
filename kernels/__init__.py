"""Tensor operations: for each a torch reference and the fastest path for the device at hand.

Knows nothing of the engine. Each module holds one operation, its formula and its `reference()`.
"""

from kernels.paged_attention import AttentionBatch, PagedAttention
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rotary import rope_and_write_kv
from kernels.silu_and_mul import silu_and_mul

__all__ = ["AttentionBatch", "PagedAttention", "add_rms_norm", "rms_norm", "rope_and_write_kv", "silu_and_mul"]
