"""Faults that users have reported of other systems' document stores, each as what is right. In brackets: where."""

import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retrieval import KnowledgeBase
from retrieval.loaders import load
from tests.retrieval import office_files, pdf_files
from tests.retrieval.word_embedder import WordEmbedder


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_no_file_of_a_store_runs_code_when_it_is_read(tmp_path: Path) -> None:
    """[langchain-community#92]"""
    folder, exploded = tmp_path / "store", tmp_path / "exploded"
    with KnowledgeBase.open(folder, WordEmbedder()) as knowledge_base:
        knowledge_base.ingest_bytes(b"# Gears\n\nA derailleur moves the chain.\n", "bicycle.md", "bicycle.md")
    derived = [path for path in (folder / "index").rglob("*") if path.is_file()]
    assert derived
    for path in derived:
        path.write_bytes(pickle.dumps(Bomb(exploded)))
    with KnowledgeBase.open(folder, WordEmbedder()) as knowledge_base:
        assert [hit.title for hit in knowledge_base.search("derailleur chain", 1)] == ["Gears"]
    assert not exploded.exists()
    pickle.loads(pickle.dumps(Bomb(exploded)))  # as it would have been
    assert exploded.exists()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.docx", office_files.word_file),
        ("a.pptx", office_files.slides_file),
        ("a.xlsx", office_files.workbook_file),
        ("a.odt", office_files.text_document_file),
        ("a.epub", office_files.book_file),
        ("a.pdf", lambda: pdf_files.text_pdf(["A page of text."])),
        ("a.html", lambda: b"<html><img src='http://example.org/x.png'><p>A page of text.</p></html>"),
        ("a.xml", lambda: b"<?xml version='1.0'?><a><b>text of an element</b></a>"),
    ],
)
def test_every_format_is_read_without_the_network(
    name: str, make: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """[kotaemon#783]"""

    def refuse(*arguments: Any) -> Any:
        raise AssertionError(f"the network was asked: {arguments}")

    data = make()
    for function in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, function, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert load(name, data).blocks
