"""The tokens that a step chooses, between the device that has chosen them and the host that learns of them later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from engine.outputs import TokenLogprob
from kernels.transfer import Arrival, to_device

if TYPE_CHECKING:
    from engine.request import Request

# A token and, where asked for, its log-probability.
Choice = tuple[int, TokenLogprob | None]


@dataclass(frozen=True)
class RowLogprobs:
    """Log-probabilities of some rows of a step, on the device (`kernels.sampling.token_logprobs`).

    Attributes:
        rows: [n], ascending.
        values: [n, 1 + most]: of the token chosen, then of the most likely ones, whose `ids` are [n, most].
        describe: makes of a row's token, values and ids what is told of it.
    """

    rows: Sequence[int]
    values: Tensor
    ids: Tensor
    describe: Callable[[int, Sequence[float], Sequence[int]], TokenLogprob]


class Choices:
    """Choices of a step's requests, each with 1 + len(draft_token_ids) consecutive rows, in the order given.

    Args:
        on_host: for each request a function that chooses on the host, row by row, as it is asked; None for those whose
            tokens the device chooses.
        token_ids: [rows] int64 on the device; in rows of the others any token of the vocabulary.
        is_finite: [rows] bool on the device: whether the row's logits were numbers.
        on_not_finite: raises the error of a row whose logits were not.
        logprobs: of the rows of which they were asked for.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        on_host: Sequence[Callable[[], Iterator[Choice]] | None],
        token_ids: Tensor | None = None,
        is_finite: Tensor | None = None,
        on_not_finite: Callable[[], NoReturn] | None = None,
        logprobs: RowLogprobs | None = None,
    ) -> None:
        self.token_ids = token_ids
        self._on_host = on_host
        self._on_not_finite = on_not_finite
        self._first_rows: dict[tuple[str, int], int] = {}
        self._num_top = [request.params.logprobs for request in requests]
        self._logprobs = logprobs
        self._copies = [] if logprobs is None else [Arrival(logprobs.values), Arrival(logprobs.ids)]
        self._num_rows = [1 + len(request.draft_token_ids) for request in requests]
        row = 0
        for request, count in zip(requests, self._num_rows, strict=True):
            self._first_rows[request.key] = row
            row += count
        self._arrival: Arrival | None = None
        if token_ids is not None and is_finite is not None:
            self._arrival = Arrival(torch.stack([token_ids, is_finite.to(token_ids.dtype)]))

    def newest_of(self, requests: Sequence[Request]) -> tuple[Tensor, Tensor]:
        """(indices, tokens) of the requests among these whose newest token is one of ours: [n] int64, on the device."""
        assert self.token_ids is not None, "only what the device has chosen can be waited for"
        awaiting = [index for index, request in enumerate(requests) if request.num_awaited]
        rows = [self._first_rows[requests[index].key] for index in awaiting]
        indices, picked = to_device(torch.tensor([awaiting, rows], dtype=torch.int64), self.token_ids.device)
        return indices, self.token_ids[picked]

    def arrive(self) -> list[Iterator[Choice]]:
        """Wait for the device; for each request its choices in order: the next token, then the one behind each draft.

        The caller appends each token to the request before it asks for the one behind it, and stops asking at the first
        that differs from its draft.
        """
        token_ids, are_finite = self._arrival.wait().tolist() if self._arrival is not None else ([], [])
        told = self._told()
        choices, row = [], 0
        for on_host, count, num_top in zip(self._on_host, self._num_rows, self._num_top, strict=True):
            if on_host is not None:
                choices.append(on_host())
            else:
                rows = range(row, row + count)
                choices.append(self._known([(token_ids[r], are_finite[r], told.get(r)) for r in rows], num_top or 0))
            row += count
        return choices

    def _told(self) -> dict[int, tuple[list[float], list[int]]]:
        """Log-probabilities and ids of each row of which they were asked for."""
        if self._logprobs is None:
            return {}
        values, ids = (copy.wait().tolist() for copy in self._copies)
        return dict(zip(self._logprobs.rows, zip(values, ids, strict=True), strict=True))

    def _known(
        self, rows: Sequence[tuple[int, int, tuple[list[float], list[int]] | None]], num_top: int
    ) -> Iterator[Choice]:
        for token_id, is_finite, told in rows:
            if not is_finite:
                assert self._on_not_finite is not None, "it goes with is_finite"
                self._on_not_finite()
            if told is None:
                yield token_id, None
            else:
                assert self._logprobs is not None, "they were told"
                values, ids = told
                yield token_id, self._logprobs.describe(token_id, values[: 1 + num_top], ids[:num_top])
