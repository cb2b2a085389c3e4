"""Which sentence answers a question, whether any does, and what is quoted of it."""

import numpy as np
import pytest

from retrieval.evidence import quotes, rank_sentences, trimmed
from retrieval.question_kind import QuestionKind, candidates, question_kind, stands_alone, wording_shares
from retrieval.records import Passage
from tests.retrieval.word_embedder import WordEmbedder

TEXT = (
    "The museum stands on the river. It was opened in 1887 by Ada Berg. "
    "Tickets cost 12 dollars. You need two things:\n- a passport\n- a photo of yourself\n\nOpening hours vary."
)


def weights(terms):
    return dict.fromkeys(terms, 1.0)


def passage(text=TEXT, title="Museum", score=1.0):
    return Passage("d", "c", title, "m.md", None, None, text, score, "default")


def rank(*questions, passages=None, embed=None):
    passages = [passage()] if passages is None else passages
    return rank_sentences(questions, passages, weights, embed or WordEmbedder().embed_passages)


def no_help(texts):
    return np.zeros((len(texts), 1), dtype=np.float32)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("When was the museum opened?", "It was opened in 1887 by Ada Berg."),
        ("How much do tickets cost?", "Tickets cost 12 dollars."),
        ("Where does the museum stand?", "The museum stands on the river."),
    ],
)
def test_the_sentence_that_answers_comes_first(question, expected):
    ranking = rank(question)
    assert ranking.ranked[0].text == expected
    assert ranking.is_answerable


def test_a_question_about_something_else_is_not_answerable():
    assert not rank("Which algorithm sorts integers fastest?").is_answerable
    assert not rank("Is it?").is_answerable
    assert not rank("When was the museum opened?", passages=[]).is_answerable


def test_the_question_before_does_not_answer_for_one_that_stands_alone():
    before, question = "How much do tickets cost?", "Which algorithm sorts integers fastest?"
    assert rank(before).is_answerable
    assert not rank(question, f"{before} {question}").is_answerable


def test_a_follow_up_is_understood_with_the_question_before_it():
    alone, together = rank("And how much?"), rank("And how much?", "What do tickets cost? And how much?")
    assert not alone.is_answerable
    assert together.is_answerable
    assert together.ranked[0].text == "Tickets cost 12 dollars."


@pytest.mark.parametrize("addition", ["And for astronauts?", "and in Berlin?", "und für Praktikanten?", "Et à Lyon ?"])
def test_what_a_follow_up_adds_must_stand_in_the_passages(addition):
    before = "How much do tickets cost?"
    assert not rank(addition, f"{before} {addition}").is_answerable


@pytest.mark.parametrize(
    "request_", ["Why?", "go on", "Tell me more", "Can you explain that?", "und warum?", "ok, how long?"]
)
def test_a_request_to_go_on_is_not_searched_for_by_its_own_words(request_):
    passages = [
        passage("I want to tell you why. Let me explain more of that, how long it was. Tickets cost 12 dollars.")
    ]
    ranking = rank(request_, f"How much do tickets cost? {request_}", passages=passages, embed=no_help)
    assert ranking.ranked[0].text == "Tickets cost 12 dollars."
    assert ranking.question == request_


