"""Going on with an answer that was cut or stopped: in each way that answers are checked."""

from contextlib import aclosing

import numpy as np
import pytest

from app.answering import Answering
from app.continuing import beyond
from app.errors import ConflictError
from engine.errors import PromptTooLongError, StepFailedError
from tests.app.scripted import ScriptedEngineClient, passage
from tests.app.test_conversation import Setup, config

QUESTION = "How many hours of leave do employees earn?"
SENTENCE = "Employees earn 6 hours of leave per pay period."


def setup(folder, *pieces, mode=None, finish_reason="length", **options):
    answering = None
    if mode is not None:
        answering = Answering(
            mode,
            lambda terms: dict.fromkeys(terms, 1.0),
            lambda texts: np.eye(len(texts), 8, dtype=np.float32) + np.float32(0.4),
            "scripted",
        )
    client = ScriptedEngineClient(pieces, finish_reason=finish_reason)
    made = Setup(folder, client, answering=answering, **options)
    made.found = [passage(f"{SENTENCE} Unused leave is paid out.", title="Leave")]
    return made


async def go_on(made, *pieces, finish_reason="stop", **options):
    made.client.pieces, made.client.finish_reason = list(pieces), finish_reason
    given = {"input": ""}
    return await made.chain.ainvoke(given, config(continue_turn=True, **options))


async def test_a_cut_answer_goes_on_where_it_ended_and_stays_one_turn(tmp_path):
    made = setup(tmp_path, "Employees earn 6 ho")
    first = await made.chain.ainvoke({"input": QUESTION}, config())
    assert first["finish_reason"] == "length"
    result = await go_on(made, "urs of leave.", finish_reason="length")
    assert (result["answer"], result["turn_id"], result["index"]) == ("urs of leave.", first["turn_id"], 0)
    assert result["sources"] == first["sources"]
    await go_on(made, " That is all.")
    (turn,) = made.turns()
    assert (turn.answer, turn.finish_reason) == ("Employees earn 6 hours of leave. That is all.", "stop")
    assert (turn.question, turn.interrupted, len(made.searches)) == (QUESTION, False, 1)
    request = made.client.requests[2]
    assert request["messages"][-1]["content"].endswith(QUESTION)
    assert request["begins"] == "Employees earn 6 hours of leave."


async def test_a_stopped_answer_goes_on(tmp_path):
    made = setup(tmp_path, "Employees ", "earn ", "much.")
    async with aclosing(made.chain.astream({"input": QUESTION}, config())) as chunks:
        async for chunk in chunks:
            if chunk.get("answer") == "earn ":
                break
    await made.chain.drain()
    assert (made.turns()[0].answer, made.turns()[0].finish_reason) == ("Employees earn ", "abort")
    assert (await go_on(made, " 6 hours."))["answer"] == "6 hours."
    assert made.turns()[0].answer == "Employees earn 6 hours."


async def test_a_turn_without_a_word_is_answered_anew_in_its_place(tmp_path):
    made = setup(tmp_path)
    made.client.error, made.client.error_after = StepFailedError("broken"), 0
    with pytest.raises(StepFailedError):
        await made.chain.ainvoke({"input": QUESTION}, config())
    made.client.error = None
    result = await go_on(made, "6 hours.")
    assert (result["answer"], result["index"], len(made.turns())) == ("6 hours.", 0, 1)
    assert made.turns()[0].question == QUESTION


async def test_marked_sentences_are_checked_whole_whatever_was_cut(tmp_path):
    made = setup(tmp_path, f"{SENTENCE} Unused leave is", mode="mark")
    first = await made.chain.ainvoke({"input": QUESTION}, config())
    assert first["answer"] == f"{SENTENCE} [1] Unused leave is"
    assert (await go_on(made, " paid out."))["answer"] == " paid out. [1]"
    (turn,) = made.turns()
    assert turn.answer == f"{SENTENCE} [1] Unused leave is paid out. [1]"
    assert [sentence["text"] for sentence in turn.grounding["sentences"]] == [SENTENCE, "Unused leave is paid out."]
    assert made.client.requests[1]["begins"] == f"{SENTENCE} Unused leave is"


async def test_a_stopped_strict_answer_is_told_to_its_end(tmp_path):
    made = setup(tmp_path, "I do not know.", mode="strict", finish_reason="stop")
    async with aclosing(made.chain.astream({"input": QUESTION}, config())) as chunks:
        async for chunk in chunks:
            if chunk.get("answer") == "6 ":
                break
    await made.chain.drain()
    said = made.turns()[0].answer
    rest = (await go_on(made, "I do not know."))["answer"]
    assert (said + rest).startswith(f'"{SENTENCE}" [1]')
    assert made.turns()[0].answer == said + rest


