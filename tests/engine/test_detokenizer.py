"""The detokenizer: joined deltas are the decoded whole, and stop strings are found wherever tokens are cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from engine.detokenizer import Detokenizer
from engine.errors import InvalidParameterError
from engine.tokenizer import Tokenizer
from tests.engine import vocabularies

SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXTS = st.one_of(
    st.text(max_size=40),
    st.lists(st.sampled_from(vocabularies.FRAGMENTS), max_size=8).map("".join),
    st.text(alphabet="ab <|im_end|>日本語😀\u0301\u200d", max_size=40),
)


@pytest.fixture(scope="module")
def smollm2(chat_model_path: Path) -> Tokenizer:
    return vocabularies.smollm2(chat_model_path)


@pytest.fixture(scope="module")
def sentencepiece() -> Tokenizer:
    return vocabularies.sentencepiece().from_gguf


def streamed(detokenizer: Detokenizer, ids: Iterable[int]) -> list[str]:
    """All deltas, the last one from `finish`."""
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


def without_incomplete_end(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The decoded whole, less the bytes at its end that begin a character and do not complete it."""
    content = b"".join(map(tokenizer.token_bytes, ids))
    begins = next((n for n in (1, 2, 3) if completable(content[len(content) - n :])), 0)
    return content[: len(content) - begins].decode("utf-8", errors="replace")


def completable(tail: bytes) -> bool:
    """Whether these bytes are the beginning of one character."""
    fillers = [bytes([second]) + b"\x80" * more for second in (0x80, 0x90, 0xA0) for more in range(3)]
    return any(is_character(tail + filler) for filler in fillers)


def is_character(content: bytes) -> bool:
    try:
        return len(content.decode("utf-8")) == 1 and len(content) > 1
    except UnicodeDecodeError:
        return False


