"""Rotary angles of each position, and the ways in which checkpoints stretch them to longer contexts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.errors import ModelLoadError


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched.

    Attributes:
        kind: "default", "linear" (all divided by `factor`), "llama3" (Llama 3.1: long wavelengths divided, short ones
            kept, those between interpolated) or "yarn" (Peng et al., "YaRN", 2023: the same by rotations within the
            original context).
        low_freq_factor, high_freq_factor: of "llama3", bounds between which it interpolates: wavelengths as parts of
            the original context.
        beta_fast, beta_slow: of "yarn", rotations above which a pair is kept and below which it is divided.
        whole_pairs: of "yarn", whether those bounds are rounded outwards to whole pairs.
        attention_factor: of "yarn", what cosines and sines are multiplied by, so that scores are by its square.
    """

    kind: str = "default"
    factor: float = 1.0
    original_max_position: int = 8192
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    whole_pairs: bool = True
    attention_factor: float = 1.0

    @classmethod
    def of(cls, rope: Mapping[str, Any], max_position: int, where: str) -> RopeScaling:
        """Read Hugging Face's `rope_parameters` or `rope_scaling`; `max_position` is the model's own limit.

        Raises KeyError, TypeError or ValueError for a field that is absent or of the wrong kind.
        """
        kind = str(rope.get("rope_type") or rope.get("type") or "default")
        if kind not in _READERS:
            raise ModelLoadError(f"{where}: rope scaling {kind!r} is not supported; supported: {', '.join(_READERS)}")
        return _READERS[kind](rope, max_position)

    @property
    def stretched_position(self) -> int:
        """Positions that "yarn" makes of the original ones, which `max_position_embeddings` need not know; else 0."""
        return int(self.original_max_position * self.factor) if self.kind == "yarn" else 0

    @property
    def numbers(self) -> dict[str, float]:
        """What has to be positive, by name."""
        return {
            "factor": self.factor,
            "original_max_position_embeddings": self.original_max_position,
            "low_freq_factor": self.low_freq_factor,
            "high_freq_factor": self.high_freq_factor,
            "beta_fast": self.beta_fast,
            "beta_slow": self.beta_slow,
            "attention_factor": self.attention_factor,
        }

    def frequencies(self, theta: float, head_dim: int) -> Tensor:
        """[head_dim / 2] float32: angle per position of each rotated pair."""
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        plain = 1.0 / (theta**exponents)
        if self.kind == "linear":
            return plain / self.factor
        if self.kind == "llama3":
            return self._llama3(plain)
        if self.kind == "yarn":
            return self._yarn(plain, theta, head_dim)
        return plain

    def _llama3(self, plain: Tensor) -> Tensor:
        wavelengths = 2 * math.pi / plain
        low_wavelength = self.original_max_position / self.low_freq_factor
        high_wavelength = self.original_max_position / self.high_freq_factor
        scaled = torch.where(wavelengths > low_wavelength, plain / self.factor, plain)
        smooth = (self.original_max_position / wavelengths - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        smoothed = (1 - smooth) * plain / self.factor + smooth * plain
        between = (wavelengths >= high_wavelength) & (wavelengths <= low_wavelength)
        return torch.where(between, smoothed, scaled)

    def _yarn(self, plain: Tensor, theta: float, head_dim: int) -> Tensor:
        def pair_of(rotations: float) -> float:
            """The pair that turns so often within the original context."""
            turns = self.original_max_position / (rotations * 2 * math.pi)
            return head_dim * math.log(turns) / (2 * math.log(theta))

        low, high = pair_of(self.beta_fast), pair_of(self.beta_slow)
        if self.whole_pairs:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        pairs = torch.arange(head_dim // 2, dtype=torch.float32)
        divided = ((pairs - low) / (high - low or 0.001)).clamp(0, 1)
        return plain / self.factor * divided + plain * (1 - divided)


def rotary_tables(
    scaling: RopeScaling, theta: float, head_dim: int, max_position: int, divisors: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(cosines, sines) of every position, [max_position, head_dim / 2] float32.

    float32 whatever the model's dtype: bfloat16 angles lose whole positions beyond a few hundred tokens. `divisors`
    [head_dim / 2]: of the frequencies, that some GGUF files carry.
    """
    frequencies = scaling.frequencies(theta, head_dim)
    if divisors is not None:
        frequencies = frequencies / divisors.float()
    angles = torch.arange(max_position).float()[:, None] * frequencies[None, :]
    return angles.cos() * scaling.attention_factor, angles.sin() * scaling.attention_factor


def _read_llama3(rope: Mapping[str, Any], max_position: int) -> RopeScaling:
    return RopeScaling(
        "llama3",
        float(rope["factor"]),
        int(rope["original_max_position_embeddings"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
    )


def _read_yarn(rope: Mapping[str, Any], max_position: int) -> RopeScaling:
    original = int(rope.get("original_max_position_embeddings") or max_position)
    factor = float(rope.get("factor") or max_position / original)
    given, scale, scale_all = (rope.get(name) for name in ("attention_factor", "mscale", "mscale_all_dim"))
    if given is None:
        given = _grown(factor, scale) / _grown(factor, scale_all) if scale and scale_all else _grown(factor, 1.0)
    return RopeScaling(
        "yarn",
        factor,
        original,
        beta_fast=float(rope.get("beta_fast") or 32),
        beta_slow=float(rope.get("beta_slow") or 1),
        whole_pairs=bool(rope.get("truncate", True)),
        attention_factor=float(given),
    )


def _grown(factor: float, weight: float) -> float:
    """YaRN's attention factor, from its experiments."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


_READERS: dict[str, Callable[[Mapping[str, Any], int], RopeScaling]] = {
    "default": lambda rope, max_position: RopeScaling(),
    "linear": lambda rope, max_position: RopeScaling("linear", float(rope["factor"])),
    "llama3": _read_llama3,
    "yarn": _read_yarn,
}
