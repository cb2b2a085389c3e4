"""The event decoder: line ends, pings, separators that are text, and cuts at every place."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ui.sse import ServerSentEvent, SSEDecoder

STREAM = (
    'event: metadata\r\ndata: {"run_id": "1"}\r\n\r\n: ping\r\n\r\n'
    'event: data\r\ndata: {"answer": "é \u2028 \u0085 😀"}\r\n\r\n'
    'data: one\ndata:two\nid: 7\n\nevent: data\rdata: {"answer": "cr"}\r\r'
    "event: end\r\n\r\nevent: data\ndata: unfinished"
).encode()
EVENTS = [
    ServerSentEvent("metadata", '{"run_id": "1"}'),
    ServerSentEvent("data", '{"answer": "é \u2028 \u0085 😀"}'),
    ServerSentEvent("message", "one\ntwo"),
    ServerSentEvent("data", '{"answer": "cr"}'),
    ServerSentEvent("end", ""),
]


def decode(chunks: list[bytes]) -> list[ServerSentEvent]:
    decoder = SSEDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


def test_whole_stream_gives_all_events_and_drops_pings_and_the_unfinished_one() -> None:
    assert decode([STREAM]) == EVENTS


def test_stream_cut_after_every_byte_gives_the_same_events() -> None:
    assert decode([STREAM[i : i + 1] for i in range(len(STREAM))]) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_stream_cut_anywhere_gives_the_same_events(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    assert decode([STREAM[a:b] for a, b in pairwise(places)]) == EVENTS


def test_event_name_does_not_outlive_its_event() -> None:
    assert decode([b"event: data\ndata: a\n\ndata: b\n\n"]) == [
        ServerSentEvent("data", "a"),
        ServerSentEvent("message", "b"),
    ]
