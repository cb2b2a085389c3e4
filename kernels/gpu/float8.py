"""float8 e4m3 by its bits, so that cards without it (sm_80) and the interpreter read and write the same numbers.

A code is sign, four bits of exponent (bias 7), three of mantissa; largest 448, smallest subnormal 2⁻⁹; 0x7F is NaN and
is never written. Source: Micikevicius et al., "FP8 Formats for Deep Learning" (2022).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decode_e4m3(code):
    """uint8 codes to float32, exactly: float16 has the same fields with another bias, 8 apart."""
    wide = code.to(tl.uint16)
    bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0


@triton.jit
def encode_e4m3(x):
    """float32 to uint8 codes, rounded to nearest, ties to even, saturating at ±448."""
    bits = x.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = tl.minimum((bits & 0x7FFFFFFF).to(tl.float32, bitcast=True), 448.0)
    raw = size.to(tl.uint32, bitcast=True)
    normal = ((raw + 0x7FFFF + ((raw >> 20) & 1)) >> 20) - (120 << 3)
    # Adding 2¹⁴ leaves units of 2⁻⁹, the subnormals' step, as the last bit of the sum.
    subnormal = (size + 16384.0).to(tl.uint32, bitcast=True) & 0xFF
    return (sign | tl.where(size < 0.015625, subnormal, normal)).to(tl.uint8)
