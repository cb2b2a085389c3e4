"""What is said around a question is left out of it, and nothing else."""

import pytest

from retrieval.evidence import rank_sentences
from retrieval.records import Passage
from retrieval.request_frames import without_frame
from tests.retrieval.word_embedder import WordEmbedder


@pytest.mark.parametrize(
    ("question", "plain"),
    [
        ("Can you please tell me when the pool opens?", "when the pool opens?"),
        ("Tell me about the eviction policy", "the eviction policy"),
        ("I would like to know who the chair is, please", "who the chair is"),
        ("Do you know if dogs are allowed?", "dogs are allowed?"),
        ("What do you know about Polaris?", "Polaris?"),
        ("Please explain TTFT", "TTFT"),
        ("Kannst du mir sagen, wann die Miete fällig ist?", "wann die Miete fällig ist?"),
        ("Pouvez-vous me dire qui est la directrice ?", "qui est la directrice ?"),
        ("¿Puedes decirme cuándo abre la piscina?", "cuándo abre la piscina?"),
        ("请问图书馆几点开门？", "图书馆几点开门？"),
    ],
)
def test_the_question_is_left(question, plain):
    assert without_frame(question) == plain


@pytest.mark.parametrize(
    "question",
    ["Tell me more", "Can you describe it?", "Do we know who wrote it?", "Where can you tell me from?", "Why?", "",
     "Who told Ada about the fire?", "Explain please", "When does the shop show us the film?"],
)  # fmt: skip
def test_what_asks_by_itself_stays(question):
    assert without_frame(question) == question


def test_a_framed_question_finds_what_the_plain_one_finds():
    text = "The pool opens at nine. Please tell the guard if you know of any danger."
    passages = [Passage("d", "d-1-0", "Pool", "p.md", None, None, text, 1.0, "default")]
    for asked in ("When does the pool open?", "Could you tell me when the pool opens, please?"):
        ranking = rank_sentences([asked], passages, lambda ts: dict.fromkeys(ts, 1.0), WordEmbedder().embed_passages)
        assert ranking.is_answerable
        assert ranking.ranked[0].text == "The pool opens at nine."