def test_an_embedder_that_finds_everything_alike_makes_nothing_answerable():
    def crowded(texts):  # cosines of 0.7 and more between any two, as the E5 family gives them
        vectors = 0.4 * WordEmbedder().embed_passages(texts) + np.full((len(texts), 64), 0.1, dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    assert not rank("Which algorithm sorts integers fastest?", embed=crowded).is_answerable
    assert rank("When was the museum opened?", embed=crowded).is_answerable


def test_headings_and_table_rules_are_not_quoted():
    ranking = rank("What do tickets cost?", passages=[passage("# Tickets cost\n\n|---|\n\nTickets cost 12 dollars.")])
    assert [evidence.text for evidence in ranking.ranked] == ["Tickets cost 12 dollars."]


def test_an_introduction_is_quoted_with_its_list():
    best = quotes(rank("Which two things do you need?"), [passage()])[0]
    assert best.text == "You need two things:\n- a passport\n- a photo of yourself"


def test_a_second_sentence_is_quoted_only_where_it_is_nearly_as_good():
    both = passage("Tickets cost 12 dollars. Season tickets cost 40 dollars. Dogs stay outside.")
    ranking = rank("What do tickets cost?", passages=[both], embed=no_help)
    assert [quote.text for quote in quotes(ranking, [both])] == [
        "Tickets cost 12 dollars.",
        "Season tickets cost 40 dollars.",
    ]
    assert [quote.text for quote in quotes(rank("Do dogs stay outside?", passages=[both]), [both])] == [
        "Dogs stay outside."
    ]


@pytest.mark.parametrize(
    "limit",
    ["However, children pay nothing.", "This does not apply to children.", "Children, however, pay nothing.",
     "Ausgenommen sind Kinder.", "Sauf pour les enfants."],
)  # fmt: skip
def test_what_limits_a_sentence_is_quoted_with_it_rather_than_the_next_best(limit):
    text = passage(f"Tickets cost 12 dollars. {limit} Season tickets cost 40 dollars.")
    ranking = rank("What do tickets cost?", passages=[text], embed=no_help)
    assert [quote.text for quote in quotes(ranking, [text])] == ["Tickets cost 12 dollars.", limit]


def test_what_limits_another_sentence_is_not_quoted():
    text = passage(
        "Tickets cost 12 dollars. Dogs stay outside. However, guide dogs come in.\n\n# Rest\n\nBut not here."
    )
    ranking = rank("What do tickets cost?", passages=[text], embed=no_help)
    assert [quote.text for quote in quotes(ranking, [text])] == ["Tickets cost 12 dollars."]
    ranking = rank("Where do guide dogs come?", passages=[text], embed=no_help)
    assert [quote.text for quote in quotes(ranking, [text])] == ["However, guide dogs come in."]


def test_a_limit_that_cannot_be_read_alone_brings_the_sentence_before_it():
    text = passage("Tickets cost 12 dollars. This does not apply to children under six. Dogs stay outside.")
    ranking = rank("Does this apply to children under six?", passages=[text], embed=no_help)
    assert [quote.text for quote in quotes(ranking, [text])] == [
        "Tickets cost 12 dollars.",
        "This does not apply to children under six.",
    ]


def test_a_long_sentence_keeps_the_clause_that_limits_it():
    sentence = (
        "After a winter in which nothing at all was done about the roof, the museum was opened in 1887, except for the "
        "east wing, to the joy of the whole town."
    )
    assert trimmed(sentence, "When was the museum opened?", QuestionKind.TIME) == (
        "... the museum was opened in 1887, except for the east wing ..."
    )


@pytest.mark.parametrize(
    "sentence",
    [
        "If the weather was bad in the week before, which nobody knows, the museum opens on 3 May, and all are glad.",
        "According to its director, whom nobody has seen for years, the museum opens on 3 May, and all are glad.",
        "As a rule, and whatever its door says, the museum opens on 3 May, unless a storm is on its way, at noon.",
        "After a winter of work on its roof, the museum opens on 3 May, its director said, and everybody is glad.",
    ],
)  # fmt: skip
def test_a_long_sentence_keeps_its_condition_and_who_says_it(sentence):
    kept = trimmed(sentence, "When does the museum open?", QuestionKind.TIME)
    assert "the museum opens on 3 May" in kept
    assert any(
        part in kept for part in ("If the weather", "According to its director", "unless a storm", "director said")
    )


def test_small_words_of_another_language_are_not_missed_in_the_passages():
    text = passage("Der Resturlaub verfällt am 31. März. Der Antrag wird gestellt.", title="Urlaub")
    before, question = "Wie viele Tage Urlaub habe ich?", "Wann verfällt er?"
    ranking = rank(question, f"{before} {question}", passages=[text])
    assert ranking.is_answerable
    assert ranking.ranked[0].text == "Der Resturlaub verfällt am 31. März."
    assert not rank("Wann kommt der Bus?", passages=[text], embed=no_help).is_answerable


def test_a_question_in_another_language_than_the_passages_is_told_by_meaning_alone():
    def by_meaning(texts):  # as an embedder of many languages would see it
        about_cost = [("dollars" in text or "billets" in text) for text in texts]
        return np.array([[float(about), float(not about)] for about in about_cost], dtype=np.float32)

    texts = passage("The museum stands on the river and is open to all. Tickets for the museum cost 12 dollars.")
    ranking = rank("Combien coûtent les billets ?", passages=[texts], embed=by_meaning)
    assert ranking.is_answerable
    assert ranking.ranked[0].text == "Tickets for the museum cost 12 dollars."
    assert not rank("Où est le chat de ma tante ?", passages=[texts], embed=WordEmbedder().embed_passages).is_answerable


def test_between_languages_a_lower_cosine_is_an_answer():
    def at(cosine):
        def embed(texts):
            return np.array(
                [[1, 0, 0] if "billets" in text else [cosine, (1 - cosine**2) ** 0.5, 0] if "dollars" in text
                 else [0, 0, 1] for text in texts],
                dtype=np.float32,
            )  # fmt: skip

        return embed

    texts = passage("The museum stands on the river and is open to all. Tickets for the museum cost 12 dollars.")
    question = "Combien coûtent les billets ?"
    assert rank(question, passages=[texts], embed=at(0.36)).is_answerable
    assert not rank(question, passages=[texts], embed=at(0.34)).is_answerable
    code = passage(
        "The museum stands on the river and is open to all.\n\n```python\nshop.dollars(answer).launch()\n```"
    )
    assert not rank(question, passages=[code], embed=at(0.36)).is_answerable


def test_the_hours_of_other_days_do_not_answer():
    texts = passage("On Fridays the canteen closes at 13:30. Lunch in the canteen is served until 14:00.")
    assert rank("When does the canteen close on Mondays?", passages=[texts]).ranked[0].text.startswith("Lunch")
    assert rank("When does the canteen close on Fridays?", passages=[texts]).ranked[0].text.startswith("On Fridays")


def test_what_is_said_of_the_day_goes_before_what_is_said_of_many():
    texts = passage("The library is open from Tuesday to Saturday. On Saturdays it closes at 14:00.")
    best = rank("When does the library close on Saturdays?", passages=[texts]).ranked[0]
    assert best.text == "On Saturdays it closes at 14:00."


def test_the_hours_of_other_days_are_not_quoted_beside_the_answer():
    texts = passage(
        "The pool closes at 21:00. On Fridays the pool closes at 13:30. On Mondays the pool closes at 20:00."
    )
    asked = "When does the pool close on Mondays?"
    quoted = [quote.text for quote in quotes(rank(asked, passages=[texts]), [texts])]
    assert quoted[0] == "On Mondays the pool closes at 20:00."
    assert "On Fridays the pool closes at 13:30." not in quoted


def test_a_long_sentence_loses_clauses_that_the_question_does_not_touch():
    sentence = (
        "After a winter in which nothing at all was done about the roof, and against the advice of all, the museum "
        "was opened in 1887, to the joy of the whole town, which had waited, as people said."
    )
    question = "What was opened?"
    assert trimmed(sentence, question, QuestionKind.OTHER) == (
        "... and against the advice of all, the museum was opened in 1887, to the joy of the whole town ..."
    )
    assert trimmed(sentence, "When was it opened?", QuestionKind.TIME) == "... the museum was opened in 1887 ..."
    assert trimmed(sentence, "Whom did nobody ask?", QuestionKind.NAME) == sentence
    fees = "From the first of January on the annual fee is 180 euros for adults, 95 for students and 60 for juniors."
    assert trimmed(fees, "What is the fee for a sixteen-year-old?", QuestionKind.NUMBER) == fees
    assert trimmed("Short, it stays.", question, QuestionKind.OTHER) == "Short, it stays."


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("How many days?", "number"), ("What year was it?", "time"), ("When?", "time"), ("Who is it?", "name"),
        ("In which city?", "name"), ("Wie viele Tage?", "number"), ("¿Cuándo?", "time"), ("谁写的？", "name"),
        ("有多少人？", "number"), ("What does a service cost?", "number"), ("Was kostet der Eintritt?", "number"),
        ("What is the annual fee?", "number"), ("What is a slot?", "other"), ("Am I paid when I quit?", "other"),
        ("And does it say how many there are?", "other"), ("When does it end?", "time"),
    ],
)  # fmt: skip
def test_question_words_tell_what_is_asked_for(question, kind):
    assert question_kind(question) == kind


