"""Collections, and what a document holds: original, pages, text, reading anew. On the real server of this folder."""

import hashlib
import io

import pytest
from fpdf import FPDF
from PIL import Image

from app.document_html import document_html
from app.private_documents import PrivateDocumentError, require_documents_stay
from app.settings import Settings
from tests.app.serving import wait_until

DOCUMENTS = "/api/v1/documents"
COLLECTIONS = "/api/v1/collections"


def put_in(server, name, data, collection):
    response = server.client.post(DOCUMENTS, files=[("files", (name, data))], data={"collection": collection})
    (result,) = response.json()["results"]
    assert result["status"] in ("added", "unchanged"), result
    return f"{DOCUMENTS}/{result['document_id']}"


def pdf(*pages):
    document = FPDF(format=(100, 200))
    document.set_font("Helvetica", size=12)
    for text in pages:
        document.add_page()
        document.multi_cell(80, 8, text)
    return bytes(document.output())


@pytest.fixture(scope="module")
def shelf(server):
    """A collection of a PDF and a page of HTML, taken away in the end: (path of the PDF, of the HTML, their bytes)."""
    data = {"two.pdf": pdf("The first page tells of owls.", "The second page tells of bats."), "a ü.html": HTML}
    yield {name: (put_in(server, name, content, "shelf"), content) for name, content in data.items()}
    assert server.client.delete(f"{COLLECTIONS}/shelf").status_code == 204


HTML = b"<h1>Owls</h1><script>alert(1)</script><p>Owls hunt.</p><h2>Bats</h2><p>Bats hang.</p>"


def originals(server, data):
    folder = server.services.settings.knowledge_dir / "originals"
    return list(folder.glob(f"*/{hashlib.sha256(data).hexdigest()}"))


def test_a_document_is_told_with_what_can_be_had_of_it(server, shelf):
    path, content = shelf["two.pdf"]
    body = server.client.get(path).json()
    assert (body["source"], body["collection"], body["num_pages"], body["has_original"]) == (
        "two.pdf",
        "shelf",
        2,
        True,
    )
    assert (body["content_hash"], body["version"], body["is_own"]) == (hashlib.sha256(content).hexdigest(), 1, True)


@pytest.mark.parametrize(("name", "kind"), [("two.pdf", "application/pdf"), ("a ü.html", "application/octet-stream")])
def test_the_original_comes_back_to_be_saved_and_is_never_run(server, shelf, name, kind):
    path, content = shelf[name]
    response = server.client.get(f"{path}/original")
    assert response.content == content
    assert response.headers["content-type"] == kind
    assert response.headers["content-disposition"].startswith("attachment;")
    assert response.headers["x-content-type-options"] == "nosniff"


def test_a_page_of_a_pdf_is_a_picture(server, shelf):
    path, _ = shelf["two.pdf"]
    response = server.client.get(f"{path}/pages/2.png", params={"width": 200})
    assert response.headers["content-type"] == "image/png"
    picture = Image.open(io.BytesIO(response.content)).convert("L")
    assert picture.size in ((200, 400), (200, 401))
    assert picture.getextrema()[0] < 100  # something is written on it
    assert response.content != server.client.get(f"{path}/pages/1.png", params={"width": 200}).content


@pytest.mark.parametrize(
    ("name", "below", "status"),
    [
        ("two.pdf", "pages/3.png", 404),
        ("two.pdf", "pages/0.png", 422),
        ("two.pdf", "pages/x.png", 422),
        ("two.pdf", f"pages/{10**30}.png", 422),
        ("two.pdf", "pages/1.png?width=100000", 422),
        ("a ü.html", "pages/1.png", 404),
    ],
)
def test_a_page_that_cannot_be_had_is_refused_with_the_reason(server, shelf, name, below, status):
    response = server.client.get(f"{shelf[name][0]}/{below}")
    assert response.status_code == status
    assert len(response.json()["error"]["message"]) > 10


