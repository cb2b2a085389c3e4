"""Tensor operations: for each a torch reference and the fastest path for the device at hand.

Knows nothing of the engine. Each module holds one operation, its formula, its `reference()` and its path on a CPU; the
Triton kernel of the same operation is in the module of the same name in `kernels.gpu`. `kernels.dispatch` chooses.
"""

from kernels.dispatch import KernelsUnavailableError, runs_triton, uses_triton, why_no_triton
from kernels.kv_pool import KVPool
from kernels.paged_attention import AttentionBatch, PagedAttention
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rotary import rope_and_write_kv
from kernels.silu_and_mul import gelu_and_mul, silu_and_mul

__all__ = [
    "AttentionBatch",
    "KVPool",
    "KernelsUnavailableError",
    "PagedAttention",
    "add_rms_norm",
    "gelu_and_mul",
    "rms_norm",
    "rope_and_write_kv",
    "runs_triton",
    "silu_and_mul",
    "uses_triton",
    "why_no_triton",
]
