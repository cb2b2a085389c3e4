import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import (
    CorruptDocumentError,
    DocumentTooLargeError,
    EmptyDocumentError,
    LoadError,
    UnsupportedFormatError,
)
from retrieval.loaders import LoadedDocument, load
from retrieval.loaders import html as html_loader
from retrieval.loaders.document import MOST_LEFT_OUT
from retrieval.loaders.markdown_shown import shown_markdown

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


def test_what_markdown_strikes_out_comments_or_hides_is_not_said_and_code_stays() -> None:
    text = (
        "Express costs ~~7~~ 9 euros, **~~gone~~**. `<!-- kept -->` and `~~kept~~`.\n<!-- Parcels are free.\n\n-->\n"
        "Letters too <!-- not\nyet --> since May.\n\n~~~\n<!-- listed --> ~~here~~\n~~~\n\n"
        "- ~~old~~ new\n- [x] ~~done~~\n  > more ~~or\n  > less~~ to do\n\n[//]: # (nobody sees this)\n\n"
        "| Size | Fee |\n|---|---|\n| S ~~or M~~ | ~~7~~ |\n<!-- | M | 8 | -->\n| a \\| ~~b~~ | c |\n\n"
        'Since <del>May</del> June<span style="display:none">, or not</span>.\n\n<div hidden>\n\nNever.\n\n</div>\n\n'
        "## Fees ~~of 2023~~ ##\n\n~~Free.~~\n\n<!-- x --> ~~Seven.~~ Nine.\n"
    )
    document = load("notes.md", text.encode())
    assert document.text.split("\n\n") == [
        "Express costs 9 euros,. `<!-- kept -->` and `~~kept~~`.\nLetters too since May.",
        "~~~\n<!-- listed --> ~~here~~\n~~~",
        "- new\n  > more to do",
        "| Size | Fee |\n|---|---|\n| S | |\n| a \\| | c |",
        "Since June.",
        "Nine.",
    ]
    assert document.blocks[-1].headings == ("Fees",)


@pytest.mark.parametrize(
    "opened",
    [
        "<!-- a note\n\nB\n",
        "A <!-- a note\n\nB\n",
        "<!-- a note\n\nB\n\n```mermaid\nx --> y\n```\n\nC\n",
        "A <!-- an arrow is `-->`\n\nB\n",
        "- <!-- a note\n- B\n\nC -->\n",
        "A ~~B\n\nC~~\n",
        "A <del>B\n\nC <s>\n",
        "<del>\n\nB\n",
        '<div style="display:none">\n\nB\n',
    ],
)
def test_what_markdown_does_not_close_stays_text(opened: str) -> None:
    document = load("notes.md", f"{opened}\nlast ~~word~~ words\n\n<!-- closed -->\n".encode())
    assert re.findall(r"\S+", document.text) == re.findall(r"\S+", f"{opened}\nlast words")


def test_code_in_a_comment_goes_with_it() -> None:
    text = b"A\n\n<!-- off\n\n```mermaid\nx --> y\n```\n\n-->\n\nB\n"
    assert load("notes.md", text).text == "A\n\nB"


def test_text_below_a_heading_that_is_struck_out_is_not_told_under_the_one_before() -> None:
    document = load("a.md", b"# Fees\n\n## Old\n\n7\n\n## ~~Older~~\n\n6\n")
    assert [headings for _, _, headings in blocks(document)] == [("Fees", "Old"), ("Fees",)]


def test_a_document_that_takes_all_back_says_so() -> None:
    with pytest.raises(EmptyDocumentError, match="all of it is commented out, struck out or hidden"):
        load("a.md", b"~~Parcels are free.~~\n\n<!-- All of them. -->\n")
    most = load("a.md", b"Parcels cost 9.\n\n<!-- Parcels are free, all of them, for ever and ever. -->\n")
    assert (most.text, most.notice) == ("Parcels cost 9.", MOST_LEFT_OUT)


@given(st.text(alphabet="ab ~`<!->\n\t|#*_\\[]()", max_size=60))
def test_markdown_loses_nothing_but_what_stands_between_marks(text: str) -> None:
    assert shown_markdown(text.replace("~", "").replace("!", "")) == text.replace("~", "").replace("!", "")
    letters = iter(text)
    assert all(letter in letters for letter in shown_markdown(text))


def test_what_html_strikes_out_or_does_not_show_is_left_out() -> None:
    page = (
        '<p style="DISPLAY : none">The last tram leaves at 3:00.</p><p>It costs <del>7</del> <ins>8</ins> euros, '
        '<s>free</s> <span style="visibility:hidden">or not</span>for all.</p><p style="color:red">Red.</p>'
        "<table><tr><th>Line</th><th>Fee</th></tr><tr hidden><td>1</td><td>2</td></tr>"
        "<tr><td>3</td><td><strike>4</strike> 5</td></tr></table>"
        '<pre>a <del>b</del> c\n<span style="text-decoration: line-through">d</span>e</pre>'
        '<ul><li hidden>six<li>seven</ul><p hidden>eight<p>nine<p hidden="until-found">ten'
        '<p style="visibility:hidden">eleven <b style="visibility:visible">twelve</b></p>'
    )
    assert load("x.html", page.encode()).text.split("\n\n") == [
        "It costs 8 euros, for all.",
        "Red.",
        "| Line | Fee |\n| --- | --- |\n| 3 | 5 |",
        "a  c\ne",
        "- seven",
        "nine",
        "ten",
        "eleven twelve",
    ]


@pytest.mark.parametrize(
    "page",
    [
        "<p>A</p><!-- a note <p>B</p>",
        "<p>A</p><!-- closed --><!-- a note <p>B</p>",
        "<p>A</p><s>a note <p>B</p>",
        "<p>A <del>a note</p><p>B</p>",
        "<p>A</p><div hidden>a note<p>B</p>",
    ],
)
def test_what_html_does_not_close_stays_text(page: str) -> None:
    words = load("x.html", page.encode()).text.replace("<!--", "").split()
    assert words == ["A", "a", "note", "B"]


def test_a_page_that_shows_nothing_is_shown_by_its_script() -> None:
    assert load("x.html", b'<body style="display:none"><p>A <s>B</s></p>').text == "A"
    assert load("x.html", b'<html><head><title>T</title></head><div id="app" hidden>A <s>B</s></div>').text == "A"


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