def test_the_text_is_told_by_page_and_heading(server, shelf):
    sections = server.client.get(f"{shelf['two.pdf'][0]}/text").json()["sections"]
    assert [(section["page"], section["text"]) for section in sections] == [
        (1, "The first page tells of owls."),
        (2, "The second page tells of bats."),
    ]
    body = server.client.get(f"{shelf['a ü.html'][0]}/text").json()
    assert (body["title"], [section["text"] for section in body["sections"]]) == ("Owls", ["Owls hunt.", "Bats hang."])
    assert body["sections"][1]["headings"] == ["Bats"]


def test_html_and_markdown_are_given_as_html_that_is_safe_to_show(server, shelf):
    body = server.client.get(f"{shelf['a ü.html'][0]}/html").json()
    assert (body["title"], body["html"]) == ("Owls", "<h1>Owls</h1><p>Owls hunt.</p><h2>Bats</h2><p>Bats hang.</p>")
    refused = server.client.get(f"{shelf['two.pdf'][0]}/html")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_rendered")
    path = put_in(server, "notes.md", b"---\ntitle: Notes\n---\n## Eels\n\nThey *swim* <b>.\n", "notes")
    assert server.client.get(f"{path}/html").json()["html"] == (
        "<h1>Notes</h1><h2>Eels</h2>\n<p>They <em>swim</em> &lt;b&gt;.</p>\n"
    )
    server.client.delete(f"{COLLECTIONS}/notes")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ('<p onclick="hit()" style="x" id="a" class="b" lang="de">a</p>', '<p lang="de">a</p>'),
        ("<p>a<script>hit()</script><style>@import 'x'</style><iframe src='x'>b</iframe>", "<p>a</p>"),
        ('<img src="http://x/y.png" alt="An owl" onerror="hit()">', '<img alt="An owl" title="http://x/y.png">'),
        ('<img alt="<b>" src="a?c&quot;d" title="e">', '<img alt="&lt;b&gt;" title="a?c&quot;d">'),
        ("<b title='<img src=x>'>a</b><img src='javascript:hit()'>", "<b>a</b><img>"),
        ("<q dir='<img src=\"x\">'>a</q><img>", '<q dir="&lt;img src=&quot;x&quot;&gt;">a</q><img>'),
        ('<img src="data:image/png;base64,AAAA">', '<img src="data:image/png;base64,AAAA">'),
        ('<img src="data:image/svg+xml;base64,AAAA">', "<img>"),
        ('<form action="http://x"><input value="a"><button>b</button>c</form>', "c"),
        ("<svg><a xlink:href='javascript:hit()'>a</a></svg><math><mi>b</mi></math>c", "c"),
        ("<!-- a --><base href='http://x'><meta http-equiv=refresh content='0;http://x'><link href=x>b", "b"),
        ("<noscript><p title='</noscript><img src=x onerror=hit()>'>", '<img title="x">\'&gt;'),
    ],
)
def test_nothing_in_a_document_runs_or_loads_when_it_is_shown(given, kept):
    assert document_html(".html", given.encode()) == kept


@pytest.mark.parametrize(
    "address", ["javascript:hit()", "JaVaScRiPt:hit()", "data:text/html,x", "/here", "//x/y", "#a"]
)
def test_links_of_a_document_lead_to_the_web_only(address):
    assert "href" not in document_html(".html", f'<a href="{address}">a</a>'.encode())
    link = document_html(".md", b"[a](https://example.org/)")
    for attribute in ('href="https://example.org/"', 'target="_blank"', 'rel="noopener noreferrer nofollow"'):
        assert attribute in link


def test_a_document_is_read_anew_from_its_original(server, shelf):
    path, _ = shelf["two.pdf"]
    result = server.client.post(f"{path}/reingest").json()
    assert (f"{DOCUMENTS}/{result['document_id']}", result["status"], result["num_pages"]) == (path, "updated", 2)
    assert server.client.get(path).json()["version"] == 2


def test_an_original_goes_with_its_last_document(server):
    data = b"# Shared file\n\nThe same bytes in two collections.\n"
    first, second = (put_in(server, "same.md", data, name) for name in ("left", "right"))
    assert len(originals(server, data)) == 1
    server.client.delete(first)
    assert server.client.get(f"{second}/original").content == data
    server.client.delete(second)
    assert originals(server, data) == []
    assert server.client.get(f"{second}/original").status_code == 404
    for name in ("left", "right"):
        server.client.delete(f"{COLLECTIONS}/{name}")


