"""AWQ's and GPTQ's files: what `quantization_config` says, which tensors make up a matrix, and the matrix they make.

Both keep a matrix [out, in] as tensors of its own name: `qweight` (codes, eight in an int32), `qzeros` and `scales` (of
each group of inputs), and GPTQ's `g_idx` (the group of each input, where they were quantised in another order). Shapes
are those that AutoGPTQ and AutoAWQ write; `kernels.int4_matmul` holds the layouts and the formula.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import ModelLoadError
from engine.parameter_check import shown
from kernels.int4_matmul import Int4Weight, from_awq, from_gptq
from kernels.packed.formats import GROUP, Bytes, pack_int4, pack_int8, quantize_int8

AWQ, GPTQ = "awq", "gptq"
# What a matrix is stored as; the first names it.
PARTS = ("qweight", "qzeros", "scales", "g_idx")
Read = Callable[[str], Tensor]


@dataclass(frozen=True)
class Int4Format:
    """How a checkpoint's matrices were quantised.

    Attributes:
        group_size: inputs that share a scale; None where all of a matrix do.
        moves_inputs: whether inputs were quantised in the order of their importance (`desc_act`).
        zeros_are_less_one: whether files hold zero − 1 (GPTQ's first version).
        is_symmetric: whether every zero is 8.
    """

    where: str
    method: str
    group_size: int | None
    moves_inputs: bool = False
    zeros_are_less_one: bool = False
    is_symmetric: bool = False

    @classmethod
    def of(cls, folder: Path) -> Int4Format | None:
        """What the folder's `config.json` says; None if its weights are not quantised.

        Raises ModelLoadError for a method, a number of bits or a layout that is not supported.
        """
        path = folder / "config.json"
        raw = json.loads(path.read_text(encoding="utf-8")).get("quantization_config")
        if raw is None:
            return None
        if not isinstance(raw, Mapping):
            raise ModelLoadError(f"{path}: quantization_config must be an object, got {shown(raw)}")
        return cls._read(raw, f"{path}: quantization_config")

    @classmethod
    def _read(cls, raw: Mapping[str, Any], where: str) -> Int4Format:
        method = raw.get("quant_method")
        if method not in (AWQ, GPTQ):
            raise ModelLoadError(f"{where}: quant_method {shown(method)} is not supported; supported: {AWQ}, {GPTQ}")
        bits = raw.get("bits", raw.get("w_bit"))
        if bits != 4:
            raise ModelLoadError(f"{where}: {shown(bits)} bits are not supported; supported: 4")
        size = raw.get("group_size", raw.get("q_group_size", 128))
        if not isinstance(size, int) or isinstance(size, bool) or not (size == -1 or (size > 0 and size % 8 == 0)):
            raise ModelLoadError(f"{where}: group_size must be -1 or a multiple of 8, got {shown(size)}")
        layouts = {AWQ: ("version", ("gemm",)), GPTQ: ("checkpoint_format", ("gptq", "gptq_v2"))}
        field, known = layouts[method]
        layout = str(raw.get(field) or known[0]).lower()
        if layout not in known:
            raise ModelLoadError(f"{where}: {field} {layout!r} is not supported; supported: {', '.join(known)}")
        return cls(
            where,
            method,
            None if size == -1 else size,
            moves_inputs=method == GPTQ and bool(raw.get("desc_act", False)),
            zeros_are_less_one=layout == "gptq",
            is_symmetric=method == GPTQ and bool(raw.get("sym", False)),
        )

    def __str__(self) -> str:
        group = "one group" if self.group_size is None else f"groups of {self.group_size}"
        return f"{self.method.upper()}, 4 bits, {group}{', inputs moved' if self.moves_inputs else ''}"

    @property
    def is_packed_to_int4(self) -> bool:
        """Whether the CPU's kernels, with blocks of consecutive inputs, can hold the codes as they are."""
        return not self.moves_inputs and (self.group_size or GROUP) % GROUP == 0

    def matrices(self, stored: Mapping[str, tuple[int, ...]], types: Mapping[str, str]) -> dict[str, tuple[int, int]]:
        """Name (ending in ".weight") and shape [out, in] of every quantised matrix among the stored tensors.

        Raises ModelLoadError, with the tensor's name, where one is missing or of another shape or type.
        """
        found = {}
        for name, shape in stored.items():
            base, _, part = name.rpartition(".")
            if part != "qweight":
                continue
            if len(shape) != 2:
                raise ModelLoadError(f"{self.where}: tensor {name} has shape {list(shape)}, it must have two axes")
            out, inputs = (shape[1], 8 * shape[0]) if self.method == GPTQ else (8 * shape[1], shape[0])
            self._check_parts(base, out, inputs, stored, types)
            found[f"{base}.weight"] = (out, inputs)
        return found

    def _check_parts(
        self, base: str, out: int, inputs: int, stored: Mapping[str, tuple[int, ...]], types: Mapping[str, str]
    ) -> None:
        group = self.group_size or inputs
        if inputs % group or out % 8:
            raise ModelLoadError(
                f"{self.where}: tensor {base}.qweight has {inputs} inputs and {out} outputs; inputs must come in whole "
                f"groups of {group}, outputs in eights"
            )
        groups = inputs // group
        expected = {"qzeros": (groups, out // 8), "scales": (groups, out), "g_idx": (inputs,)}
        for part, shape in expected.items():
            name = f"{base}.{part}"
            if name not in stored:
                if part == "g_idx" and not self.moves_inputs:
                    continue
                raise ModelLoadError(f"{self.where}: the files lack the tensor {name}")
            if stored[name] != shape:
                raise ModelLoadError(
                    f"{self.where}: tensor {name} has shape {list(stored[name])}, {base}.qweight and a group_size of "
                    f"{self.group_size or -1} need {list(shape)}"
                )
        for part in PARTS:
            kind, allowed = types.get(f"{base}.{part}"), ("F16", "BF16", "F32") if part == "scales" else ("I32",)
            if kind is not None and kind not in allowed:
                raise ModelLoadError(
                    f"{self.where}: tensor {base}.{part} is stored as {kind}; supported: {', '.join(allowed)}"
                )

    def weight(self, name: str, stored: Container[str], read: Read) -> Int4Weight:
        """The matrix `name` (ending in ".weight") in the one layout that is computed with; `read` gets a tensor."""
        base = name.removesuffix(".weight")
        codes, zeros, scales = (read(f"{base}.{part}") for part in PARTS[:3])
        if not bool(torch.isfinite(scales.half()).all()):
            raise ModelLoadError(f"{self.where}: tensor {base}.scales holds numbers that are not finite in 16 bits")
        if self.method == AWQ:
            return from_awq(codes, zeros, scales)
        order = read(f"{base}.g_idx") if f"{base}.g_idx" in stored else None
        try:
            weight = from_gptq(codes, zeros, scales, order, zeros_are_less_one=self._are_less_one(zeros))
        except ValueError as error:
            raise ModelLoadError(f"{self.where}: tensor {base}.g_idx: {error}") from error
        if weight.order is not None and not self.moves_inputs:
            raise ModelLoadError(f"{self.where}: desc_act is false, yet tensor {base}.g_idx moves inputs")
        return weight

    def packed(self, weight: Int4Weight) -> Bytes:
        """A matrix in the format of `kernels.packed`: its codes, or rounded to 8 bits where it can not hold them."""
        if not self.is_packed_to_int4:
            return pack_int8(*quantize_int8(weight.dense(torch.float32).numpy()))
        scales, zeros = (
            part.float().t().repeat_interleave(weight.group // GROUP, dim=1) for part in (weight.scales, weight.zeros)
        )
        codes = weight.codes().t().to(torch.uint8).contiguous().numpy()
        return pack_int4(codes, scales.half().numpy(), (-zeros * scales).half().numpy())

    def _are_less_one(self, zeros: Tensor) -> bool:
        """Files are mislabelled; of a symmetric one every zero is 8, stored as 7 in the first version."""
        if self.is_symmetric and bool((zeros == -0x77777778).all()):  # 0x88888888
            return False
        if self.is_symmetric and bool((zeros == 0x77777777).all()):
            return True
        return self.zeros_are_less_one
