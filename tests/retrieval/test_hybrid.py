import numpy as np
import pytest

from retrieval.embeddings import Vectors
from retrieval.hybrid import QueryForm, Reach, hybrid_search, literal_share, vector_share, word_share
from retrieval.keyword_index import KeywordIndex, TextFacts
from retrieval.vector_index import VectorIndex

ENGLISH = Reach(frozenset({"en"}), max_tokens=254)
SPANISH_TEXTS = [
    "Las vacaciones anuales se piden con dos semanas de antelación, y el equipo las aprueba por escrito.",
    "El ordenador portátil se devuelve el último día de trabajo, junto con la tarjeta de entrada.",
    "La factura de la comida se entrega antes del final del mes, con el recibo y la firma del responsable.",
]
ENGLISH_TEXTS = [
    "Annual leave is asked for two weeks ahead, and the team approves it in writing before the flight is booked.",
    "The laptop is given back on the last day of work, together with the card that opens the doors.",
    "The bill of a meal is handed in before the end of the month, with the receipt and a signature.",
]


def facts(texts: list[str]) -> TextFacts:
    return TextFacts.of(texts)


def test_vectors_count_as_much_as_words_where_their_model_knows_the_language() -> None:
    assert vector_share("annual leave", {0: 0.9, 1: 0.3, 2: 0.1}, facts(ENGLISH_TEXTS), ENGLISH) == 1


def test_vectors_of_texts_in_another_language_do_not_count() -> None:
    found = {0: 0.9, 1: 0.3, 2: 0.1}
    assert vector_share("vacaciones", found, facts(SPANISH_TEXTS), ENGLISH) == 0
    assert vector_share("vacaciones", found, facts(SPANISH_TEXTS), Reach()) == 1
    assert vector_share("vacaciones", found, facts(SPANISH_TEXTS), Reach(frozenset({"en", "es"}))) == 1


def test_a_query_in_letters_that_the_model_cannot_read_counts_by_words_alone() -> None:
    assert vector_share("年假怎么申请？", {0: 0.9}, facts(ENGLISH_TEXTS), ENGLISH) == 0
    assert vector_share("年假怎么申请？", {0: 0.9}, facts(ENGLISH_TEXTS), Reach(frozenset({"zh"}))) == 0


def test_a_vector_counts_by_the_share_of_the_text_that_its_model_read() -> None:
    long = "The laptop is given back, for 1,024 € are due. " * 64  # of 14 pieces
    share = vector_share("laptop", {0: 0.9}, facts([long]), ENGLISH)
    assert share == pytest.approx(np.sqrt(254 / (64 * 14)))


def test_words_count_by_the_share_of_the_question_that_a_hit_covers() -> None:
    keywords = KeywordIndex.build(ENGLISH_TEXTS)
    found = {0: 2.0, 1: 1.0}
    assert word_share("annual leave", found, keywords) == 1
    # "holiday" is nowhere, so it weighs as much as "leave", which one text has.
    assert word_share("leave holiday", found, keywords) == pytest.approx(np.sqrt(1 / 2))
    assert word_share("holiday", {}, keywords) == 0


def test_in_a_mixed_corpus_the_rows_found_decide() -> None:
    mixed = facts([*ENGLISH_TEXTS, *SPANISH_TEXTS])
    assert vector_share("leave", {0: 0.9, 1: 0.8, 3: 0.1}, mixed, ENGLISH) == 1
    assert vector_share("leave", {3: 0.9, 4: 0.8, 0: 0.1}, mixed, ENGLISH) == 0


def test_keywords_lead_in_a_language_that_the_model_does_not_know() -> None:
    misleading: Vectors = np.eye(3, dtype=np.float32)  # the query's vector is that of the wrong text
    index = VectorIndex(np.arange(3), misleading, 3)
    form = QueryForm("vacaciones anuales", misleading[2])
    keywords = KeywordIndex.build(SPANISH_TEXTS)
    assert hybrid_search(index, keywords, [form], 3, reach=ENGLISH)[0][0] == 0
    # All the same every row can be found, as k hits are asked for.
    assert len(hybrid_search(index, keywords, [form], 3, reach=ENGLISH)) == 3


def test_the_least_keyword_hit_comes_before_texts_without_the_words_where_vectors_know_nothing() -> None:
    texts = [*SPANISH_TEXTS, "El aparcamiento cierra a medianoche y abre a las seis de la mañana."]
    vectors: Vectors = np.eye(4, dtype=np.float32)
    index = VectorIndex(np.arange(4), vectors, 4)
    keywords = KeywordIndex.build(texts)
    form = QueryForm("factura comida laptop ordenador", vectors[3])
    assert [row for row, _ in hybrid_search(index, keywords, [form], 4, reach=ENGLISH)] == [2, 1, 3, 0]


def test_vectors_answer_where_no_word_is_shared_even_in_another_language() -> None:
    vectors: Vectors = np.eye(3, dtype=np.float32)
    index = VectorIndex(np.arange(3), vectors, 3)
    found = hybrid_search(
        index, KeywordIndex.build(SPANISH_TEXTS), [QueryForm("holiday", vectors[1])], 2, reach=ENGLISH
    )
    assert found[0][0] == 1


def test_forms_weigh_as_they_are_given() -> None:
    vectors: Vectors = np.eye(3, dtype=np.float32)
    index, keywords = VectorIndex(np.arange(3), vectors, 3), KeywordIndex.build(ENGLISH_TEXTS)
    first, second = QueryForm("annual leave", vectors[0], 2.0), QueryForm("laptop", vectors[1], 1.0)
    assert [row for row, _ in hybrid_search(index, keywords, [first, second], 2)] == [0, 1]
    first, second = QueryForm("annual leave", vectors[0], 1.0), QueryForm("laptop", vectors[1], 2.0)
    assert [row for row, _ in hybrid_search(index, keywords, [first, second], 2)] == [1, 0]


def test_vectors_that_did_not_see_the_number_that_is_asked_for_do_not_count() -> None:
    rows = KeywordIndex.build(
        [f"Part number PX-{number}: Stock {number % 7}; Unit price 9.50" for number in range(100, 150)]
    )
    question = "What is the unit price of part PX-123?"
    by_words = dict(zip(*(part.tolist() for part in rows.search(question, 10)), strict=True))
    assert next(iter(by_words)) == 23
    assert literal_share(question, {7: 0.9, 8: 0.8}, by_words, rows) < 0.1
    assert literal_share(question, {7: 0.9, 23: 0.8}, by_words, rows) == 1
    assert literal_share("What is the unit price of a part?", {7: 0.9}, by_words, rows) == 1
    assert literal_share("Which part has number 999?", {7: 0.9}, by_words, rows) == 1  # words did not find it either


def test_the_row_that_has_the_number_comes_first_though_vectors_prefer_all_others() -> None:
    keywords = KeywordIndex.build([f"Part number PX-{number}: Unit price 9.50" for number in range(100, 400)])
    random = np.random.default_rng(0)
    vectors = random.standard_normal((300, 16), dtype=np.float32) * 0.05 + 1
    vectors[[23, 171]] = -1
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = VectorIndex(np.arange(300), vectors, 16)
    for row in (23, 171):
        form = QueryForm(f"What is the unit price of PX-{100 + row}?", np.full(16, 0.25, dtype=np.float32))
        assert hybrid_search(index, keywords, [form], 3)[0][0] == row
