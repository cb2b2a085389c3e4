"""What can be wrong with files, names and the store: a reason for each file, neighbours unharmed, nothing lost."""

import socket
import sqlite3
from pathlib import Path

import pytest

from retrieval import KnowledgeBase
from retrieval.catalog import FILE_NAME
from retrieval.loaders import html
from tests.retrieval.office_files import (
    archive,
    book_file,
    slides_file,
    text_document_file,
    with_member,
    word_file,
    workbook_file,
)
from tests.retrieval.word_embedder import WordEmbedder

ODD_NAMES = (
    "年度报告.md",
    "تقرير.md",
    "🦙🔥.md",
    "n" * 252 + ".md",
    "two\nlines.md",
    " leading and trailing .md",
    "quote'\"`$(touch pwned);.md",
    "%s {x} <b> [a](b).md",
    "-rf.md",
)


def test_files_of_any_name_are_taken_in_under_it(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for number, name in enumerate(ODD_NAMES):
        (folder / name).write_text(f"Text number{number}.")
    results = knowledge_base.ingest_paths([folder], relative_to=folder)
    assert {result.status for result in results} == {"added"}
    assert {document.source for document in knowledge_base.documents()} == set(ODD_NAMES)
    for number, name in enumerate(ODD_NAMES):
        assert knowledge_base.search(f"number{number}", k=1)[0].source == name
    assert not list(tmp_path.rglob("pwned"))


def test_every_format_goes_in_beside_broken_copies_of_itself(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    whole = {
        "a.docx": word_file(),
        "b.pptx": slides_file(),
        "c.xlsx": workbook_file(),
        "d.odt": text_document_file(),
        "e.epub": book_file(),
    }
    for name, data in whole.items():
        (folder / name).write_bytes(data)
        (folder / f"broken-{name}").write_bytes(data[: len(data) // 2])
        (folder / f"other-{name}").write_bytes(archive({"x.txt": "x"}))
    (folder / "old.doc").write_bytes(b"\xd0\xcf\x11\xe0")
    results = {Path(result.path).name: result for result in knowledge_base.ingest_paths([folder])}
    assert {name for name, result in results.items() if result.status == "added"} == set(whole)
    failed = {name: result.reason or "" for name, result in results.items() if result.status == "failed"}
    assert len(failed) == 2 * len(whole) + 1
    assert failed.pop("old.doc") == ".doc files are not supported: save it as .docx and add that"
    assert all(reason.startswith("the file is damaged, or is not ") for reason in failed.values()), failed
    assert knowledge_base.search("Rate Lyon", k=1)[0].heading == "Flights > Per diem"
    assert knowledge_base.search("North 412", k=1)[0].page == 2
    assert knowledge_base.search("Turin", k=1)[0].heading == "Plants > Output by plant > row 6"


def test_what_a_file_points_to_is_neither_fetched_nor_read(
    knowledge_base: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    secret = tmp_path / "secret.txt"
    secret.write_text("the password is swordfish")
    folder = tmp_path / "files"
    folder.mkdir()
    template = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/attachedTemplate"
    relations = (
        '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r1" '
        f'Type="{template}" Target="http://example.org/evil.dotm" TargetMode="External"/></Relationships>'
    )
    files: dict[str, str | bytes] = {
        "dtd.xml": '<!DOCTYPE a SYSTEM "http://example.org/a.dtd"><a><b>kept one</b></a>',
        "entity.xml": f'<!DOCTYPE a [<!ENTITY x SYSTEM "{secret.as_uri()}">]><a><b>&x;</b></a>',
        "include.xml": '<a xmlns:xi="http://www.w3.org/2001/XInclude"><b>kept two</b>'
        f'<xi:include href="{secret.as_uri()}" parse="text"/></a>',
        "page.html": '<img src="http://example.org/x.png"><script src="http://example.org/x.js"></script>'
        f'<iframe src="{secret.as_uri()}"></iframe><p>kept three',
        "notes.md": f"![x](http://example.org/x.png)\n\n[kept four]({secret.as_uri()})",
        "letter.docx": with_member(word_file(), "word/_rels/settings.xml.rels", relations),
        "feed.csv": 'name,sum\nkept five,"=WEBSERVICE(""http://example.org"")"\n',
        "mail.eml": "From: a@example.org\nSubject: kept six\nContent-Type: message/external-body; "
        'access-type=URL; URL="http://example.org/x"\n\n',
    }
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    results = {Path(result.path).name: result for result in knowledge_base.ingest_paths([folder])}
    assert {name for name, result in results.items() if result.status != "added"} == {"entity.xml"}
    assert (results["entity.xml"].reason or "").startswith("the file declares XML entities")
    assert not any("swordfish" in passage.text for passage in knowledge_base.search("password swordfish", k=100))


def test_a_page_of_50_mb_is_refused_with_the_limit(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    path = tmp_path / "huge.html"
    path.write_bytes(b"<p>word</p>" * (50 * 2**20 // 11))
    reason = knowledge_base.ingest_file(path).reason
    assert reason == f"the page is 50 MB; HTML is read up to 20 MB and {html.MAX_HTML_ELEMENTS:,} elements: split it"


def test_a_store_held_by_another_writer_is_a_reason_and_the_file_goes_in_later(
    knowledge_base: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.md").write_text("Some text.")
    monkeypatch.setattr(knowledge_base.catalog, "_write_wait_s", 0.05)
    knowledge_base.catalog._idle.clear()  # connections made before have the old patience
    other = sqlite3.connect(knowledge_base.folder / FILE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    result = knowledge_base.ingest_file(tmp_path / "a.md")
    assert result.status == "failed"
    assert (result.reason or "").startswith(f"another process has been writing to {knowledge_base.folder}")
    other.execute("ROLLBACK")
    other.close()
    assert knowledge_base.ingest_file(tmp_path / "a.md").status == "added"


def test_a_disk_that_fills_in_the_middle_keeps_what_was_in_and_the_rest_goes_in_later(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(6):
        sections = [f"## Part {part}\n\nFile {number} part {part}. {'text ' * 100}" for part in range(20)]
        (folder / f"{number}.md").write_text("\n\n".join(sections))
    with KnowledgeBase.open(tmp_path / "store", WordEmbedder()) as opened:
        assert opened.ingest_file(folder / "0.md").status == "added"
        with opened.catalog.writing() as writer:
            pages = writer._db.execute("PRAGMA page_count").fetchone()[0]
            writer._db.execute(f"PRAGMA max_page_count = {pages + 10}")
        results = opened.ingest_paths([folder])
        statuses = [result.status for result in results]
        assert statuses[0] == "unchanged"
        assert "failed" in statuses
        assert all((result.reason or "").startswith("no space left in") for result in results if result.reason)
        whole = statuses.count("added") + 1
        assert len(opened.search("part", k=1000)) == 20 * whole
    with KnowledgeBase.open(tmp_path / "store", WordEmbedder()) as opened:
        assert {result.status for result in opened.ingest_paths([folder])} <= {"added", "unchanged"}
        assert len(opened.search("part", k=1000)) == 120