async def test_what_is_complete_or_not_there_cannot_be_continued(tmp_path):
    made = setup(tmp_path, "Done.", finish_reason="stop")
    with pytest.raises(ConflictError, match="no answer to continue"):
        await go_on(made, "x")
    await made.chain.ainvoke({"input": QUESTION}, config())
    before = made.turns()
    with pytest.raises(ConflictError, match="the last answer is complete"):
        await go_on(made, "x")
    assert made.turns() == before


async def test_an_answer_that_has_no_room_to_go_on_stays_what_it_was(tmp_path):
    made = setup(tmp_path, "word " * 80, max_tokens=10, max_model_len=160)
    await made.chain.ainvoke({"input": "long?"}, config())
    before = made.turns()
    with pytest.raises(PromptTooLongError):
        await go_on(made, "x", max_tokens=120)
    assert made.turns() == before


@pytest.mark.parametrize("mode", [None, "mark", "strict"])
@pytest.mark.parametrize("made_with", [{"retrieval": False}, {"num_passages": 0}])
@pytest.mark.parametrize("asked_with", [{}, {"retrieval": False}])
async def test_an_answer_without_passages_goes_on_in_the_words_of_the_model(tmp_path, mode, made_with, asked_with):
    made = setup(tmp_path, "Employees earn", mode=mode)
    first = await made.chain.ainvoke({"input": QUESTION}, config(max_tokens=8, **made_with))
    result = await go_on(made, " much", " leave.", **asked_with)
    assert (result["answer"], result["turn_id"], result["finish_reason"]) == (" much leave.", first["turn_id"], "stop")
    assert result.get("grounding") == first.get("grounding")
    (turn,) = made.turns()
    assert (turn.answer, turn.sources, made.searches) == ("Employees earn much leave.", (), [])
    assert (turn.grounding or {}).get("state") == (mode and "unchecked")
    assert turn.statistics["num_output_tokens"] == 2
    request = made.client.requests[1]
    assert (request["messages"][-1]["content"], request["begins"]) == (QUESTION, "Employees earn")


async def test_what_a_turn_asked_is_kept_however_often_it_goes_on(tmp_path):
    made = setup(tmp_path, "Employees earn", mode="strict")
    await made.chain.ainvoke({"input": QUESTION}, config(retrieval=False))
    await go_on(made, " much", finish_reason="length", max_tokens=3)
    await go_on(made, " leave.")
    (turn,) = made.turns()
    assert (turn.answer, turn.settings["retrieval"]) == ("Employees earn much leave.", False)


async def test_small_talk_that_was_cut_goes_on_unchecked(tmp_path):
    made = setup(tmp_path, "You are", mode="mark")
    await made.chain.ainvoke({"input": "Thank you!"}, config())
    result = await go_on(made, " welcome.")
    assert (result["answer"], result["grounding"]["state"]) == (" welcome.", "unchecked")


async def test_what_is_told_of_the_assistant_is_told_to_its_end_whatever_is_asked(tmp_path):
    made = setup(tmp_path, mode="strict")
    whole = (await made.chain.ainvoke({"input": "Who are you?"}, config("other")))["answer"]
    async with aclosing(made.chain.astream({"input": "Who are you?"}, config())) as chunks:
        async for chunk in chunks:
            if "answer" in chunk:
                break
    await made.chain.drain()
    said = made.turns()[0].answer
    assert said + (await go_on(made, "x", retrieval=False))["answer"] == whole
    assert (made.turns()[0].answer, made.client.requests) == (whole, [])


async def test_the_words_of_an_unchecked_answer_are_left_as_they_are(tmp_path):
    made = setup(tmp_path, "Take a[0] and a [1]", mode="mark")
    await made.chain.ainvoke({"input": QUESTION}, config(retrieval=False))
    assert (await go_on(made, " or b [", finish_reason="length"))["answer"] == " or b ["
    assert (await go_on(made, "2]."))["answer"] == "2]."
    assert made.turns()[0].answer == "Take a[0] and a [1] or b [2]."
    assert made.client.requests[2]["begins"] == "Take a[0] and a [1] or b ["


@pytest.mark.parametrize("asked_with", [{"retrieval": False}, {"num_passages": 0}])
async def test_an_answer_from_passages_stays_checked_whatever_is_asked(tmp_path, asked_with):
    made = setup(tmp_path, f"{SENTENCE} Unused leave is", mode="mark")
    first = await made.chain.ainvoke({"input": QUESTION}, config())
    result = await go_on(made, " paid out.", **asked_with)
    assert (result["answer"], result["sources"]) == (" paid out. [1]", first["sources"])
    (turn,) = made.turns()
    assert (turn.grounding["mode"], turn.grounding["state"]) == ("mark", "answered")
    assert not asked_with.keys() & turn.settings.keys()


