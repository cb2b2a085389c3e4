"""Asking, stopping, retrying and leaving, in every phase of an answer, against the scripted API."""

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest

from tests.ui.fake_api import FakeApi, Script
from ui.chat import HEARTBEAT_S, REPAINT_S, Chat, Chats, Frame
from ui.client import ApiClient
from ui.options import chat_options

# Generous: two cores may be shared with other work.
PATIENCE_S = 10.0
SLOW_S = 30.0


async def frames_of(frames: AsyncGenerator[Frame]) -> list[Frame]:
    return [frame async for frame in frames]


async def until(condition: "object", what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


def page_of(frames: list[Frame]) -> Frame:
    """What the page shows after all frames."""
    shown: dict[str, object] = {}
    for frame in frames:
        shown |= {name: value for name, value in vars(frame).items() if value is not None}
    return Frame(**shown)  # type: ignore[arg-type]


async def test_answer_grows_and_ends_with_its_sources(chat: Chat, api: FakeApi) -> None:
    api.script = Script(pieces=["TTFT ", "is ", "a time."], pause_s=0.15)
    frames = await frames_of(chat.ask("  What does TTFT measure? ", "s"))
    texts = [frame.live for frame in frames if frame.live]
    assert frames[0].is_busy is True
    assert frames[0].question == ""
    assert len({text for text in texts if "TTFT " in text}) >= 3
    page = page_of(frames)
    assert page.live is not None
    assert "TTFT is a time." in page.live
    assert page.sources is not None
    assert "Latency: TTFT and TPOT" in page.sources
    assert (page.is_busy, page.has_turns) == (False, True)
    assert api.asked == [("s", "What does TTFT measure?")]


async def test_blank_question_asks_nothing(chat: Chat, api: FakeApi) -> None:
    assert await frames_of(chat.ask(" \n ", "s")) == [Frame()]
    assert api.asked == []


async def test_sources_are_sent_to_the_page_once(chat: Chat, api: FakeApi) -> None:
    api.script = Script(pieces=["a", "b", "c", "d"], pause_s=0.15)
    frames = await frames_of(chat.ask("q", "s"))
    # At the start they are emptied, then they come, and the last frame says them for good.
    assert len([frame for frame in frames if frame.sources]) == 2


async def test_frames_keep_coming_while_nothing_arrives(chat: Chat, api: FakeApi) -> None:
    api.script = Script(queued_s=2 * SLOW_S)
    frames = chat.ask("q", "s")
    started = time.monotonic()
    for _ in range(5):
        await anext(frames)
    assert time.monotonic() - started < PATIENCE_S
    assert HEARTBEAT_S <= 0.5
    await frames.aclose()


async def test_repaints_are_fewer_than_the_pieces_of_a_fast_answer(chat: Chat, api: FakeApi) -> None:
    api.script = Script(pieces=["x"] * 400, pause_s=0.002)
    started = time.monotonic()
    frames = await frames_of(chat.ask("q", "s"))
    assert len(frames) <= (time.monotonic() - started) / REPAINT_S + 3
    assert 1 / REPAINT_S <= 20
    live = page_of(frames).live
    assert live is not None
    assert "x" * 400 in live


@pytest.mark.parametrize(
    ("phase", "script"),
    [
        ("queued", Script(queued_s=SLOW_S)),
        ("searching", Script(before_sources_s=SLOW_S)),
        ("prefilling", Script(before_text_s=SLOW_S)),
        ("streaming", Script(pieces=["x "] * 1000, pause_s=0.05)),
    ],
)
@pytest.mark.parametrize("way", ["closed tab", "cancelled", "stop"])
async def test_leaving_closes_the_connection_in_every_phase(
    chat: Chat, api: FakeApi, phase: str, script: Script, way: str
) -> None:
    api.script = script
    frames = chat.ask("q", "s")
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(4):
            await anext(frames)
        assert api.num_open == 1, phase
        if way == "closed tab":
            await frames.aclose()
        elif way == "cancelled":
            waiting = asyncio.ensure_future(anext(frames))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        else:
            chat.stop("s")
            rest = await frames_of(frames)
            live = page_of(rest).live
            assert live is not None
            assert "(stopped)" in live
    await until(lambda: api.num_open == 0, f"the connection is still open ({phase}, {way})")
    await until(lambda: len(api.closed_early_at) == 1, "the server was not told that nobody waits")


async def test_stop_keeps_what_has_arrived(chat: Chat, api: FakeApi) -> None:
    api.script = Script(pieces=["kept ", *["more "] * 1000], pause_s=0.05)
    frames = chat.ask("q", "s")
    async for frame in frames:
        if frame.live and "kept" in frame.live:
            chat.stop("s")
    page = await chat.restore("s")
    assert page.live is not None
    assert "kept" in page.live
    assert "(stopped)" in page.live
    assert api.turns["s"][0]["interrupted"] is True


async def test_stopped_answer_tells_what_the_engine_did_as_the_server_wrote_it_down(chat: Chat, api: FakeApi) -> None:
    api.script = Script(pieces=["word "] * 1000, pause_s=0.05, statistics={"num_prompt_tokens": 812, "model": "m"})
    frames = []
    async for frame in chat.ask("q", "s"):
        frames.append(frame)
        if frame.live and "word" in frame.live:
            chat.stop("s")
    first = next(place for place, frame in enumerate(frames) if frame.is_busy is False)
    assert "What the engine did" not in (frames[first].sources or "")
    assert "812 tokens" in (frames[-1].sources or "")
    assert 'data-act="continue"' in (frames[-1].sources or "")
    assert "(stopped)" in (frames[-1].live or "")


async def test_question_asked_right_after_a_stop_is_not_painted_over(chat: Chat, api: FakeApi) -> None:
    api.script = Script(pieces=["word "] * 1000, pause_s=0.05)
    asking = chat.ask("q", "s")
    async for frame in asking:
        if frame.live and "word" in frame.live:
            chat.stop("s")
        if frame.is_busy is False:
            break
    api.script = Script(pieces=["whole"])
    await frames_of(chat.ask("next", "s"))
    assert await frames_of(asking) == []


async def test_without_retrieval_nothing_is_said_of_a_search(chat: Chat, api: FakeApi) -> None:
    api.script = Script(before_sources_s=0.5)
    asking = chat.ask("q", "s", {"retrieval": False})
    assert "Writing an answer" in ((await anext(asking)).live or "")
    await asking.aclose()


async def test_stop_without_an_answer_in_the_making_does_nothing(chat: Chat) -> None:
    chat.stop("unknown")


async def test_retry_drops_the_last_turn_and_asks_again(chat: Chat, api: FakeApi) -> None:
    await frames_of(chat.ask("first", "s"))
    await frames_of(chat.ask("second", "s"))
    api.script = Script(pieces=["another answer"])
    page = page_of(await frames_of(chat.retry("s")))
    assert [(turn["question"], turn["answer"]) for turn in api.turns["s"]] == [
        ("first", "TTFT is the time to first token [1]."),
        ("second", "another answer"),
    ]
    assert page.live is not None
    assert "another answer" in page.live
    assert page.earlier is not None
    assert "first" in page.earlier
    assert "second" not in page.earlier


async def test_retry_after_stop_replaces_the_stopped_turn(chat: Chat, api: FakeApi) -> None:
    api.script = Script(pieces=["x "] * 1000, pause_s=0.05)
    async for frame in chat.ask("q", "s"):
        if frame.live and "x" in frame.live:
            chat.stop("s")
    api.script = Script(pieces=["whole"])
    await frames_of(chat.retry("s"))
    assert [(turn["answer"], turn["interrupted"]) for turn in api.turns["s"]] == [("whole", False)]


async def test_retry_of_a_refused_question_leaves_equal_earlier_turn_alone(chat: Chat, api: FakeApi) -> None:
    await frames_of(chat.ask("q", "s"))
    api.script = Script(refuse=(503, {"error": {"code": "starting", "message": "still loading"}}))
    await frames_of(chat.ask("q", "s"))
    api.script = Script(pieces=["again"])
    await frames_of(chat.retry("s"))
    assert [turn["answer"] for turn in api.turns["s"]] == ["TTFT is the time to first token [1].", "again"]


async def test_retry_before_a_server_that_is_gone_keeps_the_answer_and_says_why(chat: Chat, api: FakeApi) -> None:
    await frames_of(chat.ask("q", "s"))
    api.stop()
    try:
        page = page_of(await frames_of(chat.retry("s")))
    finally:
        api.start()
    assert page.live is not None
    assert "TTFT is the time to first token" in page.live
    assert "cannot be reached" in page.live
    assert page.is_busy is False
    api.script = Script(pieces=["again"])
    await frames_of(chat.retry("s"))
    assert [turn["answer"] for turn in api.turns["s"]] == ["again"]


async def test_retry_with_nothing_asked_does_nothing(chat: Chat, api: FakeApi) -> None:
    await frames_of(chat.retry("s"))
    assert api.asked == []


async def test_refused_question_returns_to_the_box_and_the_reason_is_shown(chat: Chat, api: FakeApi) -> None:
    api.script = Script(refuse=(413, {"error": {"code": "too_long", "message": "at most 20000 characters"}}))
    page = page_of(await frames_of(chat.ask("long question", "s")))
    assert page.question == "long question"
    assert page.live is not None
    assert "at most 20000 characters" in page.live
    assert page.is_busy is False
    api.script = Script()
    page = page_of(await frames_of(chat.ask("short", "s")))
    assert page.earlier == ""


async def test_failure_in_mid_answer_keeps_the_part_and_says_why(chat: Chat, api: FakeApi) -> None:
    api.script = Script(pieces=["the beginning"], error_event="out of memory")
    page = page_of(await frames_of(chat.ask("q", "s")))
    assert page.live is not None
    assert "the beginning" in page.live
    assert "out of memory" in page.live
    assert page.question == ""


async def test_unreachable_server_is_said_and_the_question_kept() -> None:
    client = ApiClient("http://127.0.0.1:9")
    page = page_of(await frames_of(Chat(client).ask("q", "s")))
    assert page.live is not None
    assert "cannot be reached" in page.live
    assert page.question == "q"
    await client.aclose()


async def test_conversation_is_there_after_a_reload(chat: Chat, client: ApiClient, api: FakeApi) -> None:
    await frames_of(chat.ask("first", "s"))
    await frames_of(chat.ask("second", "s"))
    page = await Chat(client).restore("s")
    assert page.earlier is not None
    assert "first" in page.earlier
    assert page.live is not None
    assert "second" in page.live
    assert (page.is_busy, page.has_turns) == (False, True)


async def begun(frames: AsyncGenerator[Frame]) -> None:
    """Take frames until something of the answer is shown."""
    async for frame in frames:
        if "word word" in (frame.live or ""):
            return


async def test_reload_in_mid_answer_shows_its_part_at_once_and_then_offers_to_continue(
    chat: Chat, api: FakeApi
) -> None:
    api.script = Script(pieces=["word "] * 1000, pause_s=0.02)
    before_reload = chat.ask("q", "s")
    await begun(before_reload)
    page = await chat.restore("s")
    after_reload = chat.watch("s")
    await anext(after_reload)
    assert "word word" in (page.live or "")
    assert page.is_busy is True
    await before_reload.aclose()
    page = page_of(await frames_of(after_reload))
    assert "word word" in (page.live or "")
    assert "(stopped)" in (page.live or "")
    assert 'data-act="continue"' in (page.sources or "")
    assert page.is_busy is False
    await until(lambda: len(api.closed_early_at) == 1, "the server was not told that nobody waits")


async def test_two_tabs_that_ask_at_once_show_both_turns_in_the_end(chat: Chat, api: FakeApi) -> None:
    api.script = Script(pieces=["first "] * 5, pause_s=0.05)
    first = asyncio.create_task(frames_of(chat.ask("one", "s")))
    await asyncio.sleep(0.1)
    api.script = Script(pieces=["second "] * 10, pause_s=0.1)
    second = page_of(await frames_of(chat.ask("two", "s")))
    one = page_of(await first)
    # The first tab is left with the other's answer in the making, which the page watches from there.
    assert (one.is_busy, "two" in (one.live or ""), "first first" in (one.earlier or "")) == (True, True, True)
    assert "first first" in (second.earlier or "")
    assert "Searching" not in (second.earlier or "")
    assert "second second" in (second.live or "")
    assert second.is_busy is False


async def test_page_stays_as_it_is_while_the_server_cannot_be_asked() -> None:
    chat = Chat(ApiClient("http://127.0.0.1:9"))  # the port of a service that nobody runs
    page = await chat.restore("s")
    assert (page.live, page.earlier, page.has_turns) == (None, None, None)
    assert (await chat.turn_to("other")).live == ""


async def test_what_a_killed_server_did_not_write_down_is_shown_as_it_is_known_here(chat: Chat, api: FakeApi) -> None:
    api.script = Script(pieces=["word "] * 20, breaks_off=True)
    await frames_of(chat.ask("q", "s"))
    api.turns["s"][0] |= {"answer": "", "sources": [], "interrupted": True, "finish_reason": None}
    page = await chat.restore("s")
    assert "word word" in (page.live or "")
    assert 'role="alert"' in (page.live or "")
    chat.forget("s")
    assert "(not finished" in ((await chat.restore("s")).live or "")


async def test_stopped_turn_that_the_server_has_not_yet_written_down_is_shown_meanwhile(
    chat: Chat, api: FakeApi
) -> None:
    api.script = Script(pieces=["word "] * 1000, pause_s=0.02)
    asking = chat.ask("q", "s")
    await begun(asking)
    await asking.aclose()
    await until(lambda: "s" in api.turns, "the turn was not written")
    kept = api.turns.pop("s")
    page = await chat.restore("s")
    assert "word word" in (page.live or "")
    assert 'data-act="continue"' in (page.sources or "")
    api.turns["s"] = [{**kept[0], "answer": "as the server has it"}]
    assert "as the server has it" in ((await chat.restore("s")).live or "")


async def test_a_long_conversation_is_shown_from_its_end_and_read_back_in_pieces(chat: Chat, api: FakeApi) -> None:
    turn = {"answer": "An answer.", "sources": [], "interrupted": False}
    api.turns["s"] = [{**turn, "question": f"question {index}."} for index in range(40)]
    page = await chat.restore("s")

    def shown(html: str) -> list[int]:
        return [index for index in range(40) if f"question {index}." in html]

    assert shown(page.earlier or "") == list(range(29, 39))
    assert shown(page.live or "") == [39]
    assert 'data-before="29"' in (page.earlier or "")
    first = await chat.earlier("s", 29)
    assert shown(first) == list(range(19, 29))
    last = await chat.earlier("s", 9)
    assert shown(last) == list(range(9))
    assert "data-before" not in last
    assert await chat.earlier("s", -1) == ""


async def test_conversations_do_not_see_each_other(chat: Chat, api: FakeApi) -> None:
    await asyncio.gather(frames_of(chat.ask("mine", "a")), frames_of(chat.ask("yours", "b")))
    mine, yours = await chat.restore("a"), await chat.restore("b")
    assert mine.live is not None
    assert yours.live is not None
    assert ("mine" in mine.live, "yours" in mine.live) == (True, False)
    assert ("mine" in yours.live, "yours" in yours.live) == (False, True)


async def test_two_people_do_not_wait_for_each_other(chat: Chat, api: FakeApi) -> None:
    api.script = Script(before_text_s=SLOW_S)
    slow = chat.ask("slow", "a")
    await anext(slow)
    await until(lambda: api.num_open == 1, "the slow question did not arrive")
    api.script = Script()
    async with asyncio.timeout(PATIENCE_S):
        page = page_of(await frames_of(chat.ask("quick", "b")))
    assert page.live is not None
    assert "first token" in page.live
    await slow.aclose()


async def test_repaint_in_a_long_conversation_carries_the_newest_turn_only(chat: Chat, api: FakeApi) -> None:
    for number in range(12):
        await frames_of(chat.ask(f"question {number}", "s"))
    api.script = Script(pieces=["a", "b", "c"], pause_s=0.1)
    first, *others = await frames_of(chat.ask("the last", "s"))
    assert first.earlier is not None
    assert first.earlier.count("<article") == 10
    assert {frame.earlier for frame in others} == {None}
    assert max(len(frame.live or "") for frame in others) < 1000


async def test_edited_question_takes_the_place_of_it_and_all_later_ones(chat: Chat, api: FakeApi) -> None:
    for question in ("one", "two", "three"):
        await frames_of(chat.ask(question, "s"))
    page = page_of(await frames_of(chat.edit(1, " another two ", "s")))
    assert [turn["question"] for turn in api.turns["s"]] == ["one", "another two"]
    assert page.live is not None
    assert "another two" in page.live
    assert await frames_of(chat.edit(7, "no such turn", "s")) == [Frame()]
    assert await frames_of(chat.edit(0, " ", "s")) == [Frame()]


async def test_answer_that_was_cut_goes_on_in_its_turn(chat: Chat, api: FakeApi) -> None:
    api.script = Script(pieces=["One"], finish_reason="length")
    await frames_of(chat.ask("Count.", "s"))
    api.script = Script(pieces=[" and two."], finish_reason="stop")
    page = page_of(await frames_of(chat.go_on("s", {"temperature": 0.5})))
    assert page.live is not None
    assert "One and two." in page.live
    assert page.question is None
    assert api.options == [{}, {"temperature": 0.5, "continue_turn": True}]
    assert [turn["answer"] for turn in api.turns["s"]] == ["One and two."]
    assert await frames_of(chat.go_on("s")) == [Frame()]


async def test_place_in_the_queue_is_shown_until_the_answer_comes(chat: Chat, api: FakeApi) -> None:
    api.script = Script(queued_s=3, position=2)
    frames = await frames_of(chat.ask("q", "s"))
    assert any("number 2 in the queue" in (frame.live or "") for frame in frames)
    assert "in the queue" not in (page_of(frames).live or "")


async def test_people_with_different_keys_share_nothing(client: ApiClient, api: FakeApi) -> None:
    chats = Chats(client)
    assert chats.of("a") is chats.of("a")
    assert chats.of("a") is not chats.of("b")
    api.key = "b"
    refused = page_of(await frames_of(chats.of("a").ask("q", "s")))
    assert 'data-code="login"' in (refused.live or "")
    assert (await chats.of("a").restore("s")).has_turns is False
    refused = page_of(await frames_of(chats.of("a").ask("q", "s")))
    assert 'data-code="login"' in (refused.live or "")
    assert "time to first token" in (page_of(await frames_of(chats.of("b").ask("q", "s"))).live or "")


@pytest.mark.parametrize("given", ["", "null", "[]", "no json", None, '{"user": "x", "session_id": "y"}'])
def test_options_that_are_none_are_left_out(given: str | None) -> None:
    assert chat_options(given) == {}


def test_options_are_passed_on_by_name() -> None:
    given = '{"model": "m", "temperature": 0, "collections": ["a"], "retrieval": false, "top_p": null}'
    assert chat_options(given) == {"model": "m", "temperature": 0, "collections": ["a"], "retrieval": False}
