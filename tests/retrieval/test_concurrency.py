"""Searches and ingests at once: in threads of one process, and in two processes."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from retrieval import KnowledgeBase
from tests.retrieval.test_crash import NUM_DOCUMENTS, NUM_SECTIONS, Ingests, write_documents
from tests.retrieval.word_embedder import WordEmbedder


def test_searches_during_an_ingest_see_each_document_whole_and_of_one_edition(
    knowledge_base: KnowledgeBase, tmp_path: Path
) -> None:
    folder = tmp_path / "documents"
    write_documents(folder, 0)
    knowledge_base.ingest_paths([folder])
    document = knowledge_base.documents()[0]
    stop = threading.Event()
    seen: set[str] = set()

    def search() -> int:
        count = 0
        while not stop.is_set():
            passages = knowledge_base.search("document section", k=100, document_ids=[document.document_id])
            found = [re.findall(r"section (\d+) of edition (\d+)", passage.text)[0] for passage in passages]
            editions = {edition for _, edition in found}
            assert len(editions) == 1, editions
            assert len({section for section, _ in found}) == len(found) == NUM_SECTIONS
            seen.update(editions)
            count += 1
        return count

    with ThreadPoolExecutor(3) as pool:
        searches = [pool.submit(search) for _ in range(3)]
        try:
            for edition in range(1, 6):
                write_documents(folder, edition)
                assert {result.status for result in knowledge_base.ingest_paths([folder])} == {"updated"}
        finally:
            stop.set()
        assert all(future.result(timeout=60) > 0 for future in searches)
    assert len(seen) > 1
    assert knowledge_base.documents()[0].version == 6


def test_threads_ingest_the_same_and_different_files_at_once(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    paths = []
    for number in range(6):
        paths.append(tmp_path / f"{number}.md")
        paths[-1].write_text(f"Text of file {number}.")
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(knowledge_base.ingest_file, paths * 4))
    assert sorted(result.status for result in results) == ["added"] * 6 + ["unchanged"] * 18
    assert len(knowledge_base.documents()) == 6
    assert sorted(passage.text for passage in knowledge_base.search("text file", k=50)) == [
        f"Text of file {number}." for number in range(6)
    ]


def test_two_processes_ingest_into_one_store_and_see_each_others_documents(tmp_path: Path) -> None:
    store, theirs, ours = tmp_path / "store", tmp_path / "theirs", tmp_path / "ours"
    write_documents(theirs, 7)
    write_documents(ours, 8)
    with KnowledgeBase.open(store, WordEmbedder()) as opened:
        with ThreadPoolExecutor(1) as pool:
            child = pool.submit(Ingests().run, store, theirs)
            results = opened.ingest_paths([ours])
            assert child.result(timeout=120) == "done 0"
        assert {result.status for result in results} == {"added"}
        assert len(opened.documents()) == 2 * NUM_DOCUMENTS
        opened.snapshots.refresh()  # a search looks for changes at most every few build times, and waits a while only
        found = opened.search("document section", k=10_000)
    assert len(found) == 2 * NUM_DOCUMENTS * NUM_SECTIONS
    assert {re.findall(r"edition (\d+)", passage.text)[0] for passage in found} == {"7", "8"}
