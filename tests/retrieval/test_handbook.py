"""The sample handbook and its 60 answerable questions, with the real embedder: the bar that a release must clear."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retrieval import Embedder, KnowledgeBase

DATA = Path(__file__).resolve().parents[2] / "data"
QUESTIONS = [
    question
    for question in map(json.loads, (DATA / "eval" / "handbook.jsonl").read_text("utf-8").splitlines())
    if question["answerable"]
]


@pytest.fixture(scope="module")
def handbook(embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    folder = DATA / "handbook"
    with KnowledgeBase.open(tmp_path_factory.mktemp("handbook"), embedder) as knowledge_base:
        results = knowledge_base.ingest_paths([folder], collection="handbook", relative_to=folder)
        assert {result.status for result in results} == {"added"}
        assert len(results) == len(list(folder.glob("*.md")))
        yield knowledge_base


def normalised(text: str) -> str:
    return " ".join(text.translate(dict.fromkeys(map(ord, "*_`"))).casefold().split())


@pytest.fixture(scope="module")
def found(handbook: KnowledgeBase) -> list[tuple[dict[str, Any], bool, bool]]:
    """For each question: whether the right page is among the top four, and the expected fact in their texts."""
    outcomes = []
    for question in QUESTIONS:
        passages = handbook.search(question["question"], k=4)
        page = question["page"] in {passage.source for passage in passages}
        fact = normalised(question["fact"]) in normalised(" ".join(passage.text for passage in passages))
        outcomes.append((question, page, fact))
    return outcomes


def test_there_are_60_questions() -> None:
    assert len(QUESTIONS) == 60


def test_the_right_page_is_among_the_sources(found: list[tuple[dict[str, Any], bool, bool]]) -> None:
    missed = [question["question"] for question, page, _ in found if not page]
    print(f"right page for {60 - len(missed)} of 60")
    assert len(missed) <= 6, missed


def test_the_expected_fact_is_in_the_passages(found: list[tuple[dict[str, Any], bool, bool]]) -> None:
    missed = [question["question"] for question, _, fact in found if not fact]
    print(f"expected fact for {60 - len(missed)} of 60")
    assert len(missed) <= 3, missed


def test_what_does_ttft_measure(handbook: KnowledgeBase) -> None:
    best = handbook.search("What does TTFT measure?")[0]
    assert (best.source, best.heading) == ("ttft-and-tpot.md", "TTFT: time to first token")
    assert "until the first token of the answer arrives" in best.text
