"""What a person, a document or a model wrote is shown, and never loaded or run."""

import re
from html.parser import HTMLParser

import pytest

from ui.client import Document, Health, UploadResult
from ui.conversation import Conversation, Source, Turn, TurnState
from ui.rendering import (
    answer_html,
    conversation_html,
    documents_html,
    health_html,
    notice_html,
    sources_html,
    text_html,
    turn_html,
    turns_html,
    uploads_html,
)

HOSTILE = '<img src=x onerror="alert(1)"><script>hit()</script> & "quotes" \'single\' <test>'
# Every element that our own markup uses; a hostile text must not add another.
OUR_TAGS = {
    "article",
    "section",
    "div",
    "h3",
    "h4",
    "p",
    "ul",
    "li",
    "b",
    "span",
    "strong",
    "button",
    "details",
    "summary",
}


class Elements(HTMLParser):
    """The names of all elements and attributes of a piece of HTML, as a browser would read it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)


def test_text_is_escaped_letter_for_letter() -> None:
    assert text_html("<test> $x$ ** &amp; \"'") == "&lt;test&gt; $x$ ** &amp;amp; &quot;&#x27;"


def test_lone_surrogate_becomes_a_replacement_character_and_a_pair_its_letter() -> None:
    assert text_html("a\ud83db \ud83d\ude00") == "a\ufffdb 😀"
    assert answer_html("a\ud83d") == "<p>a\ufffd</p>\n"


@pytest.mark.parametrize(
    ("markdown", "html"),
    [
        ("**b** `a<b`", "<p><strong>b</strong> <code>a&lt;b</code></p>\n"),
        ("a <b>raw</b>", "<p>a &lt;b&gt;raw&lt;/b&gt;</p>\n"),
        ("<script>x</script>", "<p>&lt;script&gt;x&lt;/script&gt;</p>\n"),
        ("<!-- x -->", "<p>&lt;!-- x --&gt;</p>\n"),
        ("```\n<b>\n```", "<pre><code>&lt;b&gt;\n</code></pre>\n"),
        ("![alt](http://e.example/x.png)", "<p>![alt](http://e.example/x.png)</p>\n"),
        ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>\n"),
        ("[x](data:text/html,hi)", "<p>[x](data:text/html,hi)</p>\n"),
        ("[x](/gradio_api/file=secret)", "<p>[x](/gradio_api/file=secret)</p>\n"),
        ("a $x$ $$y$$ b", "<p>a $x$ $$y$$ b</p>\n"),
        ("a\nb", "<p>a<br />\nb</p>\n"),
    ],
)
def test_answer_is_markdown_in_which_html_images_and_odd_links_are_text(markdown: str, html: str) -> None:
    assert answer_html(markdown) == html


def test_answer_link_leads_out_without_telling_where_from() -> None:
    assert answer_html("[k](https://a.example/?q=1)") == (
        '<p><a href="https://a.example/?q=1" target="_blank" rel="noopener noreferrer nofollow">k</a></p>\n'
    )


def test_hostile_text_adds_no_element_anywhere() -> None:
    source = Source(1, HOSTILE, HOSTILE, 3, HOSTILE, HOSTILE, 0.5)
    turn = Turn(HOSTILE, HOSTILE, [source], TurnState.FAILED, HOSTILE)
    pieces = [
        turns_html([turn]),
        turn_html(turn),
        sources_html(turn),
        documents_html([Document(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, 2, 3)]),
        uploads_html([UploadResult(HOSTILE, "failed", reason=HOSTILE)], [HOSTILE, HOSTILE]),
        uploads_html([UploadResult(HOSTILE, HOSTILE)]),
        notice_html(Health("unhealthy", HOSTILE)),
        health_html(Health(HOSTILE, HOSTILE)),
    ]
    for piece in pieces:
        elements = Elements(piece)
        assert elements.tags <= OUR_TAGS
        assert not [name for name in elements.attributes if name.startswith("on")]


def test_source_shows_title_page_heading_and_whole_passage() -> None:
    text = "word " * 100
    html = sources_html(Turn("q", sources=[Source(2, "d", "A <b>", 7, "One › Two", text, 0.25)]))
    assert '<span class="number">2</span>' in html
    assert "A &lt;b&gt;" in html
    assert "page 7 · One › Two" in html
    assert f'<div class="passage" dir="auto">{text}</div>' in html
    assert 'title="Match 0.25 of 1"' in html


def test_no_fitting_passage_is_said_once_the_answer_is_done() -> None:
    assert sources_html(Turn("q", sources=[], state=TurnState.STREAMING)) == ""
    assert "No passage of your documents fits" in sources_html(Turn("q", sources=[], state=TurnState.DONE))


@pytest.mark.parametrize(
    ("turn", "shown"),
    [
        (Turn("q", state=TurnState.WAITING), "Searching your documents"),
        (Turn("q", sources=[], state=TurnState.WAITING), "Reading the passages"),
        (Turn("q", "part", [], TurnState.STOPPED), "(stopped)"),
        (Turn("q", "part", [], TurnState.FAILED, "broke off"), '<p class="error" role="alert">broke off</p>'),
        (Turn("q", " ", [], TurnState.DONE), "(the model gave an empty answer)"),
    ],
)
def test_state_of_a_turn_is_said_in_words(turn: Turn, shown: str) -> None:
    assert shown in turn_html(turn)


def test_waiting_tells_the_seconds_from_the_second_on() -> None:
    assert "(" not in turn_html(Turn("q"), 1.9)
    assert "Searching your documents (3 s)" in turn_html(Turn("q"), 3.2)


def test_open_answer_is_marked_busy_for_screen_readers() -> None:
    assert 'aria-busy="true"' in turn_html(Turn("q", state=TurnState.STREAMING))
    assert 'aria-busy="false"' in turn_html(Turn("q", state=TurnState.DONE))


def test_newest_turn_is_apart_from_the_earlier_ones() -> None:
    first = Turn("first", "a", [], TurnState.DONE)
    last = Turn("last", "b", [], TurnState.DONE)
    earlier, live, _ = conversation_html(Conversation("s", [first, last]))
    assert ("first" in earlier, "last" in earlier, "last" in live) == (True, False, True)
    assert conversation_html(Conversation("s")) == ("", "", "")


def test_upload_lines_say_what_became_of_each_file() -> None:
    results = [
        UploadResult("a.md", "added", 3, 1),
        UploadResult("b.pdf", "updated", 1, 12),
        UploadResult("c.txt", "unchanged", 1, 1),
        UploadResult("d.txt", "failed", reason="the file is empty"),
        UploadResult("g.pdf", "added", 2, 3, "1 of its pages is a picture"),
    ]
    text = re.sub(r"<[^>]+>", " ", uploads_html(results, ["e.md", "f.md"]))
    assert " ".join(text.split()) == (
        "a.md Added: 3 passages b.pdf Updated: 1 passage, 12 pages c.txt Already there: 1 passage "
        "d.txt Not added: the file is empty g.pdf Added: 2 passages, 3 pages; 1 of its pages is a picture "
        "e.md being read … f.md waiting"
    )


def test_server_states_are_told_apart() -> None:
    assert notice_html(Health("ready")) == ""
    assert "The server is starting" in notice_html(Health("starting", "loading the model"))
    assert "loading the model" in notice_html(Health("starting", "loading the model"))
    assert "cannot answer at the moment" in notice_html(Health("unhealthy", "disk full"))
    assert "cannot be reached" in notice_html(Health("unreachable", "Nothing answers"))


def document(number: int, collection: str = "default") -> Document:
    return Document(str(number), f"title {number}", "", collection, 1, 1, 1)


def test_documents_that_people_added_come_first_and_other_collections_are_folded() -> None:
    html = documents_html([document(1, "handbook"), document(2), document(3, "handbook")])
    assert re.findall(r"title \d</b>|<details|<summary>[^<]*", html) == [
        "title 2</b>",
        "<details",
        "<summary>Sample handbook (2)",
        "title 1</b>",
        "title 3</b>",
    ]
    assert 'aria-label="Remove title 2"' in html


def test_long_document_list_is_cut_and_says_so() -> None:
    html = documents_html([document(number) for number in range(250)])
    assert html.count("<li>") == 201
    assert "and 50 more" in html


def test_what_is_not_in_the_documents_has_nearest_passages_instead_of_sources():
    stored = {"question": "q", "answer": "a", "sources": [{"n": 1}], "grounding": {"state": "not_found"}}
    assert "<h4>Nearest passages</h4>" in sources_html(Turn.from_json(stored))
    assert "<h4>Sources</h4>" in sources_html(Turn.from_json(stored | {"grounding": {"state": "answered"}}))
    assert "<h4>Sources</h4>" in sources_html(Turn.from_json(stored | {"grounding": None}))
