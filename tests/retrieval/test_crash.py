"""kill -9 in the middle of an ingest: the store opens, answers, and holds every document whole, old or new."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from retrieval import KnowledgeBase
from tests.retrieval.word_embedder import WordEmbedder

REPOSITORY = Path(__file__).resolve().parents[2]
NUM_DOCUMENTS = 12
NUM_SECTIONS = 15
NUM_KILLS = 20


def write_documents(folder: Path, version: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(NUM_DOCUMENTS):
        sections = [
            f"## Section {section}\n\nDocument {number} section {section} of edition {version}."
            for section in range(NUM_SECTIONS)
        ]
        (folder / f"{number:02}.md").write_text("\n\n".join(sections))


class Ingests:
    """A process that ingests in forks of itself."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.retrieval.ingest_child"]
        self._process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def run(self, store: Path, folder: Path, kill_after: float | None = None) -> str:
        """Ingests `folder`, killed so many seconds after the store was opened; what it said last."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{store}\t{folder}\n")
        self._process.stdin.flush()
        ready, pid = self._line().split()
        assert ready == "ready"
        if kill_after is not None:
            time.sleep(kill_after)
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        said = ""
        while (line := self._line()) not in ("ended", "killed"):
            said = line
        return said

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def editions(store: Path) -> list[int]:
    """The edition of every document, after checking that each is whole and of one edition."""
    embedder = WordEmbedder()
    with KnowledgeBase.open(store, embedder) as opened:
        with opened.catalog.reading() as reader:
            assert reader._db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert reader._db.execute("PRAGMA foreign_key_check").fetchall() == []
        documents = opened.documents()
        assert len(documents) == NUM_DOCUMENTS
        found = []
        for number, document in enumerate(documents):
            passages = opened.search(f"document {number}", k=100, document_ids=[document.document_id])
            texts = sorted(re.findall(r"Document (\d+) section (\d+) of edition (\d+)", p.text)[0] for p in passages)
            edition = texts[0][2]
            assert texts == sorted((str(number), str(section), edition) for section in range(NUM_SECTIONS))
            found.append(int(edition))
    assert embedder.calls == 0
    return found


def test_kill_9_at_random_points_of_an_ingest_loses_and_halves_nothing(tmp_path: Path) -> None:
    store, folder = tmp_path / "store", tmp_path / "documents"
    write_documents(folder, 0)
    started = time.monotonic()
    with KnowledgeBase.open(store, WordEmbedder()) as opened:
        opened.ingest_paths([folder])
    duration = time.monotonic() - started
    before = editions(store)
    assert before == [0] * NUM_DOCUMENTS
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # shown where the test fails
    points = random.Random(seed)
    interrupted = 0
    ingests = Ingests()
    for edition in range(1, NUM_KILLS + 1):
        write_documents(folder, edition)
        interrupted += ingests.run(store, folder, kill_after=points.uniform(0, duration)) == ""
        after = editions(store)
        # A document has the new edition or the one it had; there is no third, and no way back.
        assert all(new in (old, edition) for old, new in zip(before, after, strict=True)), (before, after)
        before = after
    assert interrupted >= 1
    assert ingests.run(store, folder) == "done 0"
    ingests.close()
    assert editions(store) == [NUM_KILLS] * NUM_DOCUMENTS


def test_a_large_document_that_was_broken_off_resumes_with_the_vectors_it_had(tmp_path: Path) -> None:
    class Power:
        """An embedder whose process loses its power after 300 texts."""

        def __init__(self, inner: WordEmbedder) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

        def embed_passages(self, texts: list[str]) -> object:
            if self.inner.calls >= 300:
                raise KeyboardInterrupt
            return self.inner.embed_passages(texts)

    path = tmp_path / "large.md"
    path.write_text("\n\n".join(f"## {index}\n\nParagraph number {index}." for index in range(600)))
    first = WordEmbedder()
    opened = KnowledgeBase.open(tmp_path / "store", Power(first))  # type: ignore[arg-type]
    try:
        opened.ingest_file(path)
    except KeyboardInterrupt:
        opened.catalog.close()
    assert 300 <= first.calls < 600
    second = WordEmbedder()
    with KnowledgeBase.open(tmp_path / "store", second) as again:
        assert again.documents() == []
        assert again.ingest_file(path).num_chunks == 600
    assert first.calls + second.calls == 600
