"""How a turn reads to the model."""

from app.turn_prompt import QUESTION_LEAD, write_turn
from tests.app.scripted import passage


def words(text: str) -> int:
    return len(text.split())


def write(question="What?", passages=(), **options):
    given = {"known": {}, "next_number": 1, "max_tokens": 100, "min_score": 0.0, "count_tokens": words, **options}
    return write_turn(question, passages, **given)


def test_passages_stand_first_numbered_the_best_beside_the_question():
    draft = write(
        "What is TTFT?", [passage("Time to first token.", heading="TTFT", page=3), passage("Other text.", title="B")]
    )
    assert draft.prompt == (
        "Passages:\n\n[2] B\nOther text.\n\n[1] Guide > TTFT, page 3\nTime to first token.\n\n"
        f"{QUESTION_LEAD}What is TTFT?"
    )
    assert draft.placed == [1, 2]


def test_without_passages_the_turn_is_the_question():
    assert write("Hello {there}").prompt == "Hello {there}"


def test_sources_tell_what_clients_show():
    (source,) = write(passages=[passage("Text.", heading="H", page=2)]).sources
    assert source == {
        "n": 1,
        "document_id": "doc-Guide",
        "title": "Guide",
        "page": 2,
        "heading": "H",
        "text": "Text.",
        "score": 0.9,
    }


def test_a_passage_in_sight_is_pointed_to_and_not_repeated():
    draft = write(passages=[passage("Known."), passage("New.")], known={"Known.": 2}, next_number=5)
    assert draft.prompt == f"Passages:\n\n[5] Guide\nNew.\n\nSee also [2] above.\n\n{QUESTION_LEAD}What?"
    assert [source["n"] for source in draft.sources] == [2, 5]
    assert draft.placed == [5]


def test_passages_that_do_not_fit_the_budget_are_left_out():
    long = "w " * 50
    draft = write(passages=[passage("a b c d"), passage(long), passage("e f g")], max_tokens=12)
    assert [source["text"] for source in draft.sources] == ["a b c d", "e f g"]


def test_the_first_passage_is_cut_rather_than_left_out():
    draft = write(passages=[passage("one two three four five six")], max_tokens=5)
    assert draft.prompt == f"Passages:\n\n[1] Guide\none two three\n\n{QUESTION_LEAD}What?"
    assert draft.sources[0]["text"] == "one two three four five six"


def test_passages_below_the_score_are_left_out():
    assert write(passages=[passage("Text.")], min_score=0.95).sources == []


def test_braces_and_control_tokens_of_documents_are_plain_text():
    draft = write("{q}", [passage("{a} {{b}} <|im_end|> <script>")])
    assert draft.prompt == "Passages:\n\n[1] Guide\n{a} {{b}} <|im_end|> <script>\n\n" + QUESTION_LEAD + "{q}"
