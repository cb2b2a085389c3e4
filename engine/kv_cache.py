"""Who holds which block of the KV pool: reference counts, prefix hashes, eviction. Holds numbers only, no tensors."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from engine.request import Request

# Blocks of a pinned prefix are shared by everybody; all others carry their tenant's salt, so that one tenant can never
# learn from a fast first token what another has asked.
COMMON_SALT = b"common"


def hash_block(parent: bytes, token_ids: Sequence[int], salt: bytes) -> bytes:
    """128-bit chain hash of a full block: it stands for the block's tokens and for everything before them."""
    digest = hashlib.blake2b(parent, digest_size=16, key=salt[:64])
    digest.update(array("q", token_ids).tobytes())
    return digest.digest()


@dataclass
class Block:
    """One block of the pool. `hash` is set while its content can be found by prefix."""

    block_id: int
    num_references: int = 0
    hash: bytes | None = None


class BlockPool:
    """All blocks, the free list and the prefix index.

    Every block is in exactly one state: *held* (num_references > 0), *cached* (free, content still findable) or *free*.
    Cached and free blocks stand in one list in the order in which they may be reused: allocation takes its head, and
    taking a cached block is what evicts it.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.blocks = [Block(i) for i in range(num_blocks)]
        self._free: OrderedDict[int, None] = OrderedDict((i, None) for i in range(num_blocks))
        self._by_hash: dict[bytes, int] = {}

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated, those with findable content included."""
        return len(self._free)

    def lookup(self, block_hash: bytes) -> int | None:
        """The block with this content, or None."""
        return self._by_hash.get(block_hash)

    def allocate(self) -> int:
        """Take the least recently used free block, evicting its content. The caller has checked `num_free`."""
        block_id, _ = self._free.popitem(last=False)
        block = self.blocks[block_id]
        if block.hash is not None:
            del self._by_hash[block.hash]
            block.hash = None
        block.num_references = 1
        return block_id

    def hold(self, block_id: int) -> None:
        """Add a reference, taking the block off the free list if it stood there."""
        block = self.blocks[block_id]
        if block.num_references == 0:
            del self._free[block_id]
        block.num_references += 1

    def release(self, block_id: int) -> None:
        """Drop a reference; at zero the block joins the free list, behind all others if its content can be found."""
        block = self.blocks[block_id]
        assert block.num_references > 0, f"block {block_id} is released but nobody holds it"
        block.num_references -= 1
        if block.num_references == 0:
            self._free[block_id] = None
            if block.hash is None:
                self._free.move_to_end(block_id, last=False)

    def publish(self, block_id: int, block_hash: bytes) -> None:
        """Make a full, computed block findable. Where another block has the same content already, that one stays."""
        block = self.blocks[block_id]
        if block.hash is None and block_hash not in self._by_hash:
            block.hash = block_hash
            self._by_hash[block_hash] = block_id

    def check_integrity(self, expected_references: dict[int, int]) -> None:
        """Assert that free + held == total and that reference counts equal the block tables'.

        `expected_references` counts, for each block, in how many tables and pins it stands.
        """
        held = 0
        for block in self.blocks:
            expected = expected_references.get(block.block_id, 0)
            assert block.num_references == expected, (
                f"block {block.block_id}: {block.num_references} references, but {expected} tables hold it"
            )
            assert (block.block_id in self._free) == (expected == 0), f"block {block.block_id} is both held and free"
            held += expected > 0
            if block.hash is not None:
                assert self._by_hash.get(block.hash) == block.block_id, (
                    f"block {block.block_id} is hashed but not indexed"
                )
        assert held + len(self._free) == len(self.blocks), "blocks were lost"
        assert len(self._by_hash) == sum(block.hash is not None for block in self.blocks), "index holds stale hashes"


