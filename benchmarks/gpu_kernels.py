"""Each kernel in a shape of Llama-3.1-8B (or a tiny one), with its reference, and the bytes and operations it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import (
    AttentionBatch,
    KVPool,
    PagedAttention,
    add_rms_norm,
    gelu_and_mul,
    paged_attention,
    rms_norm,
    rope_and_write_kv,
    rotary,
    silu_and_mul,
)
from kernels.int4_matmul import int4_matmul, quantize
from kernels.rms_norm import reference as rms_norm_reference
from kernels.rowwise_matmul import RowwiseWeight, rowwise_matmul
from kernels.rowwise_matmul import reference as rowwise_reference
from kernels.sampling import (
    Draw,
    Penalty,
    apply_penalties,
    gumbel_noise,
    penalize_rows,
    reference_logprobs,
    sample_row,
    sample_rows,
    token_logprobs,
)
from kernels.silu_and_mul import gelu_reference
from kernels.silu_and_mul import reference as silu_reference
from kernels.vector_search import reference as search_reference
from kernels.vector_search import search


@dataclass(frozen=True)
class KernelCase:
    """`outcome` gives what `expected` gives up to `allowed_error` (‖out − expected‖ / ‖expected‖).

    run: what is timed; where there is no `outcome`, its result is compared.
    """

    name: str
    run: Callable[[], object]
    expected: Callable[[], Tensor]
    allowed_error: float
    num_bytes: int
    num_flops: int = 0
    outcome: Callable[[], Tensor] | None = None

    def result(self) -> Tensor:
        out = (self.outcome or self.run)()
        assert isinstance(out, Tensor)
        return out


def cases(device: torch.device, dtype: torch.dtype, small: bool) -> Iterator[KernelCase]:
    """In the order of a decoder layer."""
    torch.manual_seed(0)
    hidden, heads, kv_heads, head_dim, inner = (64, 4, 2, 16, 32) if small else (4096, 32, 8, 128, 14336)
    tokens = 3 if small else 256
    item = dtype.itemsize

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, device=device).to(dtype)

    x, residual, weight = draw(tokens, hidden), draw(tokens, hidden), draw(hidden)
    yield KernelCase(
        "rms_norm", lambda: rms_norm(x, weight, 1e-5), lambda: rms_norm_reference(x.double(), weight.double(), 1e-5),
        1e-2, 2 * x.numel() * item,
    )  # fmt: skip
    yield KernelCase(
        "add_rms_norm", lambda: add_rms_norm(x, residual, weight, 1e-5)[0],
        lambda: rms_norm_reference((x + residual).double(), weight.double(), 1e-5), 1e-2, 4 * x.numel() * item,
    )  # fmt: skip
    gate_up = draw(tokens, 2 * inner)
    yield KernelCase(
        "silu_and_mul", lambda: silu_and_mul(gate_up), lambda: silu_reference(gate_up.double()), 1e-2,
        3 * tokens * inner * item,
    )  # fmt: skip
    yield KernelCase(
        "gelu_and_mul", lambda: gelu_and_mul(gate_up), lambda: gelu_reference(gate_up.double()), 1e-2,
        3 * tokens * inner * item,
    )  # fmt: skip
    qkv = draw(tokens, heads + 2 * kv_heads, head_dim)
    q, k, v = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
    angles = torch.rand(tokens, 1, head_dim // 2, device=device) * 6
    cos, sin, slots = angles.cos(), angles.sin(), torch.arange(tokens, device=device)
    for kind in (dtype, torch.float8_e4m3fn):
        shape = (-(-tokens // 16), kv_heads, 16, head_dim)
        pool = _pool(*(torch.zeros(shape, device=device).to(kind) for _ in range(2)))
        other = _pool(*(torch.zeros(shape, device=device).to(kind) for _ in range(2)))
        yield KernelCase(
            f"rope_and_write_kv{' fp8' if pool.is_float8 else ''}",
            lambda p=pool: rope_and_write_kv(q, k, v, cos, sin, p, slots),  # type: ignore[misc]
            lambda p=other: _flat(rotary.reference(q, k, v, cos, sin, p, slots), p),  # type: ignore[misc]
            3e-2 if pool.is_float8 else 1e-2, 2 * qkv.numel() * item,
            outcome=lambda p=pool: _flat(rope_and_write_kv(q, k, v, cos, sin, p, slots), p),  # type: ignore[misc]
        )  # fmt: skip
    yield from _attention(device, dtype, small, heads, kv_heads, head_dim)
    yield from _products(device, dtype, small, hidden, inner)
    yield from _choices(device, dtype, small)


def _pool(k: Tensor, v: Tensor) -> KVPool:
    """A pool that holds these; of float8 with scales of one."""
    one = torch.ones(k.shape[1], device=k.device) if k.dtype == torch.float8_e4m3fn else None
    return KVPool(k, v, one, one)


def _flat(q: Tensor, pool: KVPool) -> Tensor:
    """Rotated queries and what was written, side by side."""
    return torch.cat([values.float().flatten() for values in (q, pool.k, pool.v)])


def _attention(
    device: torch.device, dtype: torch.dtype, small: bool, heads: int, kv_heads: int, head_dim: int
) -> Iterator[KernelCase]:
    shapes = {"decode": [(1, 20)] * 2, "verify": [(3, 20)], "prefill": [(8, 20)]}
    if not small:
        shapes = {"decode": [(1, 4096)] * 64, "verify": [(9, 4096)] * 16, "prefill": [(2048, 4096)]}
    for name, lens in shapes.items():
        needed = [-(-context // 16) for _, context in lens]
        order = torch.randperm(sum(needed)).tolist()
        tables = [[order.pop() for _ in range(count)] for count in needed]
        shape = (sum(needed), kv_heads, 16, head_dim)
        for kind in (dtype, torch.float8_e4m3fn):
            pool = _pool(*(torch.randn(shape, device=device).to(kind) for _ in range(2)))
            q = torch.randn(sum(length for length, _ in lens), heads, head_dim, device=device).to(dtype)
            batch = AttentionBatch([q for q, _ in lens], [c for _, c in lens], tables, 16, device)
            attention = PagedAttention(batch, heads, kv_heads, head_dim**-0.5)
            seen = sum(length * context - length * (length - 1) // 2 for length, context in lens)
            num_bytes = sum(context for _, context in lens) * 2 * kv_heads * head_dim * kind.itemsize
            for window in (None, lens[0][1] // 4) if name == "decode" and not pool.is_float8 else (None,):
                yield KernelCase(
                    f"paged_attention {name}{' fp8' if pool.is_float8 else ''}{' window' if window else ''}",
                    lambda q=q, a=attention, p=pool, w=window: a(q, p, w),  # type: ignore[misc]
                    lambda q=q, b=batch, p=pool, w=window: paged_attention.reference(  # type: ignore[misc]
                        q.float(), p, b, head_dim**-0.5, w
                    ),
                    2e-2, num_bytes // 4 if window else num_bytes, 0 if window else 4 * seen * heads * head_dim,
                )  # fmt: skip


def _products(device: torch.device, dtype: torch.dtype, small: bool, hidden: int, inner: int) -> Iterator[KernelCase]:
    matrix = torch.randn(2 * inner, hidden, device=device).to(dtype) * hidden**-0.5
    int4 = quantize(matrix, 32 if small else 128)
    eight = {
        name: RowwiseWeight.of(matrix, kind) for name, kind in (("int8", torch.int8), ("fp8", torch.float8_e4m3fn))
    }
    for rows in (1, 3) if small else (1, 16, 64, 512):
        x = torch.randn(rows, hidden, device=device).to(dtype)
        flops = 2 * rows * matrix.numel()
        yield KernelCase(
            f"int4_matmul rows={rows}", lambda x=x: int4_matmul(x, int4),  # type: ignore[misc]
            lambda x=x: x.double() @ int4.dequantize(torch.float64), 1e-2, matrix.numel() // 2, flops,  # type: ignore[misc]
        )  # fmt: skip
        for name, weight in eight.items():
            yield KernelCase(
                f"rowwise_matmul {name} rows={rows}", lambda x=x, w=weight: rowwise_matmul(x, w),  # type: ignore[misc]
                lambda x=x, w=weight: rowwise_reference(x, w), 2e-2, matrix.numel(), flops,  # type: ignore[misc]
            )  # fmt: skip


def _choices(device: torch.device, dtype: torch.dtype, small: bool) -> Iterator[KernelCase]:
    rows, vocab = (2, 100) if small else (64, 128256)
    logits = 4 * torch.randn(rows, vocab, device=device)
    ids = torch.arange(vocab)
    plain = [Draw(0.8, 0, 1.0, 0.0, seed, 7) for seed in range(rows)]
    yield KernelCase(
        "sample_rows", lambda: sample_rows(logits, plain).cpu(),
        lambda: torch.stack(
            [(row.cpu() / 0.8).double() + gumbel_noise(d.seed, 7, ids) for row, d in zip(logits, plain, strict=True)]
        ).argmax(-1),
        0.0, logits.numel() * 4,
    )  # fmt: skip
    filtered = [Draw(0.8, 50, 0.9, 0.0, seed, 7) for seed in range(rows)]
    yield KernelCase(
        "sample_rows top_k top_p", lambda: sample_rows(logits, filtered).cpu(),
        lambda: torch.tensor(
            [sample_row(row, 0.8, 50, 0.9, 0.0, d.seed, 7) for row, d in zip(logits.cpu(), filtered, strict=True)]
        ),
        0.0, logits.numel() * 4,
    )  # fmt: skip
    seen = torch.randint(0, vocab, (rows, 20 if small else 2000))
    again = logits.clone()
    penalties = [Penalty(row.tolist(), row[7:].tolist(), 1.2, 0.3, 0.1) for row in seen]
    yield KernelCase(
        "penalize_rows", lambda: penalize_rows(again, penalties), lambda: _penalised_one_by_one(logits, penalties),
        1e-6, 2 * seen.numel() * 4, outcome=lambda: _penalised(logits, penalties),
    )  # fmt: skip
    chosen = logits.argmax(-1)
    yield KernelCase(
        "token_logprobs", lambda: token_logprobs(logits, chosen, 5)[0],
        lambda: reference_logprobs(logits.double(), chosen, 5)[0], 1e-5, logits.numel() * 4,
    )  # fmt: skip
    count, dim = (100, 16) if small else (1_000_000, 384)
    vectors = torch.randn(count, dim, device=device).to(dtype)
    queries = torch.randn(2 if small else 16, dim, device=device).to(dtype)
    yield KernelCase(
        "vector_search k=10", lambda: search(queries, vectors, 10)[0],
        lambda: search_reference(queries, vectors, 10)[0], 1e-3, vectors.numel() * dtype.itemsize,
        2 * len(queries) * vectors.numel(),
    )  # fmt: skip


def _penalised(logits: Tensor, penalties: list[Penalty]) -> Tensor:
    edited = logits.clone()
    penalize_rows(edited, penalties)
    return edited


def _penalised_one_by_one(logits: Tensor, penalties: list[Penalty]) -> Tensor:
    edited = logits.cpu().clone()
    for row, p in zip(edited, penalties, strict=True):
        seen, output = (torch.tensor(ids, dtype=torch.int64) for ids in (p.seen_ids, p.output_ids))
        apply_penalties(row, seen, output, p.repetition, p.presence, p.frequency)
    return edited.to(logits.device)
