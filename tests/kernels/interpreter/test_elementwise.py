"""Norms, rotation with the write of keys and values, and gates: Triton's interpreter against formulas in float64."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels import KVPool, add_rms_norm, gelu_and_mul, rms_norm, rope_and_write_kv, rotary, silu_and_mul, uses_triton
from kernels.rms_norm import reference as rms_norm_reference
from kernels.silu_and_mul import gelu_reference
from kernels.silu_and_mul import reference as silu_reference

BLOCK = 4
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3}
DTYPES = st.sampled_from([torch.float32, torch.float16])


def relative_error(out: Tensor, expected: Tensor) -> float:
    difference = (out.double() - expected.double()).norm()
    return float(difference / expected.double().norm().clamp(min=1e-30))


def test_the_kernels_under_test_are_triton() -> None:
    assert uses_triton(torch.zeros(1))


@given(rows=st.integers(0, 5), hidden=st.sampled_from([1, 48, 64, 80]), dtype=DTYPES, seed=st.integers(0, 99))
def test_rms_norm_with_and_without_a_residual(rows: int, hidden: int, dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    x, residual, weight = (torch.randn(shape).to(dtype) for shape in ((rows, hidden), (rows, hidden), (hidden,)))
    expected = rms_norm_reference(x.double(), weight.double(), 1e-5)
    out = rms_norm(x, weight, 1e-5)
    assert relative_error(out, expected) < TOLERANCE[dtype]
    assert torch.equal(out, rms_norm(x, weight, 1e-5))
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, rms_norm(total, weight, 1e-5))


@pytest.mark.parametrize(("gate", "reference"), [(silu_and_mul, silu_reference), (gelu_and_mul, gelu_reference)])
def test_gates_over_more_than_one_block_of_columns(
    gate: Callable[[Tensor], Tensor], reference: Callable[[Tensor], Tensor]
) -> None:
    torch.manual_seed(0)
    for rows, width, dtype in ((1, 1030, torch.float32), (3, 24, torch.float16), (0, 8, torch.float32)):
        gate_up = (4 * torch.randn(rows, 2 * width)).to(dtype)
        out = gate(gate_up)
        assert out.shape == (rows, width)
        assert relative_error(out, reference(gate_up.double())) < TOLERANCE[dtype]
        assert torch.equal(out, gate(gate_up))


@given(
    kv_heads=st.integers(1, 2),
    groups=st.sampled_from([1, 3]),
    head_dim=st.sampled_from([8, 12, 64, 80, 96, 128, 256]),
    norms=st.booleans(),
    float8=st.booleans(),
    dtype=DTYPES,
    seed=st.integers(0, 99),
)
def test_rope_writes_the_packed_product_at_its_slots(
    kv_heads: int, groups: int, head_dim: int, norms: bool, float8: bool, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    heads = kv_heads * groups
    qkv = torch.randn(4, heads + 2 * kv_heads, head_dim).to(dtype)
    q, k, v = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
    angles = torch.rand(4, 1, head_dim // 2) * 6
    slots = torch.tensor([9, -1, 2, 0])
    weights = (torch.randn(2, head_dim).to(dtype).unbind()) if norms else (None, None)
    kind = torch.float8_e4m3fn if float8 else dtype
    scales = (torch.rand(2, kv_heads) + 0.01).unbind() if float8 else (None, None)
    ours, theirs = ([torch.zeros(3, kv_heads, BLOCK, head_dim).to(kind) for _ in range(2)] for _ in range(2))
    given_ = (q, k, v, angles.cos(), angles.sin())
    out = rope_and_write_kv(*given_, KVPool(*ours, *scales), slots, *weights)
    expected = rotary.reference(*given_, KVPool(*theirs, *scales), slots, *weights)
    assert relative_error(out, expected) < TOLERANCE[dtype]
    assert relative_error(ours[0].float(), theirs[0].float()) < (0.02 if float8 else TOLERANCE[dtype])
    assert torch.equal(ours[1].float(), theirs[1].float())
    first = ours[0].clone()
    assert torch.equal(rope_and_write_kv(*given_, KVPool(*ours, *scales), slots, *weights), out)
    assert torch.equal(ours[0].float(), first.float())


def test_float8_codes_are_torchs_in_every_binade_and_saturate() -> None:
    torch.manual_seed(0)
    binades = torch.randn(400) * 2.0 ** torch.randint(-12, 12, (400,))
    ties = 1.0625 * 2.0 ** torch.arange(-9, 10)
    values = torch.cat([binades, ties, -3 * ties, torch.arange(64) * 2.0**-10, torch.tensor([0.0, -0.0, 1e9, -464.0])])
    values = torch.cat([values, torch.zeros(-len(values) % 512)]).view(-1, 1, 512)
    tokens = len(values)
    ours, theirs = ([torch.zeros(tokens, 1, 1, 512).to(torch.float8_e4m3fn) for _ in range(2)] for _ in range(2))
    cos, sin, slots, ones = torch.ones(tokens, 1, 256), torch.zeros(tokens, 1, 256), torch.arange(tokens), torch.ones(1)
    rope_and_write_kv(values, values, values, cos, sin, KVPool(*ours, ones, ones), slots)
    KVPool(*theirs, ones, ones).write(values, values, slots)
    for our, their in zip(ours, theirs, strict=True):
        assert torch.equal(our.float(), their.float())


def test_keys_go_to_slots_more_than_two_to_the_31_elements_away() -> None:
    # Memory that is never touched is never mapped: the pool is three blocks, 2³¹ elements apart.
    pool = torch.empty(2 * 2**31 + 64, dtype=torch.float16).as_strided((3, 1, BLOCK, 8), (2**31, BLOCK * 8, 8, 1))
    q = torch.randn(2, 1, 8).half()
    cos, sin = torch.ones(2, 1, 4), torch.zeros(2, 1, 4)
    rope_and_write_kv(q, q, q, cos, sin, KVPool(pool, pool), torch.tensor([9, 5]))
    assert torch.equal(pool[2, 0, 1], q[0, 0])
    assert torch.equal(pool[1, 0, 1], q[1, 0])
