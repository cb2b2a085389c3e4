"""Packed weights: layouts against a plain unpacking, products and a whole step against float64, rows bit-equal."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernels import packed
from kernels.packed.formats import Bytes, pack_int4, pack_int8, quantize_int8, unpack

REPOSITORY = Path(__file__).resolve().parents[2]
shapes = st.tuples(st.integers(1, 70), st.integers(1, 6).map(lambda blocks: blocks * 32))


def random_int4(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Bytes, NDArray[np.float64]]:
    codes = rng.integers(0, 16, shape).astype(np.uint8)
    scales = rng.uniform(0.001, 2, (shape[0], shape[1] // 32)).astype(np.float16)
    least = rng.uniform(-8, 1, scales.shape).astype(np.float16)
    values = codes * np.repeat(scales.astype(float), 32, 1) + np.repeat(least.astype(float), 32, 1)
    return pack_int4(codes, scales, least), values


@settings(max_examples=25, deadline=None)
@given(shapes, st.integers(0, 2**32))
def test_unpacking_gives_back_what_was_packed(shape: tuple[int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    packed4, values = random_int4(rng, shape)
    np.testing.assert_allclose(unpack(packed4, shape[0]), values, rtol=1e-6, atol=1e-6)
    weight = rng.standard_normal(shape).astype(np.float32)
    weight[0] = 0.0
    codes, scales = quantize_int8(weight)
    expected = codes * np.repeat(scales.astype(np.float32), 32, 1)
    np.testing.assert_array_equal(unpack(pack_int8(codes, scales), shape[0]), expected)
    # Half a step of the block's scale, and float16's rounding of it.
    steps = np.repeat(scales.astype(np.float32), 32, 1)
    assert (np.abs(expected - weight) <= 0.51 * steps + 1e-3 * np.abs(weight)).all()


def quantized_rows(x: NDArray[np.float64]) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float64]]:
    """Codes, (scale, scale · Σ codes) and the values they stand for."""
    blocks = x.reshape(len(x), -1, 32)
    scale = np.abs(blocks).max(-1) / 127
    codes = np.rint(blocks / np.where(scale == 0, 1, scale)[..., None]).astype(np.int8)
    sums = np.stack([scale, scale * codes.sum(-1)], -1).astype(np.float32)
    values = (codes * sums[..., :1].astype(float)).reshape(x.shape)
    return codes.reshape(x.shape).copy(), sums, values


@settings(max_examples=25, deadline=None)
@given(shapes, st.integers(1, 9), st.integers(0, 2**32), st.booleans())
def test_products_equal_the_formula_and_rows_do_not_touch(
    shape: tuple[int, int], num_rows: int, seed: int, four_bits: bool
) -> None:
    from kernels.packed.formats import INT4, INT8
    from kernels.packed.matmul import panels

    rng = np.random.default_rng(seed)
    if four_bits:
        weight, values = random_int4(rng, shape)
    else:
        # The ends of the range, which the instructions must not saturate at.
        dense = rng.choice([-127.0, 127.0, 1.0, 0.0], shape).astype(np.float32)
        weight = pack_int8(*quantize_int8(dense))
        values = unpack(weight, shape[0]).astype(float)
    x = rng.standard_normal((num_rows, shape[1])) * 10.0 ** rng.integers(-3, 4, (num_rows, 1))
    x[rng.random(x.shape) < 0.1] = 0.0
    if not four_bits:
        x = np.sign(x) * np.abs(x).max()
    codes, sums, exact = quantized_rows(x)
    kind = INT4 if four_bits else INT8

    def product(first: int, last: int) -> NDArray[np.float32]:
        out = np.full((last - first, weight.shape[0] * 16), np.nan, dtype=np.float32)
        own, own_sums = codes[first:last].copy(), sums[first:last].copy()
        panels(
            weight.ctypes.data, kind, shape[1] // 32, 4, 0, weight.shape[0], own.ctypes.data, own_sums.ctypes.data,
            last - first, out.ctypes.data, out.shape[1] * 4,
        )  # fmt: skip
        return out[:, : shape[0]]

    together = product(0, num_rows)
    magnitude = np.abs(exact) @ np.abs(values.T) + 1e-6
    assert (np.abs(together - exact @ values.T) <= 1e-5 * magnitude).all()
    for row in range(num_rows):
        np.testing.assert_array_equal(product(row, row + 1)[0], together[row])


def test_a_whole_step_is_checked_before_the_kernels_are_used() -> None:
    from kernels.packed.check import first_fault

    assert first_fault() is None
    assert packed.why_unavailable() is None


def test_a_wrong_kernel_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.packed import check

    right = check._reference
    monkeypatch.setattr(check, "_reference", lambda *arguments: right(*arguments) * 1.2)
    assert "wrong on this CPU" in str(check.first_fault())


def test_compiled_code_is_loaded_without_the_compiler() -> None:
    assert packed.why_unavailable() is None  # compiled and kept, if it was not
    program = """
import sys
sys.modules["numba"] = None  # an import fails
from kernels import packed
sys.exit(packed.why_unavailable())
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=REPOSITORY, timeout=120)


def test_kept_code_that_is_not_whole_is_not_loaded(tmp_path: Path) -> None:
    from kernels.packed import compiled

    path = tmp_path / "compiled-1" / "cpu.o"
    compiled._keep(path, b"code")
    assert compiled._read(path) == b"code"
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:10], b"", whole[:-1] + b"x"):
        path.write_bytes(damaged)
        assert compiled._read(path) is None
    assert compiled._read(tmp_path / "absent.o") is None


def test_code_of_other_sources_is_cleared_away(tmp_path: Path) -> None:
    from kernels.packed import compiled

    for version in ("compiled-1", "compiled-2"):
        compiled._keep(tmp_path / version / "cpu.o", b"code")
    assert [path.name for path in tmp_path.iterdir()] == ["compiled-2"]


@pytest.mark.parametrize("value", [-100.0, -20.5, -1e-6, 0.0, 0.3, 1.0, 40.0, 87.5])
def test_exponential(value: float) -> None:
    from numba import njit

    from kernels.packed.rows import exponential
    from kernels.packed.simd import load_f32x16, store_f32x16

    @njit
    def apply(source: int, target: int) -> None:
        store_f32x16(target, exponential(load_f32x16(source)))

    x = (value + np.linspace(0, 0.49, 16)).astype(np.float32)
    y = np.empty_like(x)
    apply(x.ctypes.data, y.ctypes.data)
    expected = np.exp(np.clip(x.astype(float), -87, 88))
    np.testing.assert_allclose(y, expected, rtol=3e-7)


def test_keys_and_values_are_stored_finite() -> None:
    from numba import njit

    from kernels.packed.simd import KV_PACK, load_f32x16, store_kv

    @njit
    def apply(source: int, target: int) -> None:
        store_kv(target, load_f32x16(source))

    x = np.zeros(16, dtype=np.float32)
    x[:6] = np.nan, np.inf, -np.inf, 1.5, -3e38, 70000.0
    stored = np.empty(16, dtype=np.uint16)
    apply(x.ctypes.data, stored.ctypes.data)
    if KV_PACK == 2:
        y = (stored.astype(np.uint32) << 16).view(np.float32)
    else:
        y = stored.view(np.float16).astype(np.float32)
    assert np.isfinite(y).all()
    assert y[3] == 1.5
    assert y[1] > 6e4
    assert y[2] < -6e4
