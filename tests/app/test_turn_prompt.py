"""How a turn reads to the model."""

from app.turn_prompt import QUESTION_LEAD, in_their_sections, write_excerpt_turn, write_turn
from retrieval.evidence import rank_sentences
from tests.app.scripted import passage
from tests.retrieval.word_embedder import WordEmbedder


def words(text: str) -> int:
    return len(text.split())


def write(question="What?", passages=(), **options):
    given = {"known": {}, "next_number": 1, "max_tokens": 100, "count_tokens": words, **options}
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


def test_what_had_no_room_is_reported_with_its_size():
    draft = write(passages=[passage("one two"), passage("three four five six")], max_tokens=6)
    assert [(left.text, size) for left, size in draft.left_out] == [("three four five six", 6)]
    assert [source["text"] for source in draft.sources] == ["one two"]


def excerpts(question, *texts, max_tokens=100, numbers=None):
    found = [passage(text) for text in texts]
    ranking = rank_sentences([question], found, lambda terms: dict.fromkeys(terms, 1.0), WordEmbedder().embed_passages)
    return write_excerpt_turn(
        question, found, ranking, numbers=numbers or {}, next_number=5, max_tokens=max_tokens, count_tokens=words
    )


def test_a_small_model_is_shown_the_best_sentences_and_readers_all_passages():
    texts = ("Paris is large. It rains there. The Louvre opened in 1793.", "Rome is old.")
    draft = excerpts("When was the Louvre opened?", *texts, numbers={texts[1]: 2})
    assert "The Louvre opened in 1793." in draft.prompt
    assert draft.prompt.endswith(f"{QUESTION_LEAD}When was the Louvre opened?")
    assert [(source["n"], source["text"]) for source in draft.sources] == [(5, texts[0]), (2, texts[1])]
    assert draft.placed == []


def test_without_evidence_the_prompt_is_the_question():
    assert excerpts("Who wrote Hamlet?", "Trains leave at noon.").prompt == "Who wrote Hamlet?"


def test_an_excerpt_without_room_is_reported():
    draft = excerpts("When was the Louvre opened?", "The Louvre opened in 1793.", max_tokens=3)
    assert [left.text for left, _ in draft.left_out] == ["The Louvre opened in 1793."]
    assert draft.prompt == "When was the Louvre opened?"


def test_braces_and_control_tokens_of_documents_are_plain_text():
    draft = write("{q}", [passage("{a} {{b}} <|im_end|> <script>")])
    assert draft.prompt == "Passages:\n\n[1] Guide\n{a} {{b}} <|im_end|> <script>\n\n" + QUESTION_LEAD + "{q}"


def widened(passage, max_tokens):
    """The section of every passage: numbered words around its own."""
    return f"{passage.text} " + " ".join(f"w{number}" for number in range(max_tokens - words(passage.text)))


def test_passages_share_the_room_that_they_leave_for_their_sections():
    small, other = passage("one two three", title="A"), passage("four five six", title="B")
    grown = in_their_sections([small, other], {}, 30, widened, words)
    # Each block has two words more than its text: number and title.
    assert [words(item.text) for item in grown] == [13, 13]
    assert sum(words(f"[1] A {item.text}") for item in grown) == 30
    assert grown[0].text.startswith("one two three w0")


def test_without_room_passages_stay_as_they_are():
    assert in_their_sections([passage("one two three")], {}, 5, widened, words) == [passage("one two three")]


def test_a_passage_in_the_section_of_a_better_one_is_left_to_it():
    best, inside = passage("one two three"), passage("w0 w1")
    assert [item.text for item in in_their_sections([best, inside], {}, 20, widened, words)] == [
        "one two three w0 w1 w2 w3 w4"
    ]


def test_a_passage_that_earlier_turns_show_in_its_section_is_that_text():
    shown = "zero one two three four"
    (grown,) = in_their_sections([passage("one two three")], {shown: 1}, 50, widened, words)
    assert grown.text == shown
