import hashlib
import os
from pathlib import Path

import pytest

from retrieval import IngestResult, KnowledgeBase
from retrieval.errors import InvalidArgumentError
from retrieval.ingest import display_name, find_files
from retrieval.loaders import ocr
from tests.retrieval.pdf_files import image_pdf, text_pdf
from tests.retrieval.word_embedder import WordEmbedder


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def embedded(knowledge_base: KnowledgeBase) -> int:
    assert isinstance(knowledge_base.embedder, WordEmbedder)
    return knowledge_base.embedder.calls


def test_a_file_is_added_then_unchanged_then_updated(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    path = write(tmp_path, "page.md", "# Page\n\nThe answer is forty-two.")
    added = knowledge_base.ingest_file(path)
    assert (added.status, added.num_chunks, added.num_pages, added.reason) == ("added", 1, 0, None)
    calls = embedded(knowledge_base)
    assert knowledge_base.ingest_file(path) == IngestResult(str(path), "unchanged", added.document_id, 1, 0, None)
    assert embedded(knowledge_base) == calls
    write(tmp_path, "page.md", "# Page\n\nThe answer is forty-three.\n\n## More\n\nText.")
    updated = knowledge_base.ingest_file(path)
    assert (updated.status, updated.document_id, updated.num_chunks) == ("updated", added.document_id, 2)
    assert knowledge_base.search("answer", k=9)[0].text == "The answer is forty-three."
    (info,) = knowledge_base.documents()
    assert info.version == 2
    assert info.content_hash == hashlib.sha256(path.read_bytes()).hexdigest()
    assert info.size_bytes == path.stat().st_size
    assert info.source == str(path)


def test_only_changed_chunks_are_embedded_again(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    sections = [f"## Section {index}\n\nText number {index}." for index in range(10)]
    path = write(tmp_path, "page.md", "\n\n".join(sections))
    knowledge_base.ingest_file(path)
    assert embedded(knowledge_base) == 10
    sections[3] = "## Section 3\n\nAnother text."
    write(tmp_path, "page.md", "\n\n".join(sections))
    knowledge_base.ingest_file(path)
    assert embedded(knowledge_base) == 11


def test_bad_files_are_reported_and_their_neighbours_go_in(
    knowledge_base: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ocr, "available", lambda: False)
    folder = tmp_path / "files"
    write(folder, "a-good.md", "# Good\n\nFirst neighbour.")
    write(folder, "b-empty.txt", b"")
    write(folder, "c-blank.md", b" \n \t\n")
    write(folder, "d-scan.pdf", image_pdf(1))
    write(folder, "e-secret.pdf", text_pdf(["x"], password="p"))
    write(folder, "f-broken.pdf", b"%PDF-1.4 nothing")
    write(folder, "g-binary.txt", bytes(range(256)) * 30)
    write(folder, "h-table.xlsx", b"PK")
    write(folder, "i-latin1.txt", "Le café — fermé.".encode("cp1252"))
    write(folder, "j-utf16.txt", "Zweiter Nachbar".encode("utf-16"))
    write(folder, "k-report.pdf", text_pdf(["Page one.", "Page two."]))
    seen: list[IngestResult] = []
    results = knowledge_base.ingest_paths([folder], progress=seen.append)
    assert seen == results
    reasons = [result.reason and result.reason.split(":")[0] for result in results]
    found = {Path(result.path).name: (result.status, reason) for result, reason in zip(results, reasons, strict=True)}
    assert found == {
        "a-good.md": ("added", None),
        "b-empty.txt": ("failed", "no text"),
        "c-blank.md": ("failed", "no text"),
        "d-scan.pdf": ("failed", "no text found on any page; needs OCR (the pages are pictures)"),
        "e-secret.pdf": ("failed", "the PDF is encrypted and opens with a password only"),
        "f-broken.pdf": ("failed", "the PDF is damaged, or this is not a PDF"),
        "g-binary.txt": ("failed", "this does not look like text (a binary file renamed?)"),
        "h-table.xlsx": ("failed", "the file is damaged, or is not an Excel workbook (.xlsx)"),
        "i-latin1.txt": ("added", None),
        "j-utf16.txt": ("added", None),
        "k-report.pdf": ("added", None),
    }
    assert [result.num_pages for result in results if result.path.endswith("k-report.pdf")] == [2]
    assert knowledge_base.search("café", k=1)[0].text == "Le café — fermé."
    assert knowledge_base.search("Nachbar", k=1)[0].text == "Zweiter Nachbar"
    assert knowledge_base.search("page two", k=1)[0].page == 2


def test_a_long_document_reports_how_far_it_is(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    path = write(tmp_path, "long.md", "\n\n".join(f"## Part {index}\n\nText {index}." for index in range(300)))
    steps: list[tuple[Path, int, int]] = []
    knowledge_base.ingest_paths([path], embedding=lambda *step: steps.append(step))
    assert steps == [(path, 128, 300), (path, 256, 300), (path, 300, 300)]


def test_a_bad_update_leaves_the_old_version_answering(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    path = write(tmp_path, "page.md", "The old text.")
    knowledge_base.ingest_file(path)
    write(tmp_path, "page.md", b"\x00\x01\x02" * 500)
    assert knowledge_base.ingest_file(path).status == "failed"
    assert [passage.text for passage in knowledge_base.search("text")] == ["The old text."]


def test_missing_files_folders_and_devices_have_reasons(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    assert knowledge_base.ingest_file(tmp_path / "none.md").reason == "cannot be read: no such file"
    assert knowledge_base.ingest_file(tmp_path).reason == "cannot be read: it is a folder"
    assert (
        knowledge_base.ingest_paths(["/dev/null", tmp_path / "none"])[0].reason == "cannot be read: not a regular file"
    )


def test_an_uploaded_name_is_shown_and_never_a_path(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    path = write(tmp_path, "upload-1", "Uploaded text.")
    result = knowledge_base.ingest_file(path, name="../../etc/evil.md")
    assert result.status == "added"
    (info,) = knowledge_base.documents()
    assert (info.source, info.title) == ("evil.md", "evil")
    assert not (tmp_path.parent / "etc").exists()
    assert (
        knowledge_base.ingest_file(path, name="..").reason == "'..' is not a file name: give one such as 'report.pdf'"
    )


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("report.pdf", "report.pdf"),
        ("../x.md", "x.md"),
        ("C:\\Users\\me\\x.md", "x.md"),
        ("/abs/olute.txt", "olute.txt"),
        ("new\nline\x00.md", "new line .md"),
        ("名前 🦙 اسم.md", "名前 🦙 اسم.md"),
        ("folder/", "folder"),
        ("n" * 400 + ".html", "n" * 250 + ".html"),
    ],
)
def test_display_names(given: str, shown: str) -> None:
    assert display_name(given) == shown


@pytest.mark.parametrize("given", ["", ".", "..", "/", "../..", " \n"])
def test_names_that_are_none_are_refused(given: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a file name"):
        display_name(given)


def test_the_same_name_in_two_collections_is_two_documents(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    one = write(tmp_path, "1/notes.md", "About apples.")
    two = write(tmp_path, "2/notes.md", "About pears.")
    knowledge_base.ingest_file(one, name="notes.md", collection="fruit")
    knowledge_base.ingest_file(two, name="notes.md", collection="other")
    assert len(knowledge_base.documents()) == 2
    assert knowledge_base.ingest_file(two, name="notes.md", collection="fruit").status == "updated"
    assert [info.source for info in knowledge_base.documents("fruit")] == ["notes.md"]


def test_folders_are_walked_in_order_each_file_once_and_hidden_ones_passed_over(tmp_path: Path) -> None:
    for name in ("b.md", "a/z.md", "a/y.md", ".git/config.md", ".hidden.md"):
        write(tmp_path, name, "x")
    found = list(find_files([tmp_path, tmp_path / "b.md"]))
    assert [file.path.relative_to(tmp_path).as_posix() for file in found] == ["b.md", "a/y.md", "a/z.md"]
    assert [file.source for file in found] == [str(tmp_path / name) for name in ("b.md", "a/y.md", "a/z.md")]
    relative = find_files([tmp_path / "a"], relative_to=tmp_path)
    assert [file.source for file in relative] == ["a/y.md", "a/z.md"]


def test_a_link_out_of_the_folder_is_refused_and_one_within_is_the_same_file(
    knowledge_base: KnowledgeBase, tmp_path: Path
) -> None:
    secret = write(tmp_path, "outside/secret.md", "secret")
    write(tmp_path, "inside/a.md", "visible")
    (tmp_path / "inside/b.md").symlink_to(secret)
    (tmp_path / "inside/c.md").symlink_to(tmp_path / "inside/a.md")
    (tmp_path / "inside/loop").symlink_to(tmp_path / "inside")
    (tmp_path / "inside/circle").symlink_to(tmp_path / "inside/circle")
    (tmp_path / "inside/folder").symlink_to(tmp_path / "outside")
    results = knowledge_base.ingest_paths([tmp_path / "inside"])
    told = {Path(result.path).name: result for result in results}
    assert {name: result.status for name, result in told.items()} == {
        "a.md": "added",
        "b.md": "failed",
        "folder": "failed",
        "circle": "failed",
    }
    assert all("a link out of the folder" in (told[name].reason or "") for name in ("b.md", "folder"))


def test_what_a_refused_link_leads_to_may_be_named_itself(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    secret = write(tmp_path, "outside/notes.md", "not so secret")
    write(tmp_path, "inside/a.md", "visible")
    (tmp_path / "inside/b.md").symlink_to(secret)
    results = knowledge_base.ingest_paths([tmp_path / "inside", secret])
    assert [result.status for result in results] == ["added", "failed", "added"]


def test_a_file_name_that_is_not_utf_8_is_taken_in(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    folder = tmp_path / "names"
    folder.mkdir()
    for name in (b"caf\xe9.txt", b"caf\xe8.txt", "caf\ufffde9.txt".encode()):
        with open(os.fsencode(folder) + b"/" + name, "wb") as file:
            file.write(b"Some text.")
    assert [result.status for result in knowledge_base.ingest_paths([folder])] == ["added"] * 3
    assert sorted(document.source for document in knowledge_base.documents()) == [
        f"{folder}/caf\ufffde8.txt",
        f"{folder}/caf\ufffde9.txt",
        f"{folder}/caf\ufffd\ufffde9.txt",
    ]


def test_a_full_disk_is_a_reason_and_what_was_in_stays(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    first = write(tmp_path, "a.md", "The first document.")
    knowledge_base.ingest_file(first)
    with knowledge_base.catalog.writing() as writer:
        pages = writer._db.execute("PRAGMA page_count").fetchone()[0]
        writer._db.execute(f"PRAGMA max_page_count = {pages + 1}")
    big = write(tmp_path, "b.md", "\n\n".join(f"## {index}\n\n{'text ' * 150}" for index in range(50)))
    result = knowledge_base.ingest_file(big)
    assert result.status == "failed"
    assert (result.reason or "").startswith("no space left in")
    assert [passage.text for passage in knowledge_base.search("document")] == ["The first document."]


def test_documents_taken_in_by_an_older_chunking_are_taken_in_anew(
    knowledge_base: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "a.md", "text")
    knowledge_base.ingest_file(path)
    monkeypatch.setattr("retrieval.ingest.REVISION", 999)
    assert knowledge_base.ingest_file(path).status == "updated"
    assert knowledge_base.ingest_file(path).status == "unchanged"


def test_a_vector_that_vanishes_between_embedding_and_commit_is_embedded_again(
    knowledge_base: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    knowledge_base.ingest_file(write(tmp_path, "a.md", "shared text"), name="x.md")
    (first,) = knowledge_base.documents()
    embed_missing = knowledge_base.ingestor._embed_missing
    deleted: list[bool] = []

    def embed_then_lose(by_digest: dict[bytes, str], embedded: None) -> None:
        embed_missing(by_digest, embedded)
        if not deleted:  # another writer deletes the only other document with this text
            deleted.append(knowledge_base.delete_document(first.document_id))

    monkeypatch.setattr(knowledge_base.ingestor, "_embed_missing", embed_then_lose)
    result = knowledge_base.ingest_file(write(tmp_path, "b.md", "shared text"), name="x.md", collection="other")
    assert (result.status, deleted) == ("added", [True])
    assert [passage.collection for passage in knowledge_base.search("shared")] == ["other"]
