"""A process of its own that ingests: `python -m tests.retrieval.ingest_child STORE FOLDER`. Says "ready", "done"."""

import sys
from pathlib import Path

from retrieval import KnowledgeBase
from tests.retrieval.word_embedder import WordEmbedder


def main() -> None:
    store, folder = map(Path, sys.argv[1:])
    with KnowledgeBase.open(store, WordEmbedder()) as knowledge_base:
        print("ready", flush=True)
        results = knowledge_base.ingest_paths([folder])
    print("done", sum(result.status == "failed" for result in results), flush=True)


if __name__ == "__main__":
    main()