def test_what_the_question_holds_is_no_answer_to_it():
    found = candidates(QuestionKind.NUMBER, "In 2015 there were 31 teams.", "How many teams were there in 2015?")
    assert [fact.key for fact in found] == ["31"]
    found = candidates(QuestionKind.NAME, "Yesterday the player Jared Allen met Kony Ealy.", "Who met Kony Ealy?")
    assert [fact.key for fact in found] == ["jared", "allen"]


def test_the_header_of_a_table_is_no_answer():
    table = "| block size | waste |\n|---|---|\n| 16 | 8 tokens |\n"
    texts = [evidence.text for evidence in rank("What is the block size?", passages=[passage(table)]).ranked]
    assert len(texts) == 1
    assert "16" in texts[0]


def test_a_row_is_quoted_as_it_reads():
    table = passage("| block size | waste |\n|---|---|\n| 16 | 8 tokens |\n| 64 | 32 tokens |\n")
    best = quotes(rank("What is the waste with block size 64?", passages=[table]), [table])[0]
    assert best.text == best.source == "block size: 64; waste: 32 tokens"


def test_numbers_in_words_and_in_figures_are_the_same():
    texts = "A term of 8 years is split up. A term of 5 years is not split up."
    assert rank("How is a term of eight years split up?", passages=[passage(texts)], embed=no_help).ranked[0].text == (
        "A term of 8 years is split up."
    )


