"""Products of 8-bit weights and 8-bit activations (W8A8), int8 or float8 e4m3, with one scale for each row of either.

    x8[m, k] = round(x[m, k] / x_scale[m]),   x_scale[m] = max_k |x[m, k]| / largest code
    y[m, n]  = (Σ_k x8[m, k] · w8[n, k]) · x_scale[m] · w_scale[n] + bias[n]

Sources: Dettmers et al., "LLM.int8()" (2022); Micikevicius et al., "FP8 Formats for Deep Learning" (2022).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.dispatch import uses_triton

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


@dataclass(frozen=True)
class RowwiseWeight:
    """A matrix in 8 bits: codes [out, in] int8 or float8 e4m3, scales [out] float32."""

    codes: Tensor
    scales: Tensor

    @classmethod
    def of(cls, weight: Tensor, dtype: torch.dtype) -> RowwiseWeight:
        """Round a matrix [out, in]; dtype: torch.int8 or torch.float8_e4m3fn."""
        return cls(*quantize_rows_reference(weight, dtype))


def quantize_rows_reference(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes in x's shape [rows, in] and scales [rows] float32."""
    wide, most = x.float(), LARGEST[dtype]
    scales = wide.abs().amax(-1).clamp(min=1e-12) / most
    codes = wide / scales[:, None]
    return (codes.round() if dtype == torch.int8 else codes.clamp(-most, most)).to(dtype), scales


def reference(x: Tensor, weight: RowwiseWeight, bias: Tensor | None = None) -> Tensor:
    """x: [rows, in]; returns [rows, out] in x's dtype; sums in float64, which are exact for int8."""
    codes, scales = quantize_rows_reference(x, weight.codes.dtype)
    out = (codes.double() @ weight.codes.double().t()) * scales[:, None].double() * weight.scales.double()
    return (out if bias is None else out + bias.double()).to(x.dtype)


def rowwise_matmul(x: Tensor, weight: RowwiseWeight, bias: Tensor | None = None) -> Tensor:
    """`reference` by the fastest path of the device: with many rows on a card that has it, `torch._scaled_mm`."""
    if not uses_triton(x):
        return reference(x, weight, bias)
    from kernels.gpu import rowwise_matmul as gpu

    if _scaled_mm_serves(x, weight):
        codes, scales = gpu.quantize_rows(x, weight.codes.dtype)
        out = torch._scaled_mm(
            codes, weight.codes.t(), scale_a=scales[:, None], scale_b=weight.scales[None, :], out_dtype=x.dtype
        )
        return out if bias is None else out + bias
    return gpu.rowwise_matmul(x, weight.codes, weight.scales, bias)


def _scaled_mm_serves(x: Tensor, weight: RowwiseWeight) -> bool:
    """Row-wise float8 scales came with sm_90; sides must be multiples of 16, results bfloat16."""
    outputs, inputs = weight.codes.shape
    return (
        weight.codes.dtype == torch.float8_e4m3fn
        and x.is_cuda
        and x.shape[0] >= 64
        and x.dtype == torch.bfloat16
        and outputs % 16 == inputs % 16 == 0
        and torch.cuda.get_device_capability(x.device) >= (9, 0)
    )
