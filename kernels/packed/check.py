"""One small decoder step against its plain formula, before anything else is computed with these kernels.

A CPU whose instructions are used for the first time must not be trusted blindly: a wrong product would go unnoticed as
a model that talks nonsense.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernels.packed.formats import Bytes, pack_int4, pack_int8, quantize_int8, unpack
from kernels.packed.model import PackedLayer, PackedModel, PackedShape, Sequences, Team

Floats = NDArray[np.float32]

_SHAPE = PackedShape(hidden=64, inner=96, heads=2, kv_heads=1, head_dim=32, vocab=48, eps=1e-5, scale=32**-0.5)
# Activations are rounded to 8 bits: that far may the logits be from the formula's.
_TOLERANCE = 0.05
_ROWS = 21


def first_fault() -> str | None:
    """What the kernels get wrong, or None."""
    model, weights = _model()
    token_ids = np.arange(_ROWS, dtype=np.int64) % _SHAPE.vocab
    positions = np.arange(_ROWS, dtype=np.int64)
    sequences = Sequences(np.array([_ROWS]), np.array([_ROWS]), [np.array([1, 0])])
    slots = np.where(positions < 16, 16 + positions, positions - 16)
    logits = model.forward(token_ids, positions, slots, sequences, positions)
    expected = _reference(weights, token_ids)
    error = float(np.abs(logits - expected).max() / np.abs(expected).max())
    if not error < _TOLERANCE:
        return f"the compiled kernels are wrong on this CPU (relative error {error:.3g}); the torch path is used"
    return None


def _model() -> tuple[PackedModel, dict[str, Floats]]:
    rng = np.random.default_rng(0)
    shape, width = _SHAPE, _SHAPE.heads * _SHAPE.head_dim
    packed: dict[str, Bytes] = {}
    for name, rows, columns in (
        ("embedding", shape.vocab, shape.hidden),
        ("q", width, shape.hidden),
        ("k", 32, shape.hidden),
        ("v", 32, shape.hidden),
        ("o", shape.hidden, width),
        ("gate", shape.inner, shape.hidden),
        ("up", shape.inner, shape.hidden),
        ("down", shape.hidden, shape.inner),
    ):
        if name in ("embedding", "v", "up"):
            packed[name] = pack_int8(*quantize_int8(rng.standard_normal((rows, columns)).astype(np.float32) * 0.3))
        else:
            scales = rng.uniform(0.03, 0.06, (rows, columns // 32)).astype(np.float16)
            codes = rng.integers(0, 16, (rows, columns)).astype(np.uint8)
            packed[name] = pack_int4(codes, scales, (scales * np.float16(-7.5)).astype(np.float16))
    weights = {name: unpack(value, value.shape[0] * 16) for name, value in packed.items()}
    norm = rng.uniform(0.5, 1.5, shape.hidden).astype(np.float32)
    weights["norm"] = norm
    angles = np.arange(32, dtype=np.float32)[:, None] * (0.1 ** np.arange(16, dtype=np.float32))[None, :]
    layer = PackedLayer(
        norm,
        norm,
        [packed["q"], packed["k"], packed["v"]],
        [packed["o"]],
        [packed["gate"], packed["up"]],
        [packed["down"]],
    )
    team = Team.shared()
    model = PackedModel(
        shape, packed["embedding"], [layer], norm, packed["embedding"], np.cos(angles), np.sin(angles), team
    )
    model.allocate(2)
    weights["cos"], weights["sin"] = np.cos(angles), np.sin(angles)
    return model, weights


def _reference(weights: dict[str, Floats], token_ids: NDArray[np.int64]) -> Floats:
    shape, count = _SHAPE, len(token_ids)
    cos, sin = weights["cos"][:count, None], weights["sin"][:count, None]

    def norm(x: Floats) -> Floats:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + shape.eps) * weights["norm"]  # type: ignore[no-any-return]

    def rotated(x: Floats) -> Floats:
        first, second = np.split(x.reshape(count, -1, shape.head_dim), 2, axis=-1)
        return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)

    x = weights["embedding"][token_ids]
    h = norm(x)
    q, k = rotated(h @ weights["q"].T), rotated(h @ weights["k"].T)
    v = h @ weights["v"].T
    scores = np.einsum("qhd,kd->hqk", q, k[:, 0]) * shape.scale
    scores = np.where(np.tril(np.ones((count, count), dtype=bool)), scores, -np.inf)
    attention = np.exp(scores - scores.max(-1, keepdims=True))
    attention /= attention.sum(-1, keepdims=True)
    x = x + np.einsum("hqk,kd->qhd", attention, v).reshape(count, -1) @ weights["o"].T
    h = norm(x)
    gate = h @ weights["gate"].T
    x = x + (gate / (1 + np.exp(-gate)) * (h @ weights["up"].T)) @ weights["down"].T
    logits: Floats = norm(x) @ weights["embedding"].T
    return logits
