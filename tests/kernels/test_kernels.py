"""Each operation against its formula in float64 or its own reference, over ragged and awkward shapes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import (
    AttentionBatch,
    KVPool,
    PagedAttention,
    add_rms_norm,
    paged_attention,
    rms_norm,
    rope_and_write_kv,
    silu_and_mul,
)
from kernels.rms_norm import reference as rms_norm_reference
from kernels.rotary import rotate

BLOCK = 4
CPU = torch.device("cpu")


def test_rms_norm_equals_its_formula_in_float64() -> None:
    x, weight = torch.randn(7, 48), torch.randn(48)
    wide = x.double()
    expected = (wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()).float()
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rms_norm_reference(x, weight, 1e-5), expected, atol=1e-5, rtol=1e-5)


def test_rms_norm_of_zeros_is_zero_and_bfloat16_rounds_once_before_the_weight() -> None:
    assert rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6).abs().max() == 0
    x, weight = torch.randn(5, 64).bfloat16(), torch.randn(64).bfloat16()
    wide = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
    assert torch.equal(rms_norm(x, weight, 1e-5), weight * wide.bfloat16())


def test_add_rms_norm_returns_the_sum_it_normalised() -> None:
    x, residual, weight = torch.randn(3, 16), torch.randn(3, 16), torch.randn(16)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, rms_norm(x + residual, weight, 1e-5))


def test_silu_and_mul_takes_the_gate_from_the_first_half() -> None:
    gate, up = torch.randn(4, 10), torch.randn(4, 10)
    expected = (gate.double() / (1 + torch.exp(-gate.double())) * up.double()).float()
    torch.testing.assert_close(silu_and_mul(torch.cat([gate, up], -1)), expected, atol=1e-6, rtol=1e-5)


def test_rotation_is_a_complex_product_of_paired_halves() -> None:
    x = torch.randn(6, 3, 8)
    angles = torch.arange(6)[:, None] * (1.0 / 10000 ** (torch.arange(0, 8, 2) / 8))[None]
    rotated = rotate(x, angles.cos()[:, None], angles.sin()[:, None])
    pairs = torch.complex(x[..., :4].double(), x[..., 4:].double()) * torch.exp(1j * angles.double())[:, None]
    expected = torch.cat([pairs.real, pairs.imag], -1).float()
    torch.testing.assert_close(rotated, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(rotated[0], x[0])


def test_kv_is_written_at_its_slots_and_slot_minus_one_is_skipped() -> None:
    k_pool, v_pool = torch.zeros(3, 2, BLOCK, 6), torch.zeros(3, 2, BLOCK, 6)
    k, v = torch.randn(3, 2, 6), torch.randn(3, 2, 6)
    KVPool(k_pool, v_pool).write(k, v, torch.tensor([9, -1, 2]))
    assert torch.equal(k_pool[2, :, 1], k[0])
    assert torch.equal(v_pool[0, :, 2], v[2])
    assert int((k_pool.abs().sum((1, 3)) > 0).sum()) == 2


def test_rope_and_write_normalises_q_and_k_where_the_model_does() -> None:
    q, k, v = torch.randn(2, 4, 8), torch.randn(2, 2, 8), torch.randn(2, 2, 8)
    cos, sin = torch.ones(2, 1, 4), torch.zeros(2, 1, 4)
    pools = torch.zeros(1, 2, BLOCK, 8), torch.zeros(1, 2, BLOCK, 8)
    q_norm, k_norm = torch.randn(8), torch.randn(8)
    out = rope_and_write_kv(q, k, v, cos, sin, KVPool(*pools), torch.tensor([0, 1]), q_norm, k_norm, 1e-6)
    torch.testing.assert_close(out, rms_norm(q, q_norm, 1e-6))
    torch.testing.assert_close(pools[0][0, :, :2].transpose(0, 1), rms_norm(k, k_norm, 1e-6))
    assert torch.equal(pools[1][0, :, :2].transpose(0, 1), v)


def make_step(
    lens: list[tuple[int, int]], kv_heads: int, head_dim: int, seed: int
) -> tuple[AttentionBatch, Tensor, Tensor]:
    """A batch of (query_len, context_len) over shuffled blocks of a pool whose unused slots hold NaN."""
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-context // BLOCK) for _, context in lens]
    order = torch.randperm(sum(needed) + 3, generator=generator).tolist()
    shape = (len(order), kv_heads, BLOCK, head_dim)
    k_pool, v_pool = torch.full(shape, float("nan")), torch.full(shape, float("nan"))
    tables = []
    for (_, context), count in zip(lens, needed, strict=True):
        table, order = order[:count], order[count:]
        for position in range(context):
            block, offset = table[position // BLOCK], position % BLOCK
            k_pool[block, :, offset] = torch.randn(kv_heads, head_dim, generator=generator)
            v_pool[block, :, offset] = torch.randn(kv_heads, head_dim, generator=generator)
        tables.append(table)
    batch = AttentionBatch([q for q, _ in lens], [c for _, c in lens], tables, BLOCK, CPU)
    return batch, k_pool, v_pool


SEQUENCE = st.tuples(st.integers(1, 9), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(
    lens=st.lists(SEQUENCE, min_size=1, max_size=5),
    groups=st.sampled_from([1, 3, 4]),
    kv_heads=st.sampled_from([1, 2]),
    window=st.sampled_from([None, 1, 5]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100, deadline=None)
def test_attention_equals_a_dense_softmax_in_float64(
    lens: list[tuple[int, int]], groups: int, kv_heads: int, window: int | None, seed: int
) -> None:
    head_dim = 8
    batch, k_pool, v_pool = make_step(lens, kv_heads, head_dim, seed)
    q = torch.randn(sum(query for query, _ in lens), groups * kv_heads, head_dim)
    out = PagedAttention(batch, groups * kv_heads, kv_heads, head_dim**-0.5)(q, KVPool(k_pool, v_pool), window)
    expected, start = torch.empty_like(q), 0
    for (query_len, context), table in zip(lens, batch.block_tables, strict=True):
        k = torch.cat([k_pool[block] for block in table], dim=1)[:, :context].double()
        v = torch.cat([v_pool[block] for block in table], dim=1)[:, :context].double()
        for row in range(query_len):
            last = context - query_len + row
            first = 0 if window is None else max(0, last - window + 1)
            for head in range(groups * kv_heads):
                keys, values = k[head // groups, first : last + 1], v[head // groups, first : last + 1]
                weights = (keys @ q[start + row, head].double() * head_dim**-0.5).softmax(0)
                expected[start + row, head] = (weights @ values).float()
        start += query_len
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)
    ours = paged_attention.reference(q, KVPool(k_pool, v_pool), batch, head_dim**-0.5, window)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_in_half_precision_stays_close_to_float32(dtype: torch.dtype) -> None:
    batch, k_pool, v_pool = make_step([(1, 30), (5, 17), (1, 3)], 2, 16, seed=3)
    q = torch.randn(7, 6, 16)
    whole = PagedAttention(batch, 6, 2, 0.25)(q, KVPool(k_pool, v_pool))
    half = PagedAttention(batch, 6, 2, 0.25)(q.to(dtype), KVPool(k_pool.to(dtype), v_pool.to(dtype)))
    torch.testing.assert_close(half.float(), whole, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("deterministic", [False, True])
def test_attention_over_a_float8_pool_reads_it_with_its_scales(deterministic: bool) -> None:
    batch, k_pool, v_pool = make_step([(1, 30), (5, 17), (1, 3)], 2, 16, seed=3)
    k_scales, v_scales = torch.tensor([0.5, 0.02]), torch.tensor([0.25, 1.0])
    shape = (len(k_pool), 2, BLOCK, 16)
    pool = KVPool(*(torch.zeros(shape).to(torch.float8_e4m3fn) for _ in range(2)), k_scales, v_scales)
    slots = torch.arange(len(k_pool) * BLOCK)
    pool.write(*(p.nan_to_num().transpose(1, 2).flatten(0, 1) for p in (k_pool, v_pool)), slots)
    rounded = KVPool(pool.k.float() * k_scales[:, None, None], pool.v.float() * v_scales[:, None, None])
    # Three bits behind the leading one: half a step is a sixteenth.
    torch.testing.assert_close(rounded.v, v_pool.nan_to_num(), atol=1e-3, rtol=1 / 16)
    q = torch.randn(7, 6, 16)
    out = PagedAttention(batch, 6, 2, 0.25, deterministic=deterministic)(q, pool)
    torch.testing.assert_close(out, paged_attention.reference(q, pool, batch, 0.25), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(out, paged_attention.reference(q, rounded, batch, 0.25), atol=1e-5, rtol=1e-4)