def test_a_name_written_as_one_word_is_found_by_its_parts():
    texts = "The engine uses PagedAttention. The engine uses attention."
    assert rank("Does it use paged attention?", passages=[passage(texts)], embed=no_help).ranked[0].text == (
        "The engine uses PagedAttention."
    )


def test_a_sentence_that_stands_in_two_documents_is_quoted_once_and_the_next_one_too():
    both = [passage("Tickets cost 12 dollars."), passage("Tickets cost 12 dollars. Season tickets cost 40 dollars.")]
    found = quotes(rank("What do tickets cost?", passages=both, embed=no_help), both)
    assert [quote.text for quote in found] == ["Tickets cost 12 dollars.", "Season tickets cost 40 dollars."]


def test_passages_that_lack_a_name_of_the_question_are_weaker_evidence():
    known, unknown = (rank(f"What do tickets to {name} cost?", embed=no_help) for name in ("Museum", "Louvre"))
    lower = rank("What do tickets to louvre cost?", embed=no_help)
    assert known.strength > lower.strength > unknown.strength


@pytest.mark.parametrize(
    ("question", "alone"),
    [
        ("How does paged attention save memory?", True), ("What is TPOT?", True), ("And what is TPOT?", True),
        ("and for contractors?", False), ("When does it expire?", False), ("Why?", False),
        ("Does that also hold for direct messages?", False), ("Und wie lange dauert das?", False),
        ("Wie viele Urlaubstage haben Angestellte pro Jahr?", True), ("那实习生呢？", False),
    ],
)  # fmt: skip
def test_whether_a_question_can_be_understood_alone(question, alone):
    assert stands_alone(question) == alone


def test_wordings_count_by_what_they_can_say():
    before = "How much do tickets cost?"
    for question, shares in (
        ("Which algorithm sorts integers fastest?", [2 / 3, pytest.approx(1 / 3)]),
        ("And for children?", [0.5, 0.5]),
        ("那实习生呢？", [0.5, 0.5]),
    ):
        assert wording_shares([question, f"{before} {question}"]) == dict(
            zip([question, f"{before} {question}"], shares, strict=True)
        )
    assert wording_shares(["Why?", f"{before} Why?"]) == {f"{before} Why?": 1.0}
    assert wording_shares(["Why?"]) == wording_shares(["Why?", "Why?"]) == {"Why?": 1.0}
    with pytest.raises(ValueError, match="at least one form"):
        wording_shares([])


def test_a_question_that_stands_alone_is_answered_by_itself_more_than_with_the_one_before():
    texts = passage("The red tower has eighty steps and a clock. Blue river boats leave at noon from the pier.")
    ranking = rank("Do blue river boats leave?", "How many steps has the red tower? Do blue river boats leave?",
                   passages=[texts], embed=no_help)  # fmt: skip
    assert ranking.ranked[0].text == "Blue river boats leave at noon from the pier."


def quoted(question, text):
    passages = [passage(text)]
    ranking = rank(question, passages=passages)
    assert ranking.is_answerable
    return [quote.text for quote in quotes(ranking, passages)]


