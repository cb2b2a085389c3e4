"""Folders and addresses kept alike with the store: changed in, vanished out, unchanged skipped."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from retrieval import IngestResult, KnowledgeBase, web
from retrieval.errors import FetchError, InvalidArgumentError
from retrieval.sync import sync_folder, sync_urls, watch_folders
from retrieval.web import fetch, normal_url


def outcomes(results: list[IngestResult]) -> dict[str, str]:
    return {result.path.rpartition("/")[2]: result.status for result in results}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    for name in ("a.md", "b.md", "deep/c.md"):
        (tmp_path / "docs" / name).write_text(f"Text of {name}.")
    return tmp_path / "docs"


def test_changed_in_vanished_out_unchanged_skipped(knowledge_base: KnowledgeBase, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "docs-too.md").write_text("A neighbour whose name begins alike.")
    knowledge_base.ingest_file(tmp_path / "docs-too.md")
    assert outcomes(sync_folder(knowledge_base, folder)) == {"a.md": "added", "b.md": "added", "c.md": "added"}
    (folder / "a.md").write_text("Changed text.")
    (folder / "b.md").unlink()
    (folder / "d.md").write_text("New text.")
    (folder / "deep/c.md").write_bytes(b"\x00\x01" * 500)  # cannot be read any more: the old version stays
    assert outcomes(sync_folder(knowledge_base, folder)) == {
        "a.md": "updated",
        "b.md": "removed",
        "c.md": "failed",
        "d.md": "added",
    }
    sources = sorted(Path(document.source).name for document in knowledge_base.documents())
    assert sources == ["a.md", "c.md", "d.md", "docs-too.md"]
    assert "Text of deep/c.md." in {passage.text for passage in knowledge_base.search("text", k=9)}


def test_a_folder_that_became_a_link_keeps_its_documents(
    knowledge_base: KnowledgeBase, folder: Path, tmp_path: Path
) -> None:
    sync_folder(knowledge_base, folder)
    (folder / "deep").rename(tmp_path / "elsewhere")
    (folder / "deep").symlink_to(tmp_path / "elsewhere")
    assert outcomes(sync_folder(knowledge_base, folder)) == {"a.md": "unchanged", "b.md": "unchanged", "deep": "failed"}
    assert len(knowledge_base.documents()) == 3


def test_an_empty_or_missing_folder_drops_nothing_unless_asked(knowledge_base: KnowledgeBase, folder: Path) -> None:
    sync_folder(knowledge_base, folder)
    with pytest.raises(InvalidArgumentError, match="is not a folder"):
        sync_folder(knowledge_base, folder / "none")
    for path in (folder / "a.md", folder / "b.md", folder / "deep/c.md"):
        path.unlink()
    with pytest.raises(InvalidArgumentError, match="is empty, and 3 documents of it are in the store"):
        sync_folder(knowledge_base, folder)
    assert len(knowledge_base.documents()) == 3
    results = sync_folder(knowledge_base, folder, allow_empty=True)
    assert {result.status for result in results} == {"removed"}
    assert knowledge_base.documents() == []


def test_a_watched_folder_is_followed(knowledge_base: KnowledgeBase, folder: Path) -> None:
    sync_folder(knowledge_base, folder)
    stop = threading.Event()
    seen: list[dict[str, str]] = []

    def follow() -> None:
        for results in watch_folders(knowledge_base, [folder], stop, quiet_ms=50):
            seen.append(outcomes(results))

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        expected = {"new.md": "added", "a.md": "removed", "b.md": "updated"}
        deadline = time.monotonic() + 30
        while len({**seen[0]} if seen else {}) == 0 and time.monotonic() < deadline:
            (folder / "new.md").write_text("A new file.")  # again, until the watcher has begun
            time.sleep(0.2)
        (folder / "a.md").unlink()
        (folder / "b.md").write_text("Another text.")
        while time.monotonic() < deadline:
            merged = {name: status for results in seen for name, status in results.items() if status != "unchanged"}
            if merged == expected:
                break
            time.sleep(0.05)
        assert merged == expected
    finally:
        stop.set()
        thread.join(30)


class Site(BaseHTTPRequestHandler):
    """Pages by path: status, headers, body."""

    pages: dict[str, tuple[int, dict[str, str], bytes]] = {}

    def do_GET(self) -> None:
        status, headers, body = self.pages.get(self.path, (404, {}, b""))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    Site.pages = {
        "/page": (
            200,
            {"Content-Type": "text/html; charset=windows-1251"},
            "<h1>Мир</h1><p>Привет всем.".encode("cp1251"),
        ),
        "/notes.md": (200, {"Content-Type": "application/octet-stream"}, b"# Notes\n\nSome notes."),
        "/to-page": (302, {"Location": "/page"}, b""),
        "/round": (302, {"Location": "/round"}, b""),
        "/to-file": (302, {"Location": "file:///etc/passwd"}, b""),
        "/broken": (500, {}, b""),
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_pages_are_taken_in_under_their_address_and_follow_its_changes(
    knowledge_base: KnowledgeBase, site: str
) -> None:
    def sync(*paths: str) -> list[tuple[str, str | None]]:
        results = sync_urls(knowledge_base, [site + path for path in paths], allow_private=True)
        return [(result.status, result.reason) for result in results]

    assert sync("/page#part", "/notes.md") == [("added", None), ("added", None)]
    assert sync("/page", "/notes.md") == [("unchanged", None), ("unchanged", None)]
    (passage,) = knowledge_base.search("Привет", k=1)
    assert (passage.title, passage.source, passage.text) == ("Мир", f"{site}/page", "Привет всем.")
    Site.pages["/page"] = (200, {"Content-Type": "text/html"}, "<h1>Мир</h1><p>До свидания.".encode())
    assert sync("/page") == [("updated", None)]
    Site.pages["/page"] = (503, {}, b"")
    assert sync("/page") == [("failed", "the server answered 503 Service Unavailable")]
    assert len(knowledge_base.documents()) == 2
    Site.pages["/page"] = (410, {}, b"")
    assert sync("/page") == [("removed", None)]
    assert sync("/page") == [("failed", "the server has no such page (404)")]
    assert [document.title for document in knowledge_base.documents()] == ["Notes"]


def test_redirects_are_followed_and_lead_to_no_file_and_not_in_circles(site: str) -> None:
    fetched = fetch(f"{site}/to-page", allow_private=True)
    assert fetched is not None
    assert fetched.name == "page.html"
    with pytest.raises(FetchError, match="only http:// and https:// addresses"):
        fetch(f"{site}/to-file", allow_private=True)
    with pytest.raises(FetchError, match="more than 5 times"):
        fetch(f"{site}/round", allow_private=True)


def test_private_networks_are_refused_unless_asked_for(site: str) -> None:
    with pytest.raises(FetchError, match=r"is in a private network \(127\.0\.0\.1\)"):
        fetch(f"{site}/page")
    for url in ("http://localhost:1/x", "http://[::1]/", "http://169.254.169.254/latest", "http://[::ffff:10.0.0.1]/"):
        with pytest.raises(FetchError, match="is in a private network"):
            fetch(url)


def test_a_file_over_the_limit_is_given_up(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MAX_FILE_BYTES", 10)
    with pytest.raises(web.DocumentTooLargeError, match="the file is larger than"):
        fetch(f"{site}/page", allow_private=True)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///etc/passwd", "only http:// and https://"),
        ("ftp://example.org/x", "only http:// and https://"),
        ("https://", "only http:// and https://"),
        ("https://ann:secret@example.org/", "a user name or password"),
        ("http://[bad/", "is not an address"),
        ("http://example.org:99999/", "is not an address"),
    ],
)
def test_addresses_that_are_not_fetched(url: str, reason: str) -> None:
    with pytest.raises(FetchError, match=reason) as caught:
        normal_url(url)
    assert "secret" not in str(caught.value)
