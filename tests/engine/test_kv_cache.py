"""The block pool and prefix cache against a brute-force model, over random histories."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine import SamplingParams
from engine.kv_cache import COMMON_SALT, BlockPool, KVCache, hash_block
from engine.request import Request

BLOCK = 4


class SilentDetokenizer:
    """Block accounting needs no text."""


def make_request(token_ids: list[int], tenant: str = "", name: str = "r") -> Request:
    return Request(name, token_ids, SamplingParams(), 100, SilentDetokenizer(), tenant=tenant)  # type: ignore[arg-type]


def compute(cache: KVCache, request: Request) -> None:
    """Admit a request and pretend that a step computed all of its tokens."""
    cache.admit(request, cache.find_prefix(request))
    assert cache.grow(request, request.num_tokens)
    request.num_computed = request.num_tokens
    cache.publish(request)


@dataclass
class ModelPool:
    """The pool as plain lists: who holds what, what can be found, and in which order free blocks are reused."""

    num_blocks: int
    free: list[int] = field(default_factory=list)
    references: dict[int, int] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)


class PoolMachine(RuleBasedStateMachine):
    """Random allocations, hits, releases and publications; after each, the pool equals its brute-force model."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(6, BLOCK)
        self.model = ModelPool(6, free=list(range(6)))

    @precondition(lambda self: self.model.free)
    @rule()
    def allocate(self) -> None:
        expected = self.model.free.pop(0)
        self.model.contents.pop(expected, None)
        self.model.references[expected] = 1
        assert self.pool.allocate() == expected

    @precondition(lambda self: self.model.references)
    @rule(data=st.data())
    def hold_again(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.model.references)))
        self.model.references[block_id] += 1
        self.pool.hold(block_id)

    @precondition(lambda self: self.model.references)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.model.references)))
        self.model.references[block_id] -= 1
        if not self.model.references[block_id]:
            del self.model.references[block_id]
            if block_id in self.model.contents:
                self.model.free.append(block_id)
            else:
                self.model.free.insert(0, block_id)
        self.pool.release(block_id)

    @precondition(lambda self: self.model.references)
    @rule(data=st.data(), content=st.integers(0, 8))
    def publish(self, data: st.DataObject, content: int) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.model.references)))
        name = str(content).encode()
        if block_id not in self.model.contents and name not in self.model.contents.values():
            self.model.contents[block_id] = name
        self.pool.publish(block_id, name)

    @rule(content=st.integers(0, 8))
    def hit(self, content: int) -> None:
        name = str(content).encode()
        expected = next((block for block, known in self.model.contents.items() if known == name), None)
        assert self.pool.lookup(name) == expected
        if expected is not None:
            if expected in self.model.free:
                self.model.free.remove(expected)
            self.model.references[expected] = self.model.references.get(expected, 0) + 1
            self.pool.hold(expected)

    @invariant()
    def same_as_the_model(self) -> None:
        self.pool.check_integrity(self.model.references)
        assert self.pool.num_free == len(self.model.free)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=24)


@given(first=TOKENS, second=TOKENS)
@settings(max_examples=200, deadline=None)
def test_a_hit_is_the_longest_common_run_of_whole_blocks_short_of_the_last_token(
    first: list[int], second: list[int]
) -> None:
    cache = KVCache(32, BLOCK)
    compute(cache, make_request(first, name="a"))
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    full = min(common // BLOCK, len(first) // BLOCK, (len(second) - 1) // BLOCK)
    assert len(cache.find_prefix(make_request(second, name="b"))) == full


def test_hash_depends_on_everything_before_the_block_and_on_the_salt() -> None:
    one, two = [1, 2, 3, 4], [1, 2, 4, 3]
    hashes = {
        hash_block(b"", one, COMMON_SALT),
        hash_block(b"", two, COMMON_SALT),
        hash_block(b"", one, b"other"),
        hash_block(hash_block(b"", two, COMMON_SALT), one, COMMON_SALT),
        hash_block(hash_block(b"", one, COMMON_SALT), one, COMMON_SALT),
    }
    assert len(hashes) == 5
    assert all(len(digest) == 16 for digest in hashes)


def test_tenants_never_share_blocks_but_all_share_a_pinned_prefix() -> None:
    cache = KVCache(32, BLOCK)
    system, question = list(range(8)), [50, 51, 52, 53, 54]
    pin = make_request(cache.share([*system, 99]), name="pin")
    compute(cache, pin)
    cache.pin(pin)
    cache.release(pin)
    compute(cache, make_request(system + question, tenant="alice", name="a"))
    assert len(cache.find_prefix(make_request([*system, *question, 1], tenant="alice", name="b"))) == 3
    assert len(cache.find_prefix(make_request([*system, *question, 1], tenant="bob", name="c"))) == 2
    assert cache.num_pinned_blocks == 2


def test_a_pinned_prefix_is_never_evicted() -> None:
    cache = KVCache(6, BLOCK)
    pin = make_request(cache.share(list(range(8))), name="pin")
    compute(cache, pin)
    cache.pin(pin)
    cache.release(pin)
    for start in range(100, 400, 20):
        request = make_request(list(range(start, start + 16)), name=str(start))
        compute(cache, request)
        cache.release(request)
    assert len(cache.find_prefix(make_request([*range(8), 1]))) == 2
    assert cache.capacity == 16
    cache.check_integrity([])


def test_the_head_of_a_prefix_survives_longer_than_its_tail() -> None:
    cache = KVCache(4, BLOCK)
    first = make_request(list(range(16)), name="first")
    compute(cache, first)
    cache.release(first)
    second = make_request([90, 91, 92, 93, 94, 95, 96, 97], name="second")
    compute(cache, second)
    assert len(cache.find_prefix(make_request(list(range(17))))) == 2


def test_growth_takes_nothing_when_it_does_not_fit() -> None:
    cache = KVCache(2, BLOCK)
    request = make_request(list(range(12)))
    assert not cache.grow(request, 12)
    assert request.block_table == []
    assert cache.pool.num_free == 2


def test_releasing_an_unheld_block_is_a_bug_that_is_named() -> None:
    with pytest.raises(AssertionError, match="block 3 is released but nobody holds it"):
        BlockPool(4, BLOCK).release(3)
