"""Products of packed weights with quantised activations, panel by panel.

    out[r, 16·p + lane] = Σ_b  scale[p, b, lane] · xs[r, b] · Σ_i code[p, b, lane, i] · xq[r, b, i]
                             + least[p, b, lane] · xs[r, b] · Σ_i xq[r, b, i]

over the blocks b of 32 inputs i (`least` is of 4-bit formats only). Layouts are `kernels.packed.formats`'. The sum
inside a block is of integers and exact, blocks are added in order: so a row's result does not depend on which rows are
computed with it, bit for bit. Method: int8 activations per block of 32 as in llama.cpp's Q8_1, panels of interleaved
output rows as in its repacked formats.
"""

from __future__ import annotations

from numba import njit

from kernels.packed.formats import INT4, INT4_BLOCK_BYTES, INT8_BLOCK_BYTES
from kernels.packed.simd import (
    HAS_VNNI_512,
    broadcast_quad,
    dot_bytes,
    dot_nibbles,
    dot_total,
    dot_zero,
    fma,
    high_nibbles,
    load_f16x16,
    load_f32,
    load_u8x64,
    low_nibbles,
    multiply,
    splat_f32,
    store_f32x16,
    to_float,
    zero_i32,
)


@njit(forceinline=True)
def _scaled(total, scale, least, block_sums, out):
    """Add one block's integer dot product, scaled, and its constant part."""
    out = fma(to_float(dot_total(total)), multiply(scale, splat_f32(load_f32(block_sums))), out)
    return fma(least, splat_f32(load_f32(block_sums + 4)), out)


@njit(forceinline=True)
def _dot_pair(total, low, high, x):
    """Add four inputs of the block's first half and four of its second."""
    return dot_nibbles(dot_nibbles(total, low, broadcast_quad(x)), high, broadcast_quad(x + 16))


@njit(forceinline=True)
def int4_panel_row(panel, num_blocks, x, sums, out):
    """One row times one int4 panel: sixteen outputs."""
    a = splat_f32(0.0)
    for block in range(num_blocks):
        w, xb, sb = panel + block * INT4_BLOCK_BYTES, x + block * 32, sums + block * 8
        t = dot_zero()
        for j in range(4):
            packed = load_u8x64(w + 64 * j)
            t = _dot_pair(t, low_nibbles(packed), high_nibbles(packed), xb + 4 * j)
        a = _scaled(t, load_f16x16(w + 256), load_f16x16(w + 288), sb, a)
    store_f32x16(out, a)


@njit(forceinline=True)
def int4_panel_rows4(panel, num_blocks, quads, x, x_stride, sums, sums_stride, out, out_stride):
    """Four rows times one int4 panel: codes are unpacked once for all four."""
    a0 = a1 = a2 = a3 = splat_f32(0.0)
    for block in range(num_blocks):
        w, xb, sb = panel + block * INT4_BLOCK_BYTES, x + block * 32, sums + block * 8
        t0 = t1 = t2 = t3 = dot_zero()
        for j in range(quads):
            packed = load_u8x64(w + 64 * j)
            low, high = low_nibbles(packed), high_nibbles(packed)
            xl = xb + 4 * j
            t0 = _dot_pair(t0, low, high, xl)
            t1 = _dot_pair(t1, low, high, xl + x_stride)
            t2 = _dot_pair(t2, low, high, xl + 2 * x_stride)
            t3 = _dot_pair(t3, low, high, xl + 3 * x_stride)
        scale, least = load_f16x16(w + 256), load_f16x16(w + 288)
        a0 = _scaled(t0, scale, least, sb, a0)
        a1 = _scaled(t1, scale, least, sb + sums_stride, a1)
        a2 = _scaled(t2, scale, least, sb + 2 * sums_stride, a2)
        a3 = _scaled(t3, scale, least, sb + 3 * sums_stride, a3)
    store_f32x16(out, a0)
    store_f32x16(out + out_stride, a1)
    store_f32x16(out + 2 * out_stride, a2)
    store_f32x16(out + 3 * out_stride, a3)