class KVCache:
    """Block tables of requests: look-up of known prefixes, growth, release, pinning."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._pinned: dict[tuple[int, ...], list[int]] = {}
        self.num_prefix_queries = 0
        self.num_prefix_hits = 0

    @property
    def num_pinned_blocks(self) -> int:
        return len({block_id for blocks in self._pinned.values() for block_id in blocks})

    @property
    def capacity(self) -> int:
        """Most tokens that one request can ever hold, pinned blocks counted as taken."""
        return (self.pool.num_blocks - self.num_pinned_blocks) * self.block_size

    def find_prefix(self, request: Request) -> list[int]:
        """Blocks that already hold the request's first tokens; the last token is always left to compute."""
        if not self.enable_prefix_caching:
            return []
        most = (request.num_tokens - 1) // self.block_size
        self._extend_hashes(request, most)
        found: list[int] = []
        for block_hash in request.block_hashes[:most]:
            block_id = self.pool.lookup(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def can_admit(self, request: Request, prefix: Sequence[int], watermark: int) -> bool:
        """Whether the whole of the request's tokens fit beside `watermark` blocks kept for running requests to grow."""
        needed = self.blocks_for(request.num_tokens) - len(prefix)
        # Cached blocks of the prefix leave the free list when the request takes them.
        unheld = sum(self.pool.blocks[block_id].num_references == 0 for block_id in prefix)
        return needed + unheld + watermark <= self.pool.num_free

    def admit(self, request: Request, prefix: Sequence[int]) -> None:
        """Give an admitted request its cached prefix; the rest of its blocks come as it is computed."""
        assert not request.block_table, f"request {request.request_id} is admitted twice"
        for block_id in prefix:
            self.pool.hold(block_id)
        request.block_table = list(prefix)
        request.num_computed = request.num_cached = len(prefix) * self.block_size
        request.num_published = len(prefix)
        if request.num_preemptions == 0:
            # Re-reads after a preemption say nothing about how well prefixes are shared.
            self.num_prefix_queries += request.num_tokens
            self.num_prefix_hits += request.num_cached
            request.num_prefix_tokens = request.num_cached

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Make room for the request's first `num_tokens` tokens; False (and nothing taken) if blocks are missing."""
        missing = self.blocks_for(num_tokens) - len(request.block_table)
        if missing > self.pool.num_free:
            return False
        for _ in range(missing):
            request.block_table.append(self.pool.allocate())
        return True

    def trim(self, request: Request) -> None:
        """Give back the blocks behind the request's tokens: those that only rejected drafts were written to."""
        for _ in range(len(request.block_table) - self.blocks_for(request.num_tokens)):
            self.pool.release(request.block_table.pop())

    def publish(self, request: Request) -> None:
        """Make the request's full, computed blocks findable. Called after the step that wrote them."""
        if not self.enable_prefix_caching:
            return
        full = request.num_computed // self.block_size
        self._extend_hashes(request, full)
        for position in range(request.num_published, full):
            self.pool.publish(request.block_table[position], request.block_hashes[position])
        request.num_published = full

    def release(self, request: Request) -> None:
        """Drop all of a request's blocks, the tail first, so that the head of its prefix survives longest."""
        for block_id in reversed(request.block_table):
            self.pool.release(block_id)
        request.block_table = []
        request.num_computed = request.num_cached = request.num_published = 0

    def share(self, token_ids: Sequence[int]) -> list[int]:
        """Declare a prefix that belongs to all tenants (the system prompt); returns its whole blocks' tokens.

        Must come before a request with that prefix is hashed; `pin` then keeps the blocks.
        """
        tokens = tuple(token_ids[: len(token_ids) // self.block_size * self.block_size])
        if tokens:
            self._pinned.setdefault(tokens, [])
        return list(tokens)

    def pin(self, request: Request) -> None:
        """Hold the computed blocks of a shared prefix for good. The request's prompt is what `share` returned."""
        tokens = tuple(request.token_ids[: request.num_prompt_tokens])
        if self._pinned[tokens]:
            return
        for position in range(len(tokens) // self.block_size):
            # Another block may have been published with this content first; the one that can be found is kept.
            block_id = self.pool.lookup(request.block_hashes[position])
            if block_id is None:
                block_id = request.block_table[position]
            self.pool.hold(block_id)
            self._pinned[tokens].append(block_id)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def check_integrity(self, requests: Sequence[Request]) -> None:
        """Assert the pool's invariants against the block tables of all live requests."""
        expected: dict[int, int] = {}
        tables = [request.block_table for request in requests] + list(self._pinned.values())
        for table in tables:
            for block_id in table:
                expected[block_id] = expected.get(block_id, 0) + 1
        self.pool.check_integrity(expected)

    def _extend_hashes(self, request: Request, num_blocks: int) -> None:
        hashes, size = request.block_hashes, self.block_size
        if len(hashes) >= num_blocks:
            return
        shared = self._shared_tokens(request) // size
        salt = b"tenant:" + hashlib.blake2b(request.tenant.encode(), digest_size=16).digest()
        parent = hashes[-1] if hashes else b""
        for position in range(len(hashes), num_blocks):
            span = request.token_ids[position * size : (position + 1) * size]
            parent = hash_block(parent, span, COMMON_SALT if position < shared else salt)
            hashes.append(parent)

    def _shared_tokens(self, request: Request) -> int:
        """Tokens at the request's start that equal a pinned prefix, in whole blocks."""
        best = 0
        for tokens in self._pinned:
            if len(tokens) > best and tuple(request.token_ids[: len(tokens)]) == tokens:
                best = len(tokens)
        return best
