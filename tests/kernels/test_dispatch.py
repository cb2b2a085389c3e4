"""Which path is taken, and what is said where Triton can not be."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine import Engine, EngineConfig
from engine.errors import ModelLoadError
from kernels import KernelsUnavailableError, dispatch, uses_triton, why_no_triton

CPU, CARD = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("RAGSTONE_KERNELS", raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for cached in (dispatch.forced, dispatch.why_no_triton, dispatch._is_usable):
        cached.cache_clear()
    yield
    for cached in (dispatch.forced, dispatch.why_no_triton, dispatch._is_usable):
        cached.cache_clear()


def test_tensors_on_a_cpu_are_torchs() -> None:
    assert not uses_triton(torch.zeros(1))


def test_triton_that_was_insisted_on_is_not_replaced_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGSTONE_KERNELS", "triton")
    with pytest.raises(KernelsUnavailableError, match=r"in its interpreter only, which TRITON_INTERPRET=1 turns on"):
        uses_triton(torch.zeros(1))


def test_what_cannot_run_is_told_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAGSTONE_KERNELS", "triton")
    with pytest.raises(ModelLoadError, match=r"not possible here: .*; unset RAGSTONE_KERNELS, or set it to torch"):
        Engine(EngineConfig(model=tmp_path / "absent.gguf", device="cpu"))


def test_an_unknown_choice_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGSTONE_KERNELS", "cuda")
    with pytest.raises(KernelsUnavailableError, match="must be torch or triton, got 'cuda'"):
        uses_triton(torch.zeros(1))


def test_an_old_card_is_named_with_what_is_needed_and_left_to_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(dispatch.importlib.util, "find_spec", lambda name: object())
    reason = why_no_triton(CARD)
    assert reason == "Tesla T4 has compute capability 7.5; Triton kernels need 8.0 or newer (Ampere)"
    with caplog.at_level(logging.WARNING):
        assert not dispatch._is_usable(CARD, False)
        assert not dispatch._is_usable(CARD, False)
    assert [record.getMessage() for record in caplog.records] == [
        f"torch computes in place of Triton kernels: {reason}"
    ]


def test_a_card_that_no_kernel_can_be_launched_on_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(dispatch.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(dispatch, "_why_not_launched", lambda device: "Triton could not launch a kernel")
    assert why_no_triton(CARD) == "Triton could not launch a kernel"
    assert not dispatch._is_usable(CARD, False)


def test_an_old_triton_is_named_with_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(triton, "__version__", "3.5.1")
    assert why_no_triton(CARD) == "Triton 3.5.1 is installed; Triton kernels need version 3.6 or newer"
    assert not dispatch._is_usable(CARD, False)


def test_a_machine_without_triton_says_which_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.importlib.util, "find_spec", lambda name: None)
    assert why_no_triton(CPU) == "the package triton is not installed; Triton kernels need version 3.6 or newer"
