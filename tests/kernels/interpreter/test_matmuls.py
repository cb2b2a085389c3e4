"""Products with 4-bit and 8-bit weights in Triton's interpreter against float64; and the repacking of AWQ and GPTQ."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.gpu import rowwise_matmul as gpu_rowwise
from kernels.int4_matmul import Int4Weight, int4_matmul, quantize
from kernels.rowwise_matmul import RowwiseWeight, quantize_rows_reference, reference, rowwise_matmul
from tests.kernels.interpreter.test_elementwise import relative_error

# Around the borders of tiles of rows.
ROWS = st.sampled_from([1, 15, 16, 17, 63, 64, 65, 129])


def with_outliers(rows: int, width: int) -> Tensor:
    x = torch.randn(rows, width)
    x[:, 3] *= 60
    x[0] = 0
    return x


@given(rows=ROWS, inputs=st.sampled_from([32, 160, 640]), bias=st.booleans(), seed=st.integers(0, 99))
def test_int4_product(rows: int, inputs: int, bias: bool, seed: int) -> None:
    torch.manual_seed(seed)
    weight = quantize(torch.randn(72, inputs), group=128 if inputs == 640 else 32)
    x, b = with_outliers(rows, inputs), torch.randn(72) if bias else None
    out = int4_matmul(x, weight, b)
    expected = x.double() @ weight.dequantize(torch.float64) + (0 if b is None else b.double())
    assert relative_error(out, expected) < 1e-5
    assert torch.equal(out, int4_matmul(x, weight, b))
    assert relative_error(int4_matmul(x.half(), weight), x.double() @ weight.dequantize(torch.float64)) < 2e-3


def test_int4_product_with_moved_inputs() -> None:
    torch.manual_seed(0)
    plain = quantize(torch.randn(16, 64), group=32)
    order = torch.randperm(64)
    moved = Int4Weight(plain.words, plain.scales, plain.zeros, 32, order)
    x = torch.randn(3, 64)
    assert torch.equal(int4_matmul(x, moved), int4_matmul(x[:, order], plain))


@given(
    rows=ROWS, inputs=st.sampled_from([16, 130, 272]), float8=st.booleans(), bias=st.booleans(), seed=st.integers(0, 99)
)
def test_rowwise_product(rows: int, inputs: int, float8: bool, bias: bool, seed: int) -> None:
    torch.manual_seed(seed)
    dtype = torch.float8_e4m3fn if float8 else torch.int8
    x, weight = with_outliers(rows, inputs), RowwiseWeight.of(torch.randn(70, inputs), dtype)
    b = torch.randn(70) if bias else None
    codes, scales = gpu_rowwise.quantize_rows(x, dtype)
    expected_codes, expected_scales = quantize_rows_reference(x, dtype)
    torch.testing.assert_close(scales, expected_scales, atol=0, rtol=1e-6)
    assert torch.equal(codes.float(), expected_codes.float())
    out = rowwise_matmul(x, weight, b)
    assert relative_error(out, reference(x.double(), weight, b)) < (1e-3 if float8 else 1e-5)
    assert torch.equal(out, rowwise_matmul(x, weight, b))
