"""Weights packed for the CPU kernels of this package: panels of sixteen output rows, blocks of 32 inputs.

A weight [out, in] becomes panels of sixteen rows; a panel is a run of blocks along `in`, and a block is, in bytes:

    int4   256 codes: byte 64·j + 4·row + i holds input 4·j + i in its low and input 16 + 4·j + i in its high nibble
           32 scales: sixteen float16;   32 least: sixteen float16       value = scale · code + least
    int8   512 codes: byte 64·j + 4·row + i holds input 4·j + i, signed
           32 scales: sixteen float16                                     value = scale · code

so that one load brings four inputs of each of sixteen rows, which is what an 8-bit dot product takes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GROUP = 32
ROWS = 16
# Kinds of packed weights, and the bytes of their blocks.
INT4, INT8 = 4, 8
INT4_BLOCK_BYTES = 320
INT8_BLOCK_BYTES = 544

Bytes = NDArray[np.uint8]


def pack_int4(codes: NDArray[np.uint8], scales: NDArray[np.float16], least: NDArray[np.float16]) -> Bytes:
    """codes: [out, in] of 0 to 15; scales, least: [out, in / 32]; returns [ceil(out / 16), in / 32, 320] bytes."""
    codes, scales, least = (_whole_panels(part) for part in (codes, scales, least))
    panels, blocks = codes.shape[0] // ROWS, codes.shape[1] // GROUP
    # [panel, row, block, half, j, i] -> [panel, block, half, j, row, i]
    parts = codes.reshape(panels, ROWS, blocks, 2, 4, 4).transpose(0, 2, 3, 4, 1, 5)
    packed = np.empty((panels, blocks, INT4_BLOCK_BYTES), dtype=np.uint8)
    packed[:, :, :256] = (parts[:, :, 0] | (parts[:, :, 1] << 4)).reshape(panels, blocks, 256)
    packed[:, :, 256:288] = _by_block(scales, panels)
    packed[:, :, 288:] = _by_block(least, panels)
    return packed


def pack_int8(codes: NDArray[np.int8], scales: NDArray[np.float16]) -> Bytes:
    """codes: [out, in]; scales: [out, in / 32]; returns [ceil(out / 16), in / 32, 544] bytes."""
    codes, scales = _whole_panels(codes), _whole_panels(scales)
    panels, blocks = codes.shape[0] // ROWS, codes.shape[1] // GROUP
    parts = codes.view(np.uint8).reshape(panels, ROWS, blocks, 8, 4).transpose(0, 2, 3, 1, 4)
    packed = np.empty((panels, blocks, INT8_BLOCK_BYTES), dtype=np.uint8)
    packed[:, :, :512] = parts.reshape(panels, blocks, 512)
    packed[:, :, 512:] = _by_block(scales, panels)
    return packed


def quantize_int8(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Symmetric codes and scales of [out, in] float32, each block of 32 inputs by its largest magnitude."""
    blocks = weight.reshape(weight.shape[0], -1, GROUP)
    scales = (np.abs(blocks).max(-1) / 127.0).astype(np.float16)
    divisors = np.where(scales == 0, np.float32(1), scales.astype(np.float32))
    codes = np.rint(blocks / divisors[..., None]).clip(-127, 127).astype(np.int8)
    return codes.reshape(weight.shape), scales


def unpack(packed: Bytes, num_rows: int) -> NDArray[np.float32]:
    """The weight [num_rows, in] as float32: the reference of both formats."""
    panels, blocks, block_bytes = packed.shape

    def halves(start: int) -> NDArray[np.float32]:
        return np.ascontiguousarray(packed[:, :, start : start + 32]).view(np.float16).astype(np.float32)

    if block_bytes == INT4_BLOCK_BYTES:
        codes = packed[:, :, :256].reshape(panels, blocks, 1, 4, ROWS, 4)
        codes = np.concatenate((codes & 15, codes >> 4), axis=2).transpose(0, 1, 4, 2, 3, 5)
        values = codes.reshape(panels, blocks, ROWS, GROUP) * halves(256)[..., None] + halves(288)[..., None]
    else:
        signed = np.ascontiguousarray(packed[:, :, :512]).view(np.int8).reshape(panels, blocks, 8, ROWS, 4)
        values = signed.transpose(0, 1, 3, 2, 4).reshape(panels, blocks, ROWS, GROUP) * halves(512)[..., None]
    flat: NDArray[np.float32] = values.transpose(0, 2, 1, 3).reshape(panels * ROWS, blocks * GROUP)[:num_rows]
    return flat


def _whole_panels(rows: NDArray) -> NDArray:  # type: ignore[type-arg]
    missing = -rows.shape[0] % ROWS
    return np.pad(rows, ((0, missing), (0, 0))) if missing else rows


def _by_block(values: NDArray[np.float16], panels: int) -> Bytes:
    """[out, blocks] to the bytes of [panel, block, row]."""
    ordered = np.ascontiguousarray(values.reshape(panels, ROWS, -1).transpose(0, 2, 1))
    return ordered.view(np.uint8)
