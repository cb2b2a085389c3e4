import pytest

from retrieval.errors import (
    CorruptDocumentError,
    DocumentTooLargeError,
    EmptyDocumentError,
    LoadError,
    UnsupportedFormatError,
)
from retrieval.loaders import LoadedDocument, load
from retrieval.loaders import html as html_loader

MARKDOWN = """---
title: The front matter's title
tags: [gpu, memory]
owner: {name: nested}
---
# Memory

An opening line with `code` and a [link](https://example.org/a_b).

## Registers & *caches*

First paragraph
goes on here.

- one
- two

| level | size |
|---|---|
| L1 | 256 KB |
| L2 | 50 MB |

```python
# not a heading
print("x")
```

Setext heading
--------------

Last words.
"""


def blocks(document: LoadedDocument) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(block.kind, document.text[block.start : block.end], block.headings) for block in document.blocks]


def test_markdown_is_read_into_blocks_that_know_their_headings() -> None:
    document = load("page.md", MARKDOWN.encode())
    assert document.title == "The front matter's title"
    assert dict(document.metadata) == {"title": "The front matter's title", "tags": "gpu, memory"}
    section = ("Memory", "Registers & caches")
    assert blocks(document) == [
        ("prose", "An opening line with `code` and a [link](https://example.org/a_b).", ("Memory",)),
        ("prose", "First paragraph\ngoes on here.", section),
        ("prose", "- one\n- two", section),
        ("table", "| level | size |\n|---|---|\n| L1 | 256 KB |\n| L2 | 50 MB |", section),
        ("code", '```python\n# not a heading\nprint("x")\n```', section),
        ("prose", "Last words.", ("Memory", "Setext heading")),
    ]


def test_title_falls_back_to_the_first_heading_and_then_to_the_file_name() -> None:
    assert load("a.md", b"intro\n\n# The **bold** `title`\n\ntext").title == "The bold title"
    assert load("folder/notes-2026.md", b"only text").title == "notes-2026"
    assert load("notes.txt", b"# no heading in plain text").title == "notes"


def test_a_rule_at_the_top_is_not_front_matter_and_broken_front_matter_stays_text() -> None:
    assert load("a.md", b"---\njust a line\n---\n\ntext").text.startswith("---")
    assert "title: [unclosed" in load("a.md", b"---\ntitle: [unclosed\n---\ntext").text


def test_markdown_of_headings_only_is_still_a_document() -> None:
    document = load("a.md", b"# One\n\n## Two\n")
    assert [text for _, text, _ in blocks(document)] == ["One", "Two"]


def test_an_unclosed_fence_runs_to_the_end() -> None:
    document = load("a.md", b"text\n\n~~~\ncode\n# still code")
    assert blocks(document) == [("prose", "text", ()), ("code", "~~~\ncode\n# still code", ())]


def test_markup_braces_and_control_tokens_stay_plain_text() -> None:
    text = "Use {braces} and {{more}}, <script>alert(1)</script> and <|im_end|> here."
    for name in ("a.md", "a.txt"):
        assert load(name, text.encode()).text == text


def test_plain_text_is_cut_at_blank_lines() -> None:
    document = load("a.txt", b"one\r\nline two\r\n\r\n \r\nthree\n\n\n")
    assert [text for _, text, _ in blocks(document)] == ["one\nline two", "three"]


HTML = """<!doctype html><html><head><title> Serving &amp; scaling </title><style>p{}</style></head><body>
<nav>Home | About</nav>
<h1>Serving</h1><p>First <b>bold</b> word.<br>New line &lt;script&gt;.</p>
<script>alert("no")</script><div>In a div <span hidden>secret</span></div>
<h2>Numbers</h2>
<ul><li>one<ul><li>inner</li></ul></li><li>two</li></ul>
<table><caption>Sizes</caption><tr><th>GPU</th><th>Memory</th></tr><tr><td>H100</td><td>80&nbsp;GB</td></tr></table>
<pre>line 1
  line 2</pre><!-- a comment --><footer>Imprint</footer></body></html>"""


def test_html_gives_its_readable_text_under_its_headings() -> None:
    document = load("page.html", HTML.encode())
    assert document.title == "Serving & scaling"
    assert blocks(document) == [
        ("prose", "First bold word.\nNew line <script>.", ("Serving",)),
        ("prose", "In a div", ("Serving",)),
        ("prose", "- one\n- inner\n- two", ("Serving", "Numbers")),
        ("prose", "Sizes", ("Serving", "Numbers")),
        ("table", "| GPU | Memory |\n| --- | --- |\n| H100 | 80\xa0GB |", ("Serving", "Numbers")),
        ("code", "line 1\n  line 2", ("Serving", "Numbers")),
    ]


def test_html_in_a_declared_code_page_is_decoded() -> None:
    page = '<html><head><meta charset="windows-1252"></head><body><p>Das kostet 15 € – schön.</p></body></html>'
    assert load("a.htm", page.encode("cp1252")).text == "Das kostet 15 € – schön."
    wrong = page.replace("windows-1252", "utf-8")
    assert load("a.htm", wrong.encode("cp1252")).text == "Das kostet 15 € – schön."
    assert load("a.htm", page.encode("utf-16")).text == "Das kostet 15 € – schön."


def test_html_title_falls_back_to_the_heading() -> None:
    assert load("x.html", b"<h1>Head</h1><p>t").title == "Head"
    assert load("x.html", b"<p>t").title == "x"


def test_html_nested_beyond_reason_is_reported_and_not_a_crash() -> None:
    with pytest.raises(CorruptDocumentError, match="nested too deeply"):
        load("deep.html", b"<div>" * 5_000 + b"text")


def test_html_over_the_limit_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_loader, "MAX_HTML_BYTES", 1024 * 1024)
    with pytest.raises(DocumentTooLargeError, match="is 2 MB; HTML is read up to 1 MB"):
        load("big.html", b"<p>" + b"x" * (2 * 1024 * 1024))


@pytest.mark.parametrize(
    ("name", "data", "kind", "reason"),
    [
        ("a.txt", b"", EmptyDocumentError, "the file is empty"),
        ("a.pdf", b"", EmptyDocumentError, "the file is empty"),
        ("a.md", b" \n\t\r\n ", EmptyDocumentError, "no text"),
        ("a.html", b"<html><body><script>x</script></body></html>", EmptyDocumentError, "no text"),
        ("a.bin", b"PK", UnsupportedFormatError, "'.bin' are not supported; supported: .md"),
        ("README", b"text", UnsupportedFormatError, "without an extension"),
        ("a.txt", bytes(range(256)) * 20, CorruptDocumentError, "does not look like text"),
        ("a.md", b"\x89PNG\r\n\x1a\n" + bytes(100), CorruptDocumentError, "does not look like text"),
    ],
)
def test_what_cannot_be_read_has_a_reason_of_its_own(
    name: str, data: bytes, kind: type[LoadError], reason: str
) -> None:
    with pytest.raises(kind, match=reason):
        load(name, data)
