"""A process of its own that ingests, in forks of itself, which spares their imports: `python -m ...ingest_child`.

It reads lines of "STORE TAB FOLDER". A fork says "ready PID" and "done FAILURES"; after it comes "ended" or "killed".
"""

import os
import sys
from pathlib import Path

from retrieval import KnowledgeBase
from tests.retrieval.word_embedder import WordEmbedder


def ingest(store: Path, folder: Path) -> None:
    with KnowledgeBase.open(store, WordEmbedder()) as knowledge_base:
        print("ready", os.getpid(), flush=True)
        results = knowledge_base.ingest_paths([folder])
    print("done", sum(result.status == "failed" for result in results), flush=True)


def main() -> None:
    for line in sys.stdin:
        store, folder = line.rstrip("\n").split("\t")
        if (child := os.fork()) == 0:
            ingest(Path(store), Path(folder))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print("killed" if os.WIFSIGNALED(status) else "ended", flush=True)


if __name__ == "__main__":
    main()
