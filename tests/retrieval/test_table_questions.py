"""A question about one row of a large table finds that row."""

import random

import numpy as np
import pytest

from retrieval import KnowledgeBase
from tests.retrieval.word_embedder import WordEmbedder

NUM_ROWS = 3500
CITIES = ("Oslo", "Lima", "Cairo", "Perth", "Turin", "Quito", "Dakar", "Hanoi")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeBase:
    """A store with a parts list of 3,500 rows."""
    folder = tmp_path_factory.mktemp("parts")
    numbers = random.Random(0)
    lines = ["Part number,Warehouse,Stock,Unit price"]
    lines += [
        f"PX-{10_000 + row},{CITIES[row % len(CITIES)]},{numbers.randrange(900)},{numbers.randrange(10**5) / 100}"
        for row in range(NUM_ROWS)
    ]
    (folder / "parts.csv").write_text("\n".join(lines))
    opened = KnowledgeBase.open(folder / "store", WordEmbedder(dimension=512))
    result = opened.ingest_file(folder / "parts.csv")
    assert (result.status, result.num_chunks) == ("added", NUM_ROWS)
    return opened


def test_a_row_of_3500_is_found_by_its_label_with_its_headers(parts: KnowledgeBase) -> None:
    for row in np.random.default_rng(1).integers(0, NUM_ROWS, 20):
        best = parts.search(f"What is the unit price of part PX-{10_000 + row}?", k=1)[0]
        assert best.heading == f"row {row + 2}"
        assert best.text.startswith(f"Part number PX-{10_000 + row}: Warehouse {CITIES[row % len(CITIES)]}; Stock ")
        assert "Unit price " in best.text


def test_the_table_is_one_document_with_one_delete(parts: KnowledgeBase) -> None:
    (document,) = parts.documents()
    assert parts.delete_document(document.document_id)
    assert parts.stats()["chunks"] == 0
    parts.close()
