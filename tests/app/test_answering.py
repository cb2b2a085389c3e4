"""What of a model's words reaches the reader in each mode, what is quoted instead, and what is said of it."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from app.answering import Answering
from app.chat_schema import ChatOutput
from app.fixed_texts import ENGLISH, TRANSLATIONS
from app.turn_prompt import PassageRule
from retrieval.evidence import UNRELATED
from tests.app.scripted import ScriptedEngineClient, passage, until
from tests.app.test_conversation import Setup, config
from tests.retrieval.word_embedder import WordEmbedder

LEAVE = "Employees earn 6 hours of leave per pay period. Interns earn no leave. Leave is asked for in the calendar."
QUESTION = "How many hours of leave do employees earn per pay period?"
SENTENCE = "Employees earn 6 hours of leave per pay period."


def all_about(texts):
    """Everything means the same, but for what is said of nothing in particular."""
    return np.array([[float(text not in UNRELATED), float(text in UNRELATED)] for text in texts], dtype=np.float32)


def setup(tmp_path, *pieces, mode="strict", texts=(LEAVE,), embed=None, **options):
    made = Setup(
        tmp_path,
        ScriptedEngineClient(pieces),
        answering=Answering(mode, lambda terms: dict.fromkeys(terms, 1.0), embed or WordEmbedder().embed_passages),
        **options,
    )
    made.found = [passage(text, title="Rules") for text in texts]
    return made


async def ask(made, question=QUESTION, **options):
    return await made.chain.ainvoke({"input": question}, config(**options))


# ── strict ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_supported_sentence_of_the_model_passes_word_by_word_with_its_source(tmp_path):
    made = setup(tmp_path, "Employees earn", " 6 hours of leave", " per pay period. And", " 7 on Mars.")
    chunks = [chunk async for chunk in made.chain.astream({"input": QUESTION}, config())]
    assert [chunk["answer"] for chunk in chunks[1:-2]] == [
        "Employees ", "earn ", "6 ", "hours ", "of ", "leave ", "per ", "pay ", "period. ", "[1]",
    ]  # fmt: skip
    (sentence,) = ChatOutput.model_validate(made.turns()[0].__dict__).grounding.sentences
    assert (sentence.origin, sentence.supported, sentence.n, sentence.quote) == ("model", True, 1, SENTENCE)
    text = made.turns()[0].sources[0]["text"]
    assert text[slice(*sentence.span)] == SENTENCE
    assert [text[slice(*word)] for word in sentence.words][:4] == ["Employees", "earn", "6", "hours"]
    assert chunks[-2]["grounding"]["state"] == "answered"


@pytest.mark.parametrize(
    "said",
    [
        "Employees earn 8 hours of leave per pay period.",  # another number
        "Interns earn no leave.",  # true, and no answer
        "Employees earn leave.",  # the answer is not in it
        "The answer is the answer is the answer is",
        "",
        "   ",
    ],
)
async def test_anything_else_gives_way_to_a_quotation(tmp_path, said):
    made = setup(tmp_path, said)
    result = await ask(made)
    assert result["answer"] == f'"{SENTENCE}" [1]'
    assert [(item["origin"], item["n"]) for item in result["grounding"]["sentences"]] == [("quote", 1)]
    assert made.turns()[0].answer == result["answer"]
    assert made.turns()[0].grounding == result["grounding"]


async def test_what_the_model_leaves_unsaid_is_quoted(tmp_path):
    both = "Tickets cost 12 dollars. Season tickets cost 40 dollars. Dogs stay outside."
    made = setup(tmp_path, "Season tickets cost 40 dollars. ", "Dogs stay outside.", texts=(both,), embed=all_about)
    result = await ask(made, "What do tickets cost?")
    assert [(item["origin"], item["text"]) for item in result["grounding"]["sentences"]] == [
        ("model", "Season tickets cost 40 dollars."),
        ("quote", "Tickets cost 12 dollars."),
    ]
    assert result["answer"] == 'Season tickets cost 40 dollars. [1]\n\n"Tickets cost 12 dollars." [1]'


@pytest.mark.parametrize(
    ("rule", "answer"),
    [
        ("Dogs are allowed in the office.", 'Yes. "Dogs are allowed in the office." [1]'),
        ("Dogs are not allowed in the office.", 'No. "Dogs are not allowed in the office." [1]'),
        ("Small dogs are allowed in the office.", '"Small dogs are allowed in the office." [1]'),
        (
            "Dogs are allowed in the office. However, they stay off the sofa.",
            '"Dogs are allowed in the office." [1]\n\n"However, they stay off the sofa." [1]',
        ),
    ],
)
async def test_a_question_that_asks_whether_is_answered_where_that_is_certain(tmp_path, rule, answer):
    made = setup(tmp_path, "I do not know.", texts=(rule,))
    assert (await ask(made, "Are dogs allowed in the office?"))["answer"] == answer


@pytest.mark.parametrize("line", ["Rules\n", "Rules: ", "[1] Rules\n", "Rules\n\n"])
async def test_the_line_that_says_where_a_passage_stands_is_not_told(tmp_path, line):
    made = setup(tmp_path, line, SENTENCE)
    result = await ask(made)
    assert result["answer"] == f"{SENTENCE} [1]"
    assert [item["origin"] for item in result["grounding"]["sentences"]] == ["model"]


async def test_a_sentence_may_begin_with_the_title_of_its_passage(tmp_path):
    sentence = "Rules of leave are kept in the calendar of the office."
    result = await ask(setup(tmp_path, sentence, texts=(sentence,), embed=all_about), "Where are rules of leave kept?")
    assert result["answer"] == f"{sentence} [1]"


async def test_a_quotation_mark_that_the_model_leaves_open_is_not_shown(tmp_path):
    made = setup(tmp_path, '"Employees earn 6 hours of leave per pay period.')
    assert (await ask(made))["answer"] == f"{SENTENCE} [1]"


async def test_quotation_marks_within_a_quotation_become_single_ones(tmp_path):
    made = setup(tmp_path, "", texts=('Employees earn "annual leave" of 6 hours per pay period.',))
    result = await ask(made)
    assert result["answer"] == "\"Employees earn 'annual leave' of 6 hours per pay period.\" [1]"


async def test_no_mark_in_a_quotation_is_one_of_the_document_itself(tmp_path):
    text = "Employees earn 6 hours of [leave][2] per pay period.[1][3]\n\n[2]: https://leave.example/\n"
    made = setup(tmp_path, "", texts=(text,))
    made.found = [passage("Sick leave is short.[1]", title="Sick"), *made.found]
    assert (await ask(made))["answer"] == f'"{SENTENCE}" [2]'


async def test_a_sentence_of_the_model_is_told_from_one_with_reference_marks(tmp_path):
    made = setup(tmp_path, "Employees earn 6 hours of leave per pay period.[1][2]", texts=(f"{SENTENCE}[4]",))
    result = await ask(made)
    assert result["answer"] == f"{SENTENCE} [1]"
    assert result["grounding"]["sentences"][0]["origin"] == "model"


async def test_a_table_row_is_quoted_as_it_reads_and_may_be_told_by_the_model(tmp_path):
    table = "| who | hours of leave per pay period |\n|---|---|\n| interns | 0 |\n| employees | 6 |"
    quoted = "who: employees; hours of leave per pay period: 6"
    assert (await ask(setup(tmp_path, "", texts=(table,))))["answer"].startswith(f'"{quoted}" [1]')
    told = "Employees: 6 hours of leave per pay period."
    assert (await ask(setup(tmp_path / "told", told, texts=(table,))))["grounding"]["sentences"][0]["quote"] == quoted


async def test_a_rejected_model_is_stopped(tmp_path):
    made = setup(tmp_path, "Wrong", " entirely. ", *["More. "] * 50)
    await ask(made)
    assert made.client.produced < 10
    await until(lambda: made.client.open == 0)


async def test_a_sentence_without_an_end_is_not_waited_for(tmp_path):
    made = setup(tmp_path, *["the answer is "] * 200)
    assert (await ask(made))["answer"] == f'"{SENTENCE}" [1]'
    assert made.client.produced < 30


@pytest.mark.parametrize("question", ["Which algorithm sorts integers fastest?", "x" * 900])
async def test_what_the_documents_do_not_hold_is_said_to_be_so_without_asking_the_model(tmp_path, question):
    made = setup(tmp_path, "Quicksort.")
    result = await ask(made, question)
    assert result["answer"] == f"{ENGLISH.not_found} {ENGLISH.nearest}"
    assert result["grounding"]["state"] == "not_found"
    assert [source["text"] for source in result["sources"]] == [LEAVE]
    assert made.client.requests == []


async def test_without_any_passage_nothing_is_found(tmp_path):
    made = setup(tmp_path, "Anything.", texts=())
    assert (await ask(made))["answer"] == ENGLISH.not_found


async def test_small_talk_searches_nothing_and_a_small_model_is_not_asked(tmp_path):
    made = setup(tmp_path, "This is not in your documents.")  # what small models copy from the conversation
    result = await ask(made, "Thanks!")
    assert (result["answer"], result["sources"]) == ("You are welcome.", [])
    assert result["grounding"]["state"] == "unchecked"
    assert (made.searches, made.client.requests) == ([], [])
    trusted = setup(tmp_path / "mark", "Hello", " there!", mode="mark")
    assert (await ask(trusted, "Hi!"))["answer"] == "Hello there!"
    assert trusted.searches == []


async def test_who_asks_what_answers_is_told_so_without_asking_a_small_model(tmp_path):
    made = setup(tmp_path, "I am I am I am")
    result = await ask(made, "Hallo, wer bist du?")
    assert result["answer"] == TRANSLATIONS["de"].about
    assert (result["sources"], result["grounding"]["state"]) == ([], "unchecked")
    assert (made.searches, made.client.requests) == ([], [])
    assert (await ask(setup(tmp_path / "mark", "A model.", mode="mark"), "Who are you?"))["answer"] == "A model."


async def test_what_is_not_found_is_said_in_the_language_of_the_question(tmp_path):
    german = TRANSLATIONS["de"]
    result = await ask(setup(tmp_path, ""), "Welcher Algorithmus sortiert ganze Zahlen am schnellsten?")
    assert result["answer"] == f"{german.not_found} {german.nearest}"


async def test_of_several_documents_an_overview_asks_which_is_meant(tmp_path):
    made = setup(tmp_path, "")
    assert (await ask(made, "Summarize this document"))["answer"] == f'"{SENTENCE}" [1]'
    made.found.append(passage("Quicksort sorts whole numbers.", title="Sorting"))
    result = await ask(made, "Fasse dieses Dokument bitte zusammen", session_id="another")
    assert (result["answer"], result["grounding"]["state"]) == (TRANSLATIONS["de"].which, "not_found")


async def test_with_retrieval_off_the_model_speaks_for_itself(tmp_path):
    made = setup(tmp_path, "Quicksort.")
    result = await ask(made, "What sorts fastest?", retrieval=False)
    assert (result["answer"], result["grounding"]["state"]) == ("Quicksort.", "unchecked")


async def test_a_passage_keeps_its_number_over_the_conversation(tmp_path):
    made = setup(tmp_path, "")
    await ask(made)
    made.found = [passage("Sick leave is 4 hours per pay period.", title="Sick"), *made.found]
    result = await ask(made, "How many hours of sick leave per pay period?")
    assert [source["n"] for source in result["sources"]] == [2, 1]
    assert '"Sick leave is 4 hours per pay period." [2]' in result["answer"]


async def test_a_follow_up_is_ranked_with_the_question_before_it(tmp_path):
    made = setup(tmp_path, "")
    await ask(made, "How many hours of leave do interns earn per pay period?")
    result = await ask(made, "And employees?")
    assert result["answer"].startswith(f'"{SENTENCE}" [1]')


# ── mark ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_sentences_stream_at_once_and_are_marked_by_what_supports_them(tmp_path):
    pieces = ("Employees earn 6 hours of leave per pay period [7]. ", "They ", "earn 9 on Mars.")
    made = setup(tmp_path, *pieces, mode="mark")
    chunks = [chunk["answer"] async for chunk in made.chain.astream({"input": QUESTION}, config()) if "answer" in chunk]
    assert "".join(chunks) == "Employees earn 6 hours of leave per pay period. [1] They earn 9 on Mars. [?]"
    assert chunks[0] == "Employees earn 6 hours of leave per pay period."
    supported = [(item["supported"], item["reason"]) for item in made.turns()[0].grounding["sentences"]]
    assert supported == [(True, None), (False, "numbers")]


async def test_code_keeps_its_indexes_and_is_not_marked(tmp_path):
    code = "```\nx[1] = leave[2]\n\nprint(x[1])\n```\n\n"
    pieces = [*code.split(" "), "Set `x[1]` and [3] wait [?]."]
    made = setup(tmp_path, *(f"{piece} " for piece in pieces), mode="mark")
    answer = (await ask(made))["answer"]
    assert answer.split() == [*code.split(), *["Set", "`x[1]`", "and", "wait.", "[?]"]]


async def test_an_answer_that_goes_in_circles_ends_where_it_repeats_itself(tmp_path):
    made = setup(tmp_path, "Interns earn no leave.", *[" Leave is asked.", " Interns earn no leave."] * 20, mode="mark")
    assert (await ask(made))["answer"] == "Interns earn no leave. [1] Leave is asked. [1]"
    assert made.client.produced < 10


async def test_in_mark_mode_the_model_answers_also_what_is_not_found(tmp_path):
    made = setup(tmp_path, "Quicksort is fastest.", mode="mark")
    result = await ask(made, "Which algorithm sorts integers?")
    assert (result["answer"], result["grounding"]["state"]) == ("Quicksort is fastest. [?]", "not_found")


async def test_passages_without_room_are_reported(tmp_path):
    made = setup(
        tmp_path, "Yes.", mode="mark", texts=(LEAVE, LEAVE.replace("6", "7")), passages=PassageRule(max_tokens=25)
    )
    (left_out,) = (await ask(made))["grounding"]["left_out"]
    assert (left_out["title"], left_out["num_tokens"]) == ("Rules", 22)


# ── every mode ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_empty_answer_of_the_model_is_said_to_be_one(tmp_path):
    assert (await ask(setup(tmp_path, "", mode="mark")))["answer"] == ENGLISH.no_answer
    assert (await Setup(tmp_path / "off", ScriptedEngineClient([""])).chain.ainvoke({"input": "q"}, config()))[
        "answer"
    ] == ENGLISH.no_answer


async def test_a_stopped_answer_is_not_shown_to_the_model_as_an_example(tmp_path):
    made = Setup(tmp_path, ScriptedEngineClient(["one", " two"], delay_s=0.05))
    task = asyncio.create_task(made.chain.ainvoke({"input": "first"}, config()))
    await asyncio.sleep(0.15)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await made.chain.drain()
    assert made.turns()[0].interrupted
    await made.chain.ainvoke({"input": "second"}, config())
    assert [message["role"] for message in made.client.requests[-1]["messages"]] == ["system", "user"]


# ── a model that steps in ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("weak", "mode"), [(True, "strict"), (False, "mark")])
async def test_small_model_that_steps_in_for_a_trusted_one_is_held_to_the_sources(tmp_path, weak, mode):
    made = setup(tmp_path, "Employees earn 8 hours ", "of leave per pay period.", mode="mark")
    asked = []
    made.chain._answerer = replace(made.chain._answerer, is_weak=lambda name: bool(asked.append(name)) or weak)
    result = await ask(made)
    assert asked == ["scripted"]
    assert result["grounding"]["mode"] == mode
    quoted, marked = f'"{SENTENCE}" [1]', "Employees earn 8 hours of leave per pay period. [?]"
    assert result["answer"] == (quoted if weak else marked)
    unrelated = await ask(made, "Which planet is the largest?")
    assert unrelated["grounding"]["state"] == "not_found"
    await until(lambda: made.client.open == 0)
