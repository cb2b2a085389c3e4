"""The tokens of one step, flat, as every decoder takes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.choices import Choices
from engine.request import Request
from kernels.transfer import to_device


@dataclass
class StepBatch:
    """Ragged sequences side by side.

    Attributes:
        token_ids, positions, slots: one entry for each token of the step; slot s is row s % block_size of block
            s // block_size.
        rows: indices of the tokens whose logits are asked for, ascending.
        query_lens: tokens of each sequence in this step.
        context_lens: keys each sequence will have once they are written.
        block_tables: blocks of each sequence.
        awaited: places in `token_ids`, and on the device the tokens that belong there: chosen by the step before, and
            not known to the host yet.
    """

    block_size: int
    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    query_lens: list[int] = field(default_factory=list)
    context_lens: list[int] = field(default_factory=list)
    block_tables: list[list[int]] = field(default_factory=list)
    awaited: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(
        cls, plan: Iterable[tuple[Request, int]], block_size: int, behind: Choices | None = None
    ) -> tuple[StepBatch, list[Request]]:
        """The batch of a step plan, and the requests whose newest token is in it, in plan order.

        Each of those has 1 + len(draft_token_ids) consecutive rows: its newest token's and each draft's. behind: the
        choices of the step before, where requests await their newest token from it.
        """
        batch, complete = cls(block_size), []
        for request, num_tokens in plan:
            start, end = request.num_computed, request.num_computed + num_tokens
            batch.add(request.ids_between(start, end), start, request.block_table)
            if end >= request.num_tokens:
                complete.append(request)
                count = len(batch.token_ids)
                batch.rows += range(count - (end - request.num_tokens) - 1, count)
        if behind is not None and any(request.num_awaited for request in complete):
            # Without drafts, a request's only row is its newest token.
            assert len(batch.rows) == len(complete), "nothing is drafted behind a token that is awaited"
            index, token_ids = behind.newest_of(complete)
            batch.awaited = to_device(torch.tensor(batch.rows), index.device)[index], token_ids
        return batch, complete

    def complete_ids(self, token_ids: Tensor) -> Tensor:
        """Put the awaited tokens into a tensor [tokens] of `token_ids` on the device, which the host does not see."""
        if self.awaited is not None:
            places, awaited = self.awaited
            token_ids[places] = awaited.to(token_ids.dtype)
        return token_ids

    def add(self, token_ids: list[int], start: int, block_table: list[int]) -> None:
        """Append a sequence's tokens, the first at position `start`."""
        end, size = start + len(token_ids), self.block_size
        self.token_ids += token_ids
        self.positions += range(start, end)
        self.slots += [block_table[position // size] * size + position % size for position in range(start, end)]
        self.query_lens.append(len(token_ids))
        self.context_lens.append(end)
        self.block_tables.append(block_table)