def test_a_question_is_no_answer_and_its_reply_is():
    text = "**Can I send cash?**\nNo.\n\n**How do I pay?**\nBy card or by invoice within fourteen days of the order."
    assert quoted("Can I send cash?", text) == ["Can I send cash?", "No."]
    assert quoted("How do I pay?", text) == ["By card or by invoice within fourteen days of the order."]
    assert quoted("Which questions are asked?", "We ask:\n\nWhich questions are asked?") == [
        "Which questions are asked?"
    ]


def test_an_item_is_quoted_with_what_its_list_is_of():
    text = (
        "The following items may not be sent:\n\n- lithium batteries\n- live animals\n\n"
        "These may be sent with a permit:\n\n1. knives\n2. medicine\n\nLast of all.\n\n- loose ends"
    )
    assert quoted("May lithium batteries be sent?", text) == ["The following items may not be sent: lithium batteries"]
    assert quoted("May knives be sent?", text)[0] == "These may be sent with a permit: knives"
    assert quoted("Which ends?", text) == ["loose ends"]


def test_titles_and_words_of_the_question_alone_are_no_answers():
    trip = (
        "Notes on the school trip, 14 January 2026\n\n1. Costs\nThe trip is 315 pounds.\n\n"
        "2. What to bring\nWalking boots are needed.\n\nAll the best\nInes"
    )
    assert quoted("What are the costs of the trip?", trip) == ["The trip is 315 pounds."]
    assert rank("What should we bring?", passages=[passage(trip)]).ranked[0].text == "Walking boots are needed."
    assert not rank("Is Ines on holiday?", passages=[passage(trip)], embed=no_help).is_answerable
    assert quoted("Which boots are needed?", "Walking boots are needed.") == ["Walking boots are needed."]
    soup = "Soup\n\n- 2 carrots\n- 1 leek"
    assert rank("How many carrots are in the soup?", passages=[passage(soup)]).ranked[0].text == "2 carrots"
    # A line alone that tells more than it is asked for is an answer where there is none better.
    assert quoted("What did the third quarter bring?", "Third quarter: 12 new clients\n\nOutlook") == [
        "Third quarter: 12 new clients"
    ]


def test_a_title_in_the_text_is_a_heading_of_what_stands_below():
    text = (
        "2 Cancellation\nTickets are taken back for 15 euros.\n\n"
        "3 Luggage\nEach passenger may bring two pieces. Fireworks are forbidden.\n\n4 Dogs\nThey stay below.\n\n"
        "Ropes\nand nets"
    )
    for question, answer in (
        ("What does cancellation cost?", "Tickets are taken back for 15 euros."),
        ("What is forbidden in luggage?", "Fireworks are forbidden."),
        ("Which luggage?", "Each passenger may bring two pieces."),
    ):
        assert rank(question, passages=[passage(text)]).ranked[0].text == answer
    assert rank("Are ropes there?", passages=[passage(text)]).ranked[0].text == "Ropes and nets"


def test_the_whole_of_a_short_list_is_quoted_where_all_are_asked_for():
    text = "Risks\n\nTop risks:\n- late tickets\n- a vendor who leaves\n- too few developers\n\nThe lead is Ada."
    whole = " ".join(quoted("What are the risks of a vendor?", text)[0].split())
    assert whole == "Top risks: late tickets - a vendor who leaves - too few developers"
    assert quoted("Is a vendor who leaves a risk?", text)[0] == "Top risks: a vendor who leaves"
    long = text.replace("late tickets", "tickets that are late " * 12)
    assert quoted("What are the risks of a vendor who leaves?", long)[0] == "Top risks: a vendor who leaves"


ROW = "Part number P-{}: Name Hex bolt {}; Stock 876; Bin C21; Warehouse north; Supplier Kessler; Unit price 49.86"


def test_what_is_named_by_an_identifier_is_told_and_its_row_whole():
    table = "\n\n".join(ROW.format(number, number) for number in (13500, 13501, 13502))
    assert quoted("Who supplies part P-13501?", table) == [ROW.format(13501, 13501)]
    assert not rank("Who supplies part P-99999?", passages=[passage(table)]).is_answerable
    assert not rank("What happened in the 1990s?", passages=[passage("The 1990s were.")], embed=no_help).is_answerable
