"""One search over both indexes: nearest vectors and best keyword matches of every form of the query, fused."""

from collections.abc import Sequence
from dataclasses import dataclass

from retrieval.embeddings import Vectors
from retrieval.fusion import Scores, best, fuse
from retrieval.keyword_index import KeywordIndex
from retrieval.vector_index import AnyVectorIndex, Mask

# How far down each list is read before fusing. Below, scaled scores are near 0 and change no order at the top.
DEPTH = 100


@dataclass(frozen=True)
class QueryForm:
    """One wording of what is asked, with its vector [dimension]."""

    text: str
    vector: Vectors


def hybrid_search(
    vectors: AnyVectorIndex, keywords: KeywordIndex, forms: Sequence[QueryForm], k: int, mask: Mask | None = None
) -> list[tuple[int, float]]:
    """The `k` best rows with fused scores in 0..1, best first. Row i means the same chunk in both indexes.

    Both legs weigh the same, and so do all forms. `mask` [rows] says which rows may be found; as the vector leg ranks
    every one of them, k hits come whenever k rows are allowed.
    """
    depth = max(k, DEPTH)
    lists: list[Scores] = []
    for form in forms:
        for rows, scores in (vectors.search(form.vector, depth, mask), keywords.search(form.text, depth, mask)):
            lists.append(dict(zip(rows.tolist(), scores.tolist(), strict=True)))
    return best(fuse(lists), k)