def first_stop(text: str, stops: Sequence[str]) -> tuple[str, str] | None:
    """(text before the stop string that is complete first, that stop string), by looking at every end."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return None


# ------------------------------------------------------------------------------------------------------------- text


@SETTINGS
@given(TEXTS)
def test_joined_deltas_of_a_text_are_the_decoded_whole(smollm2: Tokenizer, sentencepiece: Tokenizer, text: str) -> None:
    for tokenizer in (smollm2, sentencepiece):
        ids = tokenizer.encode(text)
        detokenizer = Detokenizer(tokenizer)
        deltas = streamed(detokenizer, ids)
        assert "".join(deltas) == detokenizer.text == tokenizer.decode(ids)


@SETTINGS
@given(st.lists(st.one_of(st.integers(0, 49151), st.integers(0, 300)), max_size=30))
@example([23274])  # the first bytes of a character, and no more
@example([23274, 1, 115])  # a control token in the middle of a character
@example([115, 115])
@example([184, 111])  # the first bytes of a surrogate, which is no character
def test_joined_deltas_of_any_ids_are_the_decoded_whole(smollm2: Tokenizer, ids: list[int]) -> None:
    text = "".join(streamed(Detokenizer(smollm2), ids))
    assert text == without_incomplete_end(smollm2, ids)
    assert smollm2.decode(ids).startswith(text)
    assert smollm2.decode(ids)[len(text) :] in ("", "\ufffd")


@SETTINGS
@given(
    st.lists(st.one_of(st.integers(0, 485), st.sampled_from([8 + b for b in b"\xe6\x97\xa5\xf0\x9f\x98\x80\xff a"])))
)
def test_joined_deltas_of_any_ids_with_byte_tokens_are_the_decoded_whole(
    sentencepiece: Tokenizer, ids: list[int]
) -> None:
    detokenizer = Detokenizer(sentencepiece)
    # One more token ends every run of bytes, so that nothing is incomplete.
    ids = [*ids, sentencepiece.encode("the")[0]]
    assert "".join(streamed(detokenizer, ids)) == sentencepiece.decode(ids)


@SETTINGS
@given(st.text(alphabet="日本語😀é🇩🇪한", min_size=1, max_size=12))
def test_no_delta_holds_a_replacement_character(smollm2: Tokenizer, text: str) -> None:
    ids = smollm2.encode(text)
    for end in range(len(ids) + 1):
        deltas = streamed(Detokenizer(smollm2), ids[:end])
        assert "\ufffd" not in "".join(deltas)
        assert text.startswith("".join(deltas))


def test_a_character_comes_with_its_last_byte(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("日本")
    assert [smollm2.token_bytes(i) for i in ids] == [b"\xe6\x97", b"\xa5", b"\xe6\x9c\xac"]
    assert streamed(Detokenizer(smollm2), ids) == ["", "日", "本", ""]
    assert streamed(Detokenizer(smollm2), ids[:1]) == ["", ""]


def test_control_tokens_add_nothing(smollm2: Tokenizer) -> None:
    ids = [1, *smollm2.encode("hello"), 2]
    assert streamed(Detokenizer(smollm2), ids) == ["", "hello", "", ""]


def test_only_the_first_prefix_space_is_stripped(sentencepiece: Tokenizer) -> None:
    fox = sentencepiece.encode("the fox")
    assert "".join(streamed(Detokenizer(sentencepiece), [1, *fox, *fox])) == "the fox the fox"
    assert "".join(streamed(Detokenizer(sentencepiece), sentencepiece.encode("  x"))) == " x"


def byte_ids(tokenizer: Tokenizer, content: bytes) -> list[int]:
    ids = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size) if tokenizer.is_byte_fallback(i)}
    return [ids[bytes([byte])] for byte in content]


def test_run_of_byte_tokens_cut_off_in_a_character_keeps_the_whole_ones(sentencepiece: Tokenizer) -> None:
    ids = byte_ids(sentencepiece, "日本".encode()[:-1])
    assert streamed(Detokenizer(sentencepiece), ids) == ["", "", "", "", "", "日"]


def test_run_of_byte_tokens_that_is_no_text_gives_one_replacement_a_byte(sentencepiece: Tokenizer) -> None:
    ids = [*byte_ids(sentencepiece, b"\xe6\x97\xa5\xff"), *sentencepiece.encode("the")]
    assert "".join(streamed(Detokenizer(sentencepiece), ids)) == sentencepiece.decode(ids) == "\ufffd" * 4 + " the"


# ----------------------------------------------------------------------------------------------------- stop strings


class Pieces:
    """A tokenizer whose tokens are given pieces of text, to cut a text wherever a test wants."""

    is_byte_level = True

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id].encode()


def of_pieces(pieces: Sequence[str], stop: Sequence[str], **options: object) -> tuple[list[str], Detokenizer]:
    detokenizer = Detokenizer(Pieces(pieces), stop, **options)  # type: ignore[arg-type]
    return streamed(detokenizer, range(len(pieces))), detokenizer


def all_splits(text: str) -> Iterable[list[str]]:
    for cuts in range(2 ** (len(text) - 1)):
        pieces, start = [], 0
        for at in range(1, len(text)):
            if cuts >> (at - 1) & 1:
                pieces.append(text[start:at])
                start = at
        yield [*pieces, text[start:]]


@pytest.mark.parametrize("include_stop", [False, True])
def test_stop_string_is_found_in_every_split(include_stop: bool) -> None:
    for pieces in all_splits("ab##END##cd"):
        deltas, detokenizer = of_pieces(pieces, ["#END#", "d"], include_stop=include_stop)
        assert "".join(deltas) == detokenizer.text == ("ab##END#" if include_stop else "ab#")
        assert detokenizer.stopped_by == "#END#"


def test_text_is_held_back_only_as_long_as_it_may_become_a_stop_string() -> None:
    deltas, detokenizer = of_pieces(["x D", "E", "F, G", "H", "I."], ["DEFINE"])
    assert deltas == ["x ", "", "DEF, G", "H", "I.", ""]
    assert detokenizer.stopped_by is None


def test_held_back_text_is_flushed_at_the_end() -> None:
    assert of_pieces(["stop", " here: ST", "O"], ["STOP"])[0] == ["stop", " here: ", "", "STO"]


def test_beginning_of_a_stop_string_inside_held_text_still_counts() -> None:
    deltas, detokenizer = of_pieces(["aab", "aa", "bc", "x"], ["aabc"])
    assert deltas == ["", "aab", "", "", ""]
    assert detokenizer.stopped_by == "aabc"


def test_of_two_stop_strings_the_one_complete_first_wins() -> None:
    for pieces in all_splits("abcd"):
        assert "".join(of_pieces(pieces, ["abcd", "bc"])[0]) == "a"
    for pieces in all_splits("xabc"):
        assert of_pieces(pieces, ["c", "bc", "abc"])[1].stopped_by == "abc"


def test_nothing_comes_after_a_stop() -> None:
    deltas, detokenizer = of_pieces(["a.", "b.", "c"], ["."])
    assert (deltas, detokenizer.text) == (["a", "", "", ""], "a")


def test_stop_string_completed_by_the_flush_of_a_byte_run_counts(sentencepiece: Tokenizer) -> None:
    detokenizer = Detokenizer(sentencepiece, ["日"])
    assert streamed(detokenizer, [*sentencepiece.encode("the"), *byte_ids(sentencepiece, "日本".encode())])[-1] == ""
    assert (detokenizer.stopped_by, detokenizer.text) == ("日", "the")


def test_stop_string_before_min_tokens_does_not_count() -> None:
    deltas, detokenizer = of_pieces(["a.", "b", ".", "c"], ["."], min_tokens=2)
    assert (deltas, detokenizer.stopped_by) == (["a.", "b", "", "", ""], ".")
    assert "".join(of_pieces(["a", "b", "c", "d"], ["abc"], min_tokens=4)[0]) == "abcd"
    assert "".join(of_pieces(["a", "b", "c", "d"], ["bcd"], min_tokens=4)[0]) == "a"
    assert "".join(of_pieces(["aa", "aa", "a"], ["aaa"], min_tokens=3)[0]) == "aa"


@pytest.mark.parametrize("stop", [[""], ["a", ""], "abc", [3]])
def test_empty_or_wrong_stop_strings_are_refused(smollm2: Tokenizer, stop: Sequence[str]) -> None:
    with pytest.raises(InvalidParameterError, match=r"^stop: .*texts that are not empty"):
        Detokenizer(smollm2, stop)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.text(alphabet="abc", max_size=4), max_size=12),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4),
)
def test_stop_strings_in_any_split_equal_brute_force(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    deltas, detokenizer = of_pieces(pieces, stops)
    expected, stopped_by = first_stop(text, stops) or (text, None)
    assert ("".join(deltas), detokenizer.stopped_by) == (expected, stopped_by)
    # What had been given out before the stop was certain: never more than the expected text, and as much as is certain.
    given_out = ""
    for number, delta in enumerate(deltas[:-1], start=1):
        given_out += delta
        seen = "".join(pieces[:number])
        if first_stop(seen, stops) is None:
            undecided = [n for n in range(len(seen)) if any(s.startswith(seen[n:]) for s in stops)]
            assert given_out == (seen[: undecided[0]] if undecided else seen)


@SETTINGS
@given(TEXTS, st.lists(st.text(alphabet="ab 日😀<|", min_size=1, max_size=3), max_size=3), st.data())
def test_stop_strings_over_real_tokens_equal_brute_force(
    smollm2: Tokenizer, sentencepiece: Tokenizer, text: str, stops: list[str], data: st.DataObject
) -> None:
    if text:
        start = data.draw(st.integers(0, len(text) - 1))
        stops = [*stops, text[start : start + data.draw(st.integers(1, 5))]]
    for tokenizer in (smollm2, sentencepiece):
        detokenizer = Detokenizer(tokenizer, stops)
        ids = tokenizer.encode(text)
        whole = tokenizer.decode(ids)
        expected, stopped_by = first_stop(whole, stops) or (whole, None)
        assert "".join(streamed(detokenizer, ids)) == expected
        assert detokenizer.stopped_by == stopped_by
