"""Questions with what is found for them: reading the sets that `benchmarks.answers` measures, and searching them."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import Embedder
from retrieval.embeddings import Vectors
from retrieval.keyword_index import KeywordIndex
from retrieval.records import Passage


@dataclass(frozen=True)
class Question:
    """A question with what was found for it; `earlier` are the user's questions before it."""

    text: str
    answers: tuple[str, ...]
    passages: tuple[Passage, ...]
    earlier: tuple[str, ...] = ()

    @property
    def forms(self) -> list[str]:
        return [self.text, f"{self.earlier[-1]} {self.text}"] if self.earlier else [self.text]


@dataclass
class Answer:
    """What one way made of a question."""

    text: str
    sentences: list[dict[str, Any]] = field(default_factory=list)
    refused: bool = False
    first_words_s: float | None = None
    first_sentence_s: float | None = None  # when the model had its first sentence ready, shown or not


class CachedEmbedder:
    """An embedder that embeds no text twice: the same passages are looked at in several ways."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: dict[str, Vectors] = {}

    def __call__(self, texts: Sequence[str]) -> Vectors:
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        self._known.update(zip(new, self._embedder.embed_passages(new), strict=True))
        return np.stack([self._known[text] for text in texts])


class Corpus:
    """Documents with a BM25 index over them; a long one is cut into pieces of about 1,000 characters at blank lines."""

    def __init__(self, folder: Path) -> None:
        self.documents = [
            entry | {"text": piece}
            for entry in read_lines(folder / "corpus.jsonl")
            for piece in pieces_of(entry["text"])
        ]
        self.queries = read_lines(folder / "queries.jsonl")
        self.relevant = read_grades(folder / "qrels.tsv")
        self.index = KeywordIndex.build([f"{entry['title']}\n{entry['text']}" for entry in self.documents])
        self.ids = np.array([entry["id"] for entry in self.documents])
        self.titles = np.array([entry["title"] for entry in self.documents])

    def search(self, question: str, k: int, mask: Any = None) -> tuple[Passage, ...]:
        rows, scores = self.index.search(question, k, mask)
        return tuple(
            Passage(str(self.ids[row]), str(self.ids[row]), str(self.titles[row]), "", None, None,
                    self.documents[row]["text"], float(score / scores[0]), "")
            for row, score in zip(rows, scores, strict=True)
        )  # fmt: skip

    def article_of(self, query_id: str) -> str:
        return str(self.titles[self.ids == next(iter(self.relevant[query_id]))][0])


def stand_alone(folder: Path) -> list[dict[str, Any]]:
    """The questions of a set that can be understood alone: without a history, or rewritten by a person."""
    queries = read_lines(folder / "queries.jsonl")
    alone = [query | {"text": query.get("rewrite") or query["text"]} for query in queries]
    return [
        query
        for query in alone
        if (not query.get("history") or query.get("rewrite")) and query.get("answerable", True) in (True, "ANSWERABLE")
    ]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Objects of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def pieces_of(text: str, most: int = 1000) -> list[str]:
    """The text, or where it is longer than twice `most` characters, paragraphs joined up to that length."""
    if len(text) <= 2 * most:
        return [text]
    pieces = [""]
    for paragraph in re.split(r"\n\s*\n", text):
        if pieces[-1] and len(pieces[-1]) + len(paragraph) > most:
            pieces.append("")
        pieces[-1] += f"\n\n{paragraph}" if pieces[-1] else paragraph
    return pieces


def read_grades(path: Path) -> dict[str, set[str]]:
    """The relevant documents of each question."""
    relevant: dict[str, set[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        question, document, grade = line.split("\t")
        if float(grade) > 0:
            relevant.setdefault(question, set()).add(document)
    return relevant
