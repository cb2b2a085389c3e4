"""Products with 4-bit weights and 16-bit activations (W4A16), and the one layout AWQ and GPTQ are repacked to.

    y[m, n] = Σ_k x[m, k] · w[k, n] + bias[n],   w[k, n] = (code[k, n] − zero[k // group, n]) · scale[k // group, n]

Sources: Frantar et al., "GPTQ" (2022); Lin et al., "AWQ" (2023); their files as AutoGPTQ and AutoAWQ write them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from kernels.dispatch import uses_triton

# AWQ's order: nibble j of a word holds column AWQ_ORDER[j] of its eight.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Int4Weight:
    """A matrix [in, out] in 4 bits.

    Attributes:
        words: [in / 8, out] int32; nibble j (from the low end) of word i is the code of input 8 i + j.
        scales: [in / group, out] float16.
        zeros: [in / group, out] float16, whole numbers 0 … 15.
        group: inputs that share a scale, a multiple of 8.
        order: [in] int64, the input that stands at each place (GPTQ's act-order); None where none is moved.
    """

    words: Tensor
    scales: Tensor
    zeros: Tensor
    group: int
    order: Tensor | None = None

    def codes(self) -> Tensor:
        """[in, out] int32 of 0 to 15, in the order of the places."""
        shifts = torch.arange(0, 32, 4, device=self.words.device, dtype=torch.int32)
        return ((self.words[:, None] >> shifts[None, :, None]) & 15).flatten(0, 1)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """[in, out] in `dtype`, in the order of the places."""
        codes = self.codes()
        scales, zeros = (part.float().repeat_interleave(self.group, dim=0) for part in (self.scales, self.zeros))
        return ((codes - zeros[: len(codes)]) * scales[: len(codes)]).to(dtype)

    def dense(self, dtype: torch.dtype) -> Tensor:
        """[out, in] in `dtype`, every input where it was."""
        placed = self.dequantize(dtype)
        if self.order is not None:
            placed = torch.empty_like(placed).index_copy_(0, self.order, placed)
        return placed.t().contiguous()

    def to(self, device: torch.device) -> Int4Weight:
        """The same on a device."""
        order = None if self.order is None else self.order.to(device)
        return Int4Weight(self.words.to(device), self.scales.to(device), self.zeros.to(device), self.group, order)


def joined(weights: Sequence[Int4Weight]) -> Int4Weight | None:
    """Matrices over the same inputs as one, their outputs side by side; None if they do not go together."""
    first = weights[0]
    for other in weights[1:]:
        if other.group != first.group or (other.order is None) != (first.order is None):
            return None
        if other.order is not None and first.order is not None and not torch.equal(other.order, first.order):
            return None
    words, scales, zeros = (
        torch.cat(parts, dim=1).contiguous()
        for parts in zip(*((weight.words, weight.scales, weight.zeros) for weight in weights), strict=True)
    )
    return Int4Weight(words, scales, zeros, first.group, first.order)


def quantize(weight: Tensor, group: int = 128) -> Int4Weight:
    """Round a matrix [out, in] to 4 bits, asymmetrically, each group between its least and largest value."""
    outputs, inputs = weight.shape
    if inputs % group or group % 8:
        raise ValueError(f"a matrix with {inputs} inputs can not be cut into groups of {group}, a multiple of 8")
    grouped = weight.float().t().reshape(inputs // group, group, outputs)
    low, high = grouped.amin(1).clamp(max=0), grouped.amax(1).clamp(min=0)
    scales = ((high - low) / 15).clamp(min=1e-7).half()
    zeros = (-low / scales.float()).round().clamp(0, 15).half()
    codes = (grouped / scales.float()[:, None] + zeros.float()[:, None]).round().clamp(0, 15)
    return Int4Weight(_pack(codes.reshape(inputs, outputs).int()), scales, zeros, group)


def from_gptq(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor | None, *, zeros_are_less_one: bool
) -> Int4Weight:
    """Repack GPTQ: qweight [in / 8, out], qzeros [groups, out / 8] int32, scales [groups, out], g_idx [in] or None.

    `zeros_are_less_one`: files of version 1 store zero − 1, those of version 2 the zero itself.
    """
    zeros = _unpack_columns(qzeros, tuple(range(8)))
    if zeros_are_less_one:
        zeros = (zeros + 1) & 15  # less one in four bits, so that 0 is stored as 15
    inputs, num_groups = qweight.shape[0] * 8, scales.shape[0]
    if inputs % num_groups or inputs // num_groups % 8:
        raise ValueError(f"{inputs} inputs in {num_groups} groups: groups must be whole and a multiple of 8")
    group = inputs // num_groups
    order = None
    words = qweight
    if g_idx is not None and not torch.equal(g_idx.long(), torch.arange(inputs, device=g_idx.device) // group):
        least, most = int(g_idx.min()), int(g_idx.max())
        if least < 0 or most >= num_groups:
            raise ValueError(f"g_idx names groups from {least} to {most}; there are {num_groups}")
        order = torch.argsort(g_idx.long(), stable=True)
        counts = torch.bincount(g_idx.long(), minlength=num_groups)
        if bool((counts != group).any()):
            raise ValueError(f"g_idx gives groups of {counts.tolist()} inputs; each must have {group}")
        shifts = torch.arange(0, 32, 4, device=qweight.device, dtype=torch.int32)
        words = _pack(((qweight[:, None] >> shifts[None, :, None]) & 15).flatten(0, 1)[order])
    return Int4Weight(words.contiguous(), scales.half(), zeros.half(), group, order)


def from_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Int4Weight:
    """Repack AWQ: qweight [in, out / 8], qzeros [groups, out / 8] int32, scales [groups, out]."""
    inputs, num_groups = qweight.shape[0], scales.shape[0]
    if inputs % num_groups or inputs // num_groups % 8:
        raise ValueError(f"{inputs} inputs in {num_groups} groups: groups must be whole and a multiple of 8")
    codes, zeros = (_unpack_columns(packed, AWQ_ORDER) for packed in (qweight, qzeros))
    return Int4Weight(_pack(codes), scales.half(), zeros.half(), inputs // num_groups)


def _unpack_columns(packed: Tensor, order: tuple[int, ...]) -> Tensor:
    """[rows, columns / 8] int32 words, nibble j of which is column order[j], to [rows, columns] codes."""
    nibbles = torch.stack([(packed >> 4 * order.index(column)) & 15 for column in range(8)], dim=-1)
    return nibbles.flatten(1)


def _pack(codes: Tensor) -> Tensor:
    """[in, out] codes to words [in / 8, out] int32."""
    eights = codes.reshape(-1, 8, codes.shape[1]).to(torch.int64)
    shifts = torch.arange(0, 32, 4, device=codes.device)
    words = (eights << shifts[None, :, None]).sum(1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def reference(x: Tensor, weight: Int4Weight, bias: Tensor | None = None) -> Tensor:
    """x: [rows, in]; returns [rows, out] in x's dtype."""
    ordered = x if weight.order is None else x[:, weight.order]
    return linear(ordered, weight.dequantize(x.dtype).t(), bias)


def int4_matmul(x: Tensor, weight: Int4Weight, bias: Tensor | None = None) -> Tensor:
    """`reference` by the fastest path: with many rows the weight is unpacked once for a dense product."""
    if not uses_triton(x):
        return reference(x, weight, bias)
    from kernels.gpu import int4_matmul as gpu

    ordered = x if weight.order is None else x[:, weight.order]
    if x.shape[0] <= gpu.MANY_ROWS:
        return gpu.int4_matmul(ordered, weight.words, weight.scales, weight.zeros, weight.group, bias)
    return linear(ordered, gpu.unpack(weight.words, weight.scales, weight.zeros, weight.group, x.dtype).t(), bias)