def test_what_was_taken_in_without_its_file_says_so_until_it_is_put_in_again(server):
    data = b"# Lost\n\nIts file is gone.\n"
    path = put_in(server, "lost.md", data, "lost")
    originals(server, data)[0].unlink()
    assert server.client.get(path).json()["has_original"] is False
    for response in (server.client.get(f"{path}/original"), server.client.post(f"{path}/reingest")):
        assert (response.status_code, response.json()["error"]["code"]) == (404, "original_missing")
        assert "put the file in again" in response.json()["error"]["message"]
    assert put_in(server, "lost.md", data, "lost") == path
    assert server.client.get(f"{path}/original").content == data
    server.client.delete(f"{COLLECTIONS}/lost")


def test_collections_are_created_counted_and_deleted_with_their_documents(server):
    created = server.client.post(COLLECTIONS, json={"name": " my/birds "})
    assert (created.status_code, created.json()["name"]) == (201, "my/birds")
    assert server.client.post(COLLECTIONS, json={"name": "my/birds"}).status_code == 409
    path = put_in(server, "crow.md", b"# Crow\n\nCrows remember.\n", "my/birds")
    (entry,) = (one for one in server.client.get(COLLECTIONS).json()["collections"] if one["name"] == "my/birds")
    assert entry == {
        "name": "my/birds", "visibility": "private", "is_own": True, "num_documents": 1, "num_chunks": 1,
    }  # fmt: skip
    assert [server.client.delete(f"{COLLECTIONS}/my/birds").status_code for _ in range(2)] == [204, 404]
    assert server.client.get(path).status_code == 404


def test_an_upload_says_whether_it_has_made_its_collection(server):
    files = [("files", ("owl.md", b"# Owl\n\nOwls see at night.\n"))]
    told = []
    for query in ("", "", "?background=true"):
        reply = server.client.post(f"{DOCUMENTS}{query}", files=files, data={"collection": "brids"}).json()
        told.append((reply["collection"], reply["is_new_collection"]))
    assert told == [("brids", True), ("brids", False), ("brids", False)]
    wait_until(lambda: server.client.get(f"/api/v1/jobs/{reply['job_id']}").json()["status"] == "done")
    server.client.delete(f"{COLLECTIONS}/brids")


def upload(server, name, data, query="", **fields):
    response = server.client.post(f"{DOCUMENTS}{query}", files=[("files", (name, data))], data=fields)
    if query:
        job = f"/api/v1/jobs/{response.json()['job_id']}"
        wait_until(lambda: server.client.get(job).json()["status"] == "done")
        return server.client.get(job).json()["files"][0]
    return response.json()["results"][0]


def test_an_upload_says_that_a_document_is_private_and_that_stays_until_it_is_taken_back(server):
    collection = {"collection": "safe"}
    first, again = b"# Safe\n\nIt opens at nine.\n", b"# Safe\n\nIt opens at ten.\n"
    path = f"{DOCUMENTS}/{upload(server, 'safe.md', first, **collection)['document_id']}"
    told = []

    def tell(status):
        entries = {
            one["source"]: one["is_private"]
            for one in server.client.get(DOCUMENTS, params=collection).json()["documents"]
        }
        detail = server.client.get(path).json()
        assert entries == {"safe.md": detail["is_private"]}
        told.append((status, detail["is_private"]))

    tell("added")
    tell(upload(server, "safe.md", first, private="true", **collection)["status"])
    assert server.services._is_private("local", ["safe"])
    tell(upload(server, "safe.md", first, **collection)["status"])
    tell(upload(server, "safe.md", again, "?background=true", **collection)["status"])
    tell(server.client.post(f"{path}/reingest").json()["status"])
    tell(upload(server, "safe.md", again, "?background=true", private="false", **collection)["status"])
    tell(upload(server, "safe.md", b"---\nprivate: true\n---\n" + again, private="false", **collection)["status"])
    server.client.delete(f"{COLLECTIONS}/safe")
    assert told == [
        ("added", False),
        ("updated", True),
        ("unchanged", True),
        ("updated", True),
        ("updated", True),
        ("updated", False),
        ("updated", True),  # the file says so itself
    ]