async def test_an_answer_is_checked_to_its_end_as_it_was_begun(tmp_path):
    made = setup(tmp_path, f"{SENTENCE} Unused leave is", mode="mark")
    await made.chain.ainvoke({"input": QUESTION}, config())
    (tmp_path / "stricter").mkdir()
    stricter = setup(tmp_path / "stricter", mode="strict")
    stricter.chain = stricter.chain.over(made.store, stricter.chain._answerer)
    assert (await go_on(stricter, " paid out."))["answer"] == " paid out. [1]"
    assert made.turns()[0].grounding["mode"] == "mark"


async def test_a_later_question_is_understood_as_it_was_when_its_answer_was_stopped(tmp_path):
    made = setup(tmp_path, "I do not know.", mode="strict", finish_reason="stop")
    await made.chain.ainvoke({"input": QUESTION}, config())
    whole = (await made.chain.ainvoke({"input": "And per pay period?"}, config()))["answer"]
    made.store.truncate("local", "s", 1)
    async with aclosing(made.chain.astream({"input": "And per pay period?"}, config())) as chunks:
        async for chunk in chunks:
            if "answer" in chunk:
                break
    await made.chain.drain()
    said = made.turns()[1].answer
    assert said + (await go_on(made, "I do not know."))["answer"] == whole


@pytest.mark.parametrize(
    ("mode", "retrieval", "pieces"),
    [
        (None, True, []),
        (None, False, []),
        ("mark", True, []),
        ("mark", False, []),
        ("strict", True, [SENTENCE]),  # asked anew, the model says the same
        ("strict", False, []),
    ],
)
async def test_a_continuation_without_a_word_has_an_answer_part_and_takes_nothing_away(
    tmp_path, mode, retrieval, pieces
):
    made = setup(tmp_path, SENTENCE, mode=mode)
    await made.chain.ainvoke({"input": QUESTION}, config(retrieval=retrieval))
    (before,) = made.turns()
    assert before.finish_reason == "length"
    made.client.pieces, made.client.finish_reason = pieces, "stop"
    chunks = [chunk async for chunk in made.chain.astream({"input": ""}, config(continue_turn=True))]
    assert [chunk["answer"] for chunk in chunks if "answer" in chunk] == [""]
    (turn,) = made.turns()
    assert (turn.answer, turn.grounding, turn.finish_reason) == (before.answer, before.grounding, "stop")


@pytest.mark.parametrize("error", [StepFailedError("broken"), PromptTooLongError(9, 8, 1)])
@pytest.mark.parametrize("retrieval", [True, False])
@pytest.mark.parametrize("said", ["Employees earn", ""])
async def test_a_turn_that_cannot_go_on_stays_what_it_was(tmp_path, error, retrieval, said):
    made = setup(tmp_path, said, mode="mark")
    if not said:
        made.client.error = StepFailedError("broken before")
        with pytest.raises(StepFailedError, match="broken before"):
            await made.chain.ainvoke({"input": QUESTION}, config(retrieval=retrieval))
    else:
        await made.chain.ainvoke({"input": QUESTION}, config(retrieval=retrieval))
    before = made.turns()
    made.client.error = error
    with pytest.raises(type(error)):
        await go_on(made)
    assert made.turns() == before
    made.client.error = None
    assert (await go_on(made, " 6 hours."))["answer"].startswith(" 6 hours.")


async def test_new_words_before_a_failure_are_kept_and_can_be_continued(tmp_path):
    made = setup(tmp_path, "Employees earn", mode="mark")
    await made.chain.ainvoke({"input": QUESTION}, config(retrieval=False))
    made.client.error, made.client.error_after = StepFailedError("broken"), 1
    with pytest.raises(StepFailedError):
        await go_on(made, " much")
    (turn,) = made.turns()
    assert (turn.answer, turn.interrupted, turn.grounding["state"]) == ("Employees earn much", True, "unchecked")
    made.client.error = None
    assert (await go_on(made, " leave."))["answer"] == " leave."


@pytest.mark.parametrize(
    ("said", "pieces", "fresh"),
    [
        ("", ["a"], "a"),
        ("One. [1] Tw", ["One.", " [1]", " Two.", " [2]"], "o. [2]"),
        ("One.", ["One.", " [1]", " Two."], " [1] Two."),
        ("One. [1]", ["One.", " [1]", " Two."], " Two."),
        ("One. [1] ", ["One. [1] Two."], "Two."),
        ("One", ["Other."], "\n\nOther."),
        ("One. Two.", ["One."], ""),
        ("One. Two.", ["Six."], "\n\nSix."),
        ("One", ["One", " [1]"], " [1]"),
    ],
)
async def test_what_is_beyond_the_words_that_were_said(said, pieces, fresh):
    async def coming():
        for piece in pieces:
            yield piece

    assert "".join([piece async for piece in beyond(said, coming())]) == fresh
