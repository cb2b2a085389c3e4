"""Paged attention in Triton's interpreter against a dense softmax in float64."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from kernels import AttentionBatch, KVPool, PagedAttention, paged_attention
from kernels.gpu import attention_tiles
from kernels.gpu import paged_attention as gpu
from tests.kernels.test_kernels import BLOCK, CPU, make_step


@pytest.fixture(autouse=True, scope="module")
def small_splits():
    """Splits of 32 keys, so that short sequences have several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_tiles, "SPLIT", 32)
        patch.setattr(gpu, "MAX_PROGRAMS", 4)
        yield


def in_float64(q: Tensor, k_pool: Tensor, v_pool: Tensor, batch: AttentionBatch, window: int | None) -> Tensor:
    groups = q.shape[1] // k_pool.shape[1]
    out, start = torch.empty(q.shape, dtype=torch.float64), 0
    for query_len, context, table in zip(batch.query_lens, batch.context_lens, batch.block_tables, strict=True):
        k, v = (
            torch.cat([p[b] for b in table], dim=1)[:, :context].double().repeat_interleave(groups, 0)
            for p in (k_pool, v_pool)
        )
        rows = q[start : start + query_len].double().transpose(0, 1)
        scores = rows @ k.transpose(1, 2) * q.shape[2] ** -0.5
        last = torch.arange(context - query_len, context)[:, None]
        keys = torch.arange(context)[None]
        seen = (keys <= last) & (keys > last - (window or context))
        out[start : start + query_len] = (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v).transpose(0, 1)
        start += query_len
    return out


# Around the borders of blocks (4), tiles of keys (32 and 64), splits (32), and tiles of rows.
LENGTHS = st.tuples(
    st.sampled_from([1, 1, 1, 2, 5, 9, 17]), st.sampled_from([0, 2, 3, 27, 30, 31, 32, 33, 63, 64, 65])
).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(
    lens=st.lists(LENGTHS, min_size=1, max_size=3),
    groups=st.sampled_from([1, 3, 4, 5, 8]),
    kv_heads=st.sampled_from([1, 2]),
    head_dim=st.sampled_from([8, 64, 80]),
    window=st.sampled_from([None, None, 1, 33]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    deterministic=st.booleans(),
    seed=st.integers(0, 1000),
)
@example([(1, 96), (17, 40)], 3, 1, 96, None, torch.float16, False, 0)
@example([(1, 1), (5, 97)], 8, 1, 128, 33, torch.float32, False, 1)
@example([(1, 33), (2, 5)], 4, 1, 256, None, torch.float16, False, 2)
def test_ragged_rows_equal_a_dense_softmax(
    lens: list[tuple[int, int]], groups: int, kv_heads: int, head_dim: int, window: int | None, dtype: torch.dtype,
    deterministic: bool, seed: int,
) -> None:  # fmt: skip
    batch, k_pool, v_pool = make_step(lens, kv_heads, head_dim, seed)
    k_pool, v_pool = k_pool.to(dtype), v_pool.to(dtype)
    q = torch.randn(sum(query for query, _ in lens), groups * kv_heads, head_dim).to(dtype)
    attention = PagedAttention(batch, groups * kv_heads, kv_heads, head_dim**-0.5, deterministic=deterministic)
    out = attention(q, KVPool(k_pool, v_pool), window)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-3
    torch.testing.assert_close(
        out.double(), in_float64(q, k_pool, v_pool, batch, window), atol=tolerance, rtol=tolerance
    )
    assert torch.equal(out, attention(q, KVPool(k_pool, v_pool), window))


def test_splits_get_longer_where_their_results_would_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, k_pool, v_pool = make_step([(20, 100), (1, 200), (3, 9)], 2, 16, 7)
    q = torch.randn(24, 4, 16)
    # Room for three items of two heads: one tile of 64 rows for each sequence, so that none may be split.
    monkeypatch.setattr(attention_tiles, "PARTS_BYTES", 3 * 4 * 2 * 64 * 16)
    out = PagedAttention(batch, 4, 2, 0.25)(q, KVPool(k_pool, v_pool))
    torch.testing.assert_close(out.double(), in_float64(q, k_pool, v_pool, batch, None), atol=1e-5, rtol=1e-5)


def test_tiles_are_split_as_far_as_there_is_room() -> None:
    of = attention_tiles.AttentionTiles.of
    whole = of([1, 1], [320, 33], 4)
    assert (whole.split, len(whole.items), whole.tiles[:, 3].tolist()) == (32, 12, [10, 2])
    fewer = of([1, 1], [320, 33], 4, max_items=7)
    assert (fewer.split, len(fewer.items), fewer.tiles[:, 3].tolist()) == (64, 6, [5, 1])
    assert fewer.items.tolist() == [[0, 0], [0, 1], [0, 2], [0, 3], [0, 4], [1, 0]]
    least = of([1, 1], [320, 33], 4, max_items=0)
    assert (least.split, least.is_split) == (512, False)


def test_a_row_has_the_same_bits_alone_and_in_a_batch() -> None:
    # Rows that stand first in their tile: the interpreter's products depend on the place in it, a card's do not.
    batch, k_pool, v_pool = make_step([(5, 70), (1, 40), (1, 65)], 2, 16, 3)
    q = torch.randn(7, 6, 16)
    together = PagedAttention(batch, 6, 2, 0.25, deterministic=True)(q, KVPool(k_pool, v_pool))
    for row, sequence in ((5, 1), (6, 2)):
        alone = AttentionBatch([1], [batch.context_lens[sequence]], [batch.block_tables[sequence]], BLOCK, CPU)
        out = PagedAttention(alone, 6, 2, 0.25, deterministic=True)(q[row : row + 1], KVPool(k_pool, v_pool))
        assert torch.equal(out[0], together[row])


def test_a_float8_pool_is_read_with_its_scales() -> None:
    batch, k_pool, v_pool = make_step([(2, 37), (1, 9)], 2, 16, 5)
    scales = torch.tensor([0.5, 0.02]), torch.tensor([0.25, 1.0])
    pools = [
        (pool / scale[:, None, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
        for pool, scale in zip((k_pool, v_pool), scales, strict=True)
    ]
    q = torch.randn(3, 4, 16)
    out = PagedAttention(batch, 4, 2, 0.25)(q, KVPool(*pools, *scales))
    expected = paged_attention.reference(q, KVPool(*pools, *scales), batch, 0.25)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_blocks_more_than_two_to_the_31_elements_away_are_read() -> None:
    # Memory that is never touched is never mapped: three blocks, 2³¹ elements apart.
    shape, strides = (3, 1, BLOCK, 16), (2**31, BLOCK * 16, 16, 1)
    pool = torch.empty(2 * 2**31 + 64, dtype=torch.float16).as_strided(shape, strides)
    pool[1], pool[2] = torch.randn(1, BLOCK, 16), torch.randn(1, BLOCK, 16)
    q = torch.randn(1, 2, 16).half()
    out = PagedAttention(AttentionBatch([1], [6], [[2, 1]], BLOCK, CPU), 2, 1, 0.25)(q, KVPool(pool, pool))
    near = pool[1:].clone()
    expected = PagedAttention(AttentionBatch([1], [6], [[1, 0]], BLOCK, CPU), 2, 1, 0.25)(q, KVPool(near, near))
    assert torch.equal(out, expected)