@njit(forceinline=True)
def int4_panel_rows8(panel, num_blocks, x, x_stride, sums, sums_stride, out, out_stride):
    """Eight rows times one int4 panel, for CPUs with registers enough."""
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = splat_f32(0.0)
    for block in range(num_blocks):
        w, xb, sb = panel + block * INT4_BLOCK_BYTES, x + block * 32, sums + block * 8
        t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = dot_zero()
        for j in range(4):
            packed = load_u8x64(w + 64 * j)
            low, high = low_nibbles(packed), high_nibbles(packed)
            xl = xb + 4 * j
            t0 = _dot_pair(t0, low, high, xl)
            t1 = _dot_pair(t1, low, high, xl + x_stride)
            t2 = _dot_pair(t2, low, high, xl + 2 * x_stride)
            t3 = _dot_pair(t3, low, high, xl + 3 * x_stride)
            t4 = _dot_pair(t4, low, high, xl + 4 * x_stride)
            t5 = _dot_pair(t5, low, high, xl + 5 * x_stride)
            t6 = _dot_pair(t6, low, high, xl + 6 * x_stride)
            t7 = _dot_pair(t7, low, high, xl + 7 * x_stride)
        scale, least = load_f16x16(w + 256), load_f16x16(w + 288)
        a0 = _scaled(t0, scale, least, sb, a0)
        a1 = _scaled(t1, scale, least, sb + sums_stride, a1)
        a2 = _scaled(t2, scale, least, sb + 2 * sums_stride, a2)
        a3 = _scaled(t3, scale, least, sb + 3 * sums_stride, a3)
        a4 = _scaled(t4, scale, least, sb + 4 * sums_stride, a4)
        a5 = _scaled(t5, scale, least, sb + 5 * sums_stride, a5)
        a6 = _scaled(t6, scale, least, sb + 6 * sums_stride, a6)
        a7 = _scaled(t7, scale, least, sb + 7 * sums_stride, a7)
    store_f32x16(out, a0)
    store_f32x16(out + out_stride, a1)
    store_f32x16(out + 2 * out_stride, a2)
    store_f32x16(out + 3 * out_stride, a3)
    store_f32x16(out + 4 * out_stride, a4)
    store_f32x16(out + 5 * out_stride, a5)
    store_f32x16(out + 6 * out_stride, a6)
    store_f32x16(out + 7 * out_stride, a7)


@njit(forceinline=True)
def int8_panel_row(panel, num_blocks, x, sums, out):
    """One row times one int8 panel."""
    a = splat_f32(0.0)
    for block in range(num_blocks):
        w, xb, sb = panel + block * INT8_BLOCK_BYTES, x + block * 32, sums + block * 8
        t = zero_i32()
        for j in range(8):
            t = dot_bytes(t, load_u8x64(w + 64 * j), broadcast_quad(xb + 4 * j))
        a = fma(to_float(t), multiply(load_f16x16(w + 512), splat_f32(load_f32(sb))), a)
    store_f32x16(out, a)


@njit(forceinline=True)
def int8_panel_rows4(panel, num_blocks, quads, x, x_stride, sums, sums_stride, out, out_stride):
    """Four rows times one int8 panel."""
    a0 = a1 = a2 = a3 = splat_f32(0.0)
    for block in range(num_blocks):
        w, xb, sb = panel + block * INT8_BLOCK_BYTES, x + block * 32, sums + block * 8
        t0 = t1 = t2 = t3 = zero_i32()
        for j in range(2 * quads):
            code, xj = load_u8x64(w + 64 * j), xb + 4 * j
            t0 = dot_bytes(t0, code, broadcast_quad(xj))
            t1 = dot_bytes(t1, code, broadcast_quad(xj + x_stride))
            t2 = dot_bytes(t2, code, broadcast_quad(xj + 2 * x_stride))
            t3 = dot_bytes(t3, code, broadcast_quad(xj + 3 * x_stride))
        scale = load_f16x16(w + 512)
        a0 = fma(to_float(t0), multiply(scale, splat_f32(load_f32(sb))), a0)
        a1 = fma(to_float(t1), multiply(scale, splat_f32(load_f32(sb + sums_stride))), a1)
        a2 = fma(to_float(t2), multiply(scale, splat_f32(load_f32(sb + 2 * sums_stride))), a2)
        a3 = fma(to_float(t3), multiply(scale, splat_f32(load_f32(sb + 3 * sums_stride))), a3)
    store_f32x16(out, a0)
    store_f32x16(out + out_stride, a1)
    store_f32x16(out + 2 * out_stride, a2)
    store_f32x16(out + 3 * out_stride, a3)


@njit
def panels(weight, kind, num_blocks, quads, first, last, x, sums, num_rows, out, out_stride):
    """Panels `first` to `last` of a weight times all rows. Addresses: weight, x, sums, out; strides in bytes.

    `quads` is 4, the groups of four inputs in half a block, but known at run time only: a compiler that knows it
    unrolls the loop of four rows whole, which takes more registers than AVX2 has and keeps half of them in memory.
    """
    xs, ss = num_blocks * 32, num_blocks * 8
    panel_bytes = num_blocks * (INT4_BLOCK_BYTES if kind == INT4 else INT8_BLOCK_BYTES)
    for p in range(first, last):
        panel, o = weight + p * panel_bytes, out + p * 64
        row = 0
        while HAS_VNNI_512 and kind == INT4 and row + 8 <= num_rows:
            r, s = x + row * xs, sums + row * ss
            int4_panel_rows8(panel, num_blocks, r, xs, s, ss, o + row * out_stride, out_stride)
            row += 8
        while row + 4 <= num_rows:
            r, s = x + row * xs, sums + row * ss
            if kind == INT4:
                int4_panel_rows4(panel, num_blocks, quads, r, xs, s, ss, o + row * out_stride, out_stride)
            else:
                int8_panel_rows4(panel, num_blocks, quads, r, xs, s, ss, o + row * out_stride, out_stride)
            row += 4
        while row < num_rows:
            r, s = x + row * xs, sums + row * ss
            if kind == INT4:
                int4_panel_row(panel, num_blocks, r, s, o + row * out_stride)
            else:
                int8_panel_row(panel, num_blocks, r, s, o + row * out_stride)
            row += 1
