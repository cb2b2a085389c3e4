"""AWQ and GPTQ repacked to one layout, against unpacking written from the formats' descriptions; 8-bit rounding."""

import pytest
import torch
from torch import Tensor

from kernels.int4_matmul import from_awq, from_gptq, int4_matmul, quantize

IN, OUT, GROUP = 64, 16, 32


def words(codes: Tensor) -> Tensor:
    """[rows, 8 n] nibbles to [rows, n] int32, the first nibble lowest."""
    packed = torch.zeros(codes.shape[0], codes.shape[1] // 8, dtype=torch.int64)
    for nibble in range(8):
        packed |= codes[:, nibble::8].long() << 4 * nibble
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).int()


def make() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    zeros = torch.randint(1, 16, (IN // GROUP, OUT))
    return torch.randint(0, 16, (IN, OUT)), zeros, torch.rand(IN // GROUP, OUT).half()


@pytest.mark.parametrize("version", [1, 2])
def test_gptq_with_and_without_moved_inputs(version: int) -> None:
    codes, zeros, scales = make()
    stored_zeros = words(zeros - 1 if version == 1 else zeros)
    qweight = words(codes.t().contiguous()).t().contiguous()
    expected = (codes - zeros.repeat_interleave(GROUP, 0)) * scales.float().repeat_interleave(GROUP, 0)
    in_order = torch.arange(IN) // GROUP
    weight = from_gptq(qweight, stored_zeros, scales, in_order, zeros_are_less_one=version == 1)
    assert weight.order is None
    assert torch.equal(weight.dequantize(torch.float32), expected)
    moved = in_order[torch.randperm(IN)]
    weight = from_gptq(qweight, stored_zeros, scales, moved, zeros_are_less_one=version == 1)
    x = torch.randn(3, IN)
    torch.testing.assert_close(int4_matmul(x, weight), x @ ((codes - zeros[moved]) * scales.float()[moved]))


def test_awq_interleaves_the_columns_of_a_word() -> None:
    codes, zeros, scales = make()
    # AutoAWQ packs column ORDER[i] of eight into nibble i.
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    columns = (torch.arange(OUT) // 8 * 8).view(-1, 8) + order
    weight = from_awq(words(codes[:, columns.flatten()]), words(zeros[:, columns.flatten()]), scales)
    expected = (codes - zeros.repeat_interleave(GROUP, 0)) * scales.float().repeat_interleave(GROUP, 0)
    assert torch.equal(weight.dequantize(torch.float32), expected)


def test_rounding_to_four_bits_errs_by_half_a_step() -> None:
    weight = torch.randn(OUT, IN)
    rounded = quantize(weight, GROUP)
    error = (rounded.dequantize(torch.float32).t() - weight).abs()
    steps = rounded.scales.float().repeat_interleave(GROUP, 0).t()
    assert bool((error <= steps * 1.02).all())
    assert float(error.mean()) < 0.3 * float(steps.mean())


def test_groups_that_do_not_come_out_even_are_refused() -> None:
    with pytest.raises(ValueError, match="can not be cut into groups of 48"):
        quantize(torch.randn(OUT, IN), 48)
    codes, zeros, scales = make()
    qweight = words(codes.t().contiguous()).t().contiguous()
    with pytest.raises(ValueError, match="each must have 32"):
        from_gptq(qweight, words(zeros), scales, torch.tensor([0] * 40 + [1] * 24), zeros_are_less_one=True)
