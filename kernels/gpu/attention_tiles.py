"""How the attention of a step is cut into work for the kernel, as numbers on the CPU.

A *tile* is up to `rows_per_tile` query rows of one sequence; all query heads of a key/value head go with each row, so
that keys are read once for them. An *item* is one tile over one split of its keys. Splits are counted from the first
key and have SPLIT keys, so that a row's sums are taken in the same order whatever else is in the step; unless that
would be more items than there is room for results of: then they are doubled until it is not.

    sequence 0:  rows 0 1 2 3 4      tiles  (0, 0) (0, 4)        each × splits of keys [0, 512) [512, 1024) …
    sequence 1:  row  0              tile   (1, 0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Keys of a split, at least.
SPLIT = 512
# Room for the results of splits: those of a long prompt's tiles would otherwise be gigabytes.
PARTS_BYTES = 128 << 20


@dataclass(frozen=True)
class AttentionTiles:
    """
    Attributes:
        starts: [sequences + 1] first query row of each sequence, and their number.
        context_lens: [sequences].
        tiles: [num_tiles, 4] sequence, first row in it, first item, number of splits.
        items: [num_items, 2] tile, split.
        split: keys of a split.
    """

    starts: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    tiles: NDArray[np.int32]
    items: NDArray[np.int32]
    split: int

    @classmethod
    def of(
        cls, query_lens: Sequence[int], context_lens: Sequence[int], rows_per_tile: int, max_items: int | None = None
    ) -> AttentionTiles:
        """`max_items`: more only where no tile is split; None is as many as there are splits of SPLIT keys."""
        lens, contexts = np.asarray(query_lens, dtype=np.int64), np.asarray(context_lens, dtype=np.int64)
        tiles_of = -(-lens // rows_per_tile)
        sequence = np.repeat(np.arange(len(lens)), tiles_of)
        first_row = _ramps(tiles_of) * rows_per_tile
        last_row = np.minimum(first_row + rows_per_tile, lens[sequence]) - 1
        num_keys, split = contexts[sequence] - lens[sequence] + last_row + 1, SPLIT
        splits = -(-num_keys // split)
        while max_items is not None and int(splits.sum()) > max(max_items, len(splits)):
            split *= 2
            splits = -(-num_keys // split)
        first_item = np.cumsum(splits) - splits
        starts = np.concatenate([[0], np.cumsum(lens)])
        return cls(
            starts.astype(np.int32),
            contexts.astype(np.int32),
            np.stack([sequence, first_row, first_item, splits], axis=1).astype(np.int32),
            np.stack([np.repeat(np.arange(len(splits)), splits), _ramps(splits)], axis=1).astype(np.int32),
            split,
        )

    @property
    def is_split(self) -> bool:
        """Whether any tile has more than one split, so that results have to be combined."""
        return len(self.items) > len(self.tiles)


def max_items(kv_heads: int, block_m: int, head_dim: int) -> int:
    """Items of tiles of `block_m` rows × heads whose results fit into PARTS_BYTES."""
    return max(1, PARTS_BYTES // (4 * kv_heads * block_m * head_dim))


def _ramps(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 … count − 1 for each count, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
