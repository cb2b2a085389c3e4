"""Which earlier turns the model is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.history import Turn
from app.memory import MemoryRule


def turns(*sizes: int) -> list[Turn]:
    return [Turn(index=index, question="q", answer="a", num_tokens=size) for index, size in enumerate(sizes)]


def test_buffer_shows_all_turns_that_fit():
    assert MemoryRule("buffer").first_turn(turns(100, 100, 100), start=0, room=1000, used=700) == 0


def test_buffer_drops_whole_oldest_turns_down_to_sixty_percent_in_one_block():
    # 9 × 100 tokens and a question of 150 do not fit 1,000; 600 - 150 leaves room for 4 turns.
    assert MemoryRule("buffer").first_turn(turns(*[100] * 9), start=0, room=1000, used=150) == 5


def test_turns_stay_where_they_are_until_the_budget_is_exceeded_again():
    rule, sizes = MemoryRule("buffer"), [100] * 9
    start, starts = 0, []
    for _ in range(12):
        start = rule.first_turn(turns(*sizes), start=start, room=1000, used=150)
        starts.append(start)
        sizes.append(100)
    assert starts == [5, 5, 5, 5, 5, 10, 10, 10, 10, 10, 15, 15]


def test_window_shows_the_last_turns():
    rule = MemoryRule("window", turns=2)
    assert [rule.first_turn(turns(*[1] * count), start=0, room=1000, used=0) for count in (0, 1, 2, 3, 9)] == [
        0,
        0,
        0,
        1,
        7,
    ]


def test_window_of_none_shows_no_turn():
    assert MemoryRule("window", turns=0).first_turn(turns(1, 1), start=0, room=1000, used=0) == 2


def test_token_budget_counts_earlier_turns_only():
    rule = MemoryRule("token_budget", tokens=300)
    assert rule.first_turn(turns(100, 100, 100), start=0, room=10_000, used=900) == 0
    assert rule.first_turn(turns(100, 100, 100, 1), start=0, room=10_000, used=900) == 2


def test_a_question_that_fills_the_room_leaves_no_turn():
    assert MemoryRule("buffer").first_turn(turns(10, 10), start=0, room=1000, used=1000) == 2


def test_a_start_beyond_the_turns_that_are_left_is_no_error():
    assert MemoryRule("buffer").first_turn(turns(10), start=7, room=1000, used=0) == 1


@given(
    kind=st.sampled_from(["buffer", "window", "token_budget"]),
    sizes=st.lists(st.integers(1, 400), max_size=30),
    room=st.integers(1, 2000),
    used=st.integers(0, 2000),
    start=st.integers(0, 40),
)
def test_what_is_shown_always_fits_and_never_moves_back(kind, sizes, room, used, start):
    rule = MemoryRule(kind, turns=4, tokens=500)
    first = rule.first_turn(turns(*sizes), start=start, room=room, used=used)
    shown = sum(sizes[first:])
    assert shown == 0 or shown + used <= room
    assert first >= min(start, len(sizes))
    assert kind != "token_budget" or shown <= 500
    assert kind != "window" or len(sizes[first:]) <= 4


@pytest.mark.parametrize("kind", ["buffer", "token_budget"])
def test_after_trimming_at_most_sixty_percent_are_used(kind):
    rule = MemoryRule(kind, tokens=10_000)
    first = rule.first_turn(turns(*[70] * 40), start=0, room=2000, used=300)
    assert sum([70] * (40 - first)) + 300 <= 1200