@pytest.mark.parametrize("query", ["", "?background=true"])
def test_what_is_neither_private_nor_not_is_422(server, query):
    response = server.client.post(
        f"{DOCUMENTS}{query}", files=[("files", ("a.md", b"# A"))], data={"private": "perhaps"}
    )
    assert (response.status_code, response.json()["error"]["field"]) == (422, "private")
    assert response.json()["error"]["message"] == "'private' is 'perhaps': give true or false, or leave it out"


@pytest.mark.parametrize(
    ("query", "fields", "field", "said"),
    [
        ("?private=true", {}, "private", "private goes into the form, not into the address: curl -F private="),
        ("?collection=zoo", {}, "collection", "collection goes into the form"),
        ("?backgroud=true", {}, "backgroud", "did you mean background?"),
        (
            "",
            {"privat": "true"},
            "privat",
            "'privat' is no field of an upload: it has collection, private;",
        ),
        ("?background=true", {"privat": "true"}, "privat", "did you mean private?"),
    ],
)
def test_what_would_do_nothing_in_an_upload_is_refused_by_name_and_nothing_is_taken_in(
    server, query, fields, field, said
):
    files = [("files", ("unread.md", b"# Unread"))]
    response = server.client.post(f"{DOCUMENTS}{query}", files=files, data=fields)
    assert (response.status_code, response.json()["error"]["field"]) == (422, field)
    assert said in response.json()["error"]["message"]
    assert "unread.md" not in {one["source"] for one in server.client.get(DOCUMENTS).json()["documents"]}


def test_a_private_document_is_refused_where_its_text_would_be_sent_away():
    require_documents_stay(Settings(embedding_url="http://localhost:8000/v1"))
    with pytest.raises(PrivateDocumentError, match="embedding_url of this server is on another machine"):
        require_documents_stay(Settings(embedding_url="https://api.example.com/v1"))
    with pytest.raises(PrivateDocumentError, match="unset reranker_url"):
        require_documents_stay(Settings(reranker="theirs", reranker_url="https://api.example.com/v1/ranking"))


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 201, 7, None])
def test_a_collection_of_no_usable_name_is_422(server, name):
    assert server.client.post(COLLECTIONS, json={"name": name}).status_code == 422


@pytest.mark.parametrize("below", ["", "/original", "/pages/1.png", "/text", "/reingest"])
@pytest.mark.parametrize("whose", ["nobody", "ada"])
def test_a_document_of_nobody_or_of_somebody_else_is_not_found(server, below, whose):
    document_id = "0" * 32
    if whose == "ada":
        knowledge_base = server.services.knowledge_base
        result = knowledge_base.ingest_bytes(b"# Hers\n\nA secret.\n", "hers.md", "hers.md", owner="ada")
        document_id = result.document_id
    method = "POST" if below == "/reingest" else "GET"
    response = server.client.request(method, f"{DOCUMENTS}/{document_id}{below}")
    assert (response.status_code, response.json()["error"]["field"]) == (404, "document_id")
    assert "ada" not in response.text.replace(document_id, "")


def test_a_shared_document_is_read_by_others_and_changed_by_its_owner_alone(server):
    knowledge_base = server.services.knowledge_base
    knowledge_base.ensure_collection("theirs", owner="ada", visibility="shared")
    result = knowledge_base.ingest_bytes(b"# Ours\n\nA poem.\n", "ours.md", "ours.md", collection="theirs", owner="ada")
    path = f"{DOCUMENTS}/{result.document_id}"
    assert server.client.get(path).json()["is_own"] is False
    assert server.client.get(f"{path}/original").status_code == 200
    assert server.client.post(f"{path}/reingest").status_code == 409
    refused = server.client.delete(path)
    assert (refused.status_code, "shared with you by somebody else" in refused.text) == (409, True)
    listed = server.client.get(DOCUMENTS, params={"collection": "theirs"}).json()["documents"]
    assert [entry["is_own"] for entry in listed] == [False]
    assert server.client.delete(f"{COLLECTIONS}/theirs").status_code == 404
    knowledge_base.delete_collection("theirs", owner="ada")
