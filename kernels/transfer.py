"""Numbers on their way between host and device, none of which waits for what the device computes meanwhile."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """A host's tensor on `device`. The copy to a GPU takes its place in the stream, and the caller goes on.

    It is read from pinned memory, which goes back to torch's allocator; that one knows what is still to be read.
    """
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


class Arrival:
    """The copy of a device's tensor that is on its way to the host."""

    def __init__(self, values: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._copy = values
        if values.device.type == "cuda":
            self._copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._copy.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def wait(self) -> Tensor:
        """The tensor on the host, when everything that the device was given before the copy is done."""
        if self._event is not None:
            self._event.synchronize()
        return self._copy
