"""The tokens of one step, flat, as every decoder takes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.request import Request


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
    """

    block_size: int
    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    query_lens: list[int] = field(default_factory=list)
    context_lens: list[int] = field(default_factory=list)
    block_tables: list[list[int]] = field(default_factory=list)

    @classmethod
    def of(cls, plan: Iterable[tuple[Request, int]], block_size: int) -> tuple[StepBatch, list[Request]]:
        """The batch of a step plan, and the requests whose newest token is in it, in plan order.

        Each of those has 1 + len(draft_token_ids) consecutive rows: its newest token's and each draft's.
        """
        batch, complete = cls(block_size), []
        for request, num_tokens in plan:
            start, end = request.num_computed, request.num_computed + num_tokens
            batch.add(request.ids_between(start, end), start, request.block_table)
            if end >= request.num_tokens:
                complete.append(request)
                count = len(batch.token_ids)
                batch.rows += range(count - (end - request.num_tokens) - 1, count)
        return batch, complete

    def add(self, token_ids: list[int], start: int, block_table: list[int]) -> None:
        """Append a sequence's tokens, the first at position `start`."""
        end, size = start + len(token_ids), self.block_size
        self.token_ids += token_ids
        self.positions += range(start, end)
        self.slots += [block_table[position // size] * size + position % size for position in range(start, end)]
        self.query_lens.append(len(token_ids))
        self.context_lens.append(end)
        self.block_tables.append(block_table)
