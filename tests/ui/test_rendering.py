"""What a person, a document or a model wrote is shown, and never loaded or run."""

import re
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

from ui.conversation import Conversation, Feedback, Grounding, Sentence, Source, Turn, TurnState
from ui.library_html import (
    choices_html,
    collection_label,
    collections_html,
    documents_html,
    size_text,
    viewer_html,
    welcome_html,
)
from ui.markdown import Marks, markdown_html, marked_html, text_html, text_of_markdown, unwrapped
from ui.records import Collection, ConversationEntry, Document, Health, Section
from ui.sidebar_html import conversations_html, health_html, notice_html
from ui.turn_html import after_answer_html, conversation_html, earlier_html, sources_html, turn_html

HOSTILE = '<img src=x onerror="alert(1)"><script>hit()</script> & "quotes" \'single\' <test>'
# Every element that our own markup uses; a hostile text must not add another.
OUR_TAGS = {
    *("a", "article", "section", "div", "h3", "h4", "p", "ul", "li", "b", "span", "strong", "button", "details"),
    *("summary", "svg", "path", "rect", "circle", "dl", "dt", "dd", "mark", "table", "caption", "thead", "tbody"),
    *("tr", "th", "td", "time", "img", "input", "label"),
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
    assert markdown_html("a\ud83d") == "<p>a\ufffd</p>\n"


@pytest.mark.parametrize(
    ("markdown", "html"),
    [
        ("**b** `a<b`", "<p><strong>b</strong> <code>a&lt;b</code></p>\n"),
        ("a <b>raw</b>", "<p>a &lt;b&gt;raw&lt;/b&gt;</p>\n"),
        ("<script>x</script>", "<p>&lt;script&gt;x&lt;/script&gt;</p>\n"),
        ("<!-- x -->", "<p>&lt;!-- x --&gt;</p>\n"),
        ("![alt](http://e.example/x.png)", "<p>![alt](http://e.example/x.png)</p>\n"),
        ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>\n"),
        ("[x](data:text/html,hi)", "<p>[x](data:text/html,hi)</p>\n"),
        ("[x](/gradio_api/file=secret)", "<p>[x](/gradio_api/file=secret)</p>\n"),
        ("a $x$ $$y$$ b", "<p>a $x$ $$y$$ b</p>\n"),
        ("a\nb", "<p>a<br />\nb</p>\n"),
    ],
)
def test_answer_is_markdown_in_which_html_images_and_odd_links_are_text(markdown: str, html: str) -> None:
    assert markdown_html(markdown) == html


@pytest.mark.parametrize("markdown", ["```html\n<b>\n```", "    <b>\n"])
def test_code_is_text_that_can_be_scrolled_and_copied(markdown: str) -> None:
    html = markdown_html(markdown)
    assert '<pre tabindex="0"><code>&lt;b&gt;\n</code></pre>' in html
    assert 'aria-label="Copy code"' in html


def test_answer_link_leads_out_without_telling_where_from() -> None:
    assert markdown_html("[k](https://a.example/?q=1)") == (
        '<p><a href="https://a.example/?q=1" target="_blank" rel="noopener noreferrer nofollow">k</a></p>\n'
    )


def test_hostile_text_adds_no_element_anywhere() -> None:
    source = Source(1, HOSTILE, HOSTILE, 3, HOSTILE, HOSTILE, 0.5)
    sentence = Sentence(HOSTILE, True, 1, HOSTILE, HOSTILE)
    turn = Turn(
        HOSTILE,
        HOSTILE + " [1] [?]",
        [source],
        TurnState.FAILED,
        HOSTILE,
        error_code=HOSTILE,
        is_accepted=True,
        grounding=Grounding(HOSTILE, (sentence,), (HOSTILE,)),
        feedback=Feedback("up", HOSTILE),
    )
    document = Document(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, 2, 3, HOSTILE, HOSTILE)
    section = Section(1, (HOSTILE,), HOSTILE)
    pdf = Document(HOSTILE, HOSTILE, HOSTILE + ".pdf", HOSTILE, 1, 2, 3)
    collections = [Collection(HOSTILE, True, 1)]
    pieces = [
        earlier_html([turn] * 12),
        turn_html(turn, 0),
        after_answer_html(turn, 0, is_last=True),
        documents_html([document]),
        documents_html([document], HOSTILE + "x"),
        collections_html(collections, HOSTILE),
        choices_html(collections),
        viewer_html(document, [section], 1),
        viewer_html(pdf, [section], 1, quote=HOSTILE),
        conversations_html([ConversationEntry(HOSTILE, HOSTILE, 1, HOSTILE, HOSTILE)]),
        conversations_html([], HOSTILE),
        notice_html(Health("unhealthy", HOSTILE)),
        health_html(Health(HOSTILE, HOSTILE)),
    ]
    for piece in pieces:
        elements = Elements(piece)
        assert elements.tags <= OUR_TAGS
        assert not [name for name in elements.attributes if name.startswith("on")]
        assert "<img src=x" not in piece


def test_source_shows_title_page_heading_and_whole_passage() -> None:
    text = "word " * 100
    html = sources_html(Turn("q", sources=[Source(2, "d", "A <b>", 7, "One › Two", text, 0.25)]), 4)
    assert '<span class="number">2</span>' in html
    assert "A &lt;b&gt;" in html
    assert "page 7 · One › Two" in html
    assert f'<div class="passage" dir="auto" tabindex="0">{text}</div>' in html
    assert 'title="Match 0.25 of 1"' in html
    assert 'id="source-4-2"' in html
    assert 'data-act="open-document" data-page="7"' in html
    assert 'data-heading="' in html


def test_citation_leads_to_its_source_and_a_number_without_one_stays_text() -> None:
    html = markdown_html("so it is [1]. `[1]` [2]", Marks(turn=3, titles={1: "A & B"}))
    assert '<a class="cite" href="#source-3-1"' in html
    assert 'aria-label="Source 1: A &amp; B">1</a>' in html
    assert html.count("<a ") == 1
    assert html.endswith("<code>[1]</code> [2]</p>\n")


def test_link_definition_does_not_take_the_place_of_a_citation() -> None:
    html = markdown_html("so [1]\n\n[1]: http://hostile.example", Marks(titles={1: "A"}))
    assert 'href="http' not in html
    assert html.count('class="cite"') == 2


def test_unsupported_sentence_says_which_check_failed() -> None:
    sentences = (Sentence("a", True, 1, "q", None), Sentence("b", False, None, None, "numbers"))
    turn = Turn("q", "a [1] b [?] c [?]", [], TurnState.DONE, grounding=Grounding("answered", sentences))
    html = turn_html(turn, 0)
    assert "A number in it does not stand in the sources." in html
    assert "No source supports this sentence." in html


def test_sentences_that_support_an_answer_and_words_in_them_are_marked_in_the_passage() -> None:
    assert marked_html("One <b> two.", [(4, 12)], [(8, 11)]) == (
        'One <mark>&lt;b&gt; </mark><mark class="word">two</mark><mark>.</mark>'
    )
    assert marked_html("a b c", [(2, 5), (0, 3), (4, 99)], []) == "<mark>a b c</mark>"
    assert marked_html("a \ud83d\ude00 b", [(5, 6)], []) == "a 😀 b"  # other places than in the text that was sent
    assert marked_html("a \ud83d b", [(4, 5)], []) == "a \ufffd <mark>b</mark>"
    stored = {"text": "s", "supported": True, "n": 1, "quote": "The second part.", "span": [7, 23], "words": [[11, 17]]}
    grounding = Grounding.from_json({"state": "answered", "sentences": [stored, {"text": "t", "supported": False}]})
    turn = Turn("q", "a", [Source(1, "d", "t", None, None, "First. The second part.", 0.5)], grounding=grounding)
    assert 'First. <mark>The </mark><mark class="word">second</mark><mark> part.</mark>' in sources_html(turn, 0)


WRAPPED = (
    "2 Warranty\n"
    "The warranty covers parts and labour for a period of\n"
    "two years from the day of delivery. It is void if a well-\n"
    "known cause is to blame, among them water, sand and\n"
    "lightning.\n"
    "- Send the device with its receipt to the workshop that\n"
    "sold it.\n"
    "- Keep the parcel.\n\n"
    "| Part that is covered | Years | Price of a repair |\n"
    "| The battery of the device | 1 | 20 |\n\n"
    "保証は納品の日から二年間、部品と作業に適用されます。水や砂、雷によ\n"
    "る故障は対象外です。"
)


def test_wrapped_prose_of_a_page_flows_in_its_card_and_its_marks_stay_where_they_were() -> None:
    flowing = unwrapped(WRAPPED)
    assert len(flowing) == len(WRAPPED)
    assert flowing.splitlines() == [
        "2 Warranty",
        "The warranty covers parts and labour for a period of two years from the day of delivery. It is void if a well-"
        "\u200bknown cause is to blame, among them water, sand and lightning.",
        "- Send the device with its receipt to the workshop that sold it.",
        "- Keep the parcel.",
        "",
        "| Part that is covered | Years | Price of a repair |",
        "| The battery of the device | 1 | 20 |",
        "",
        "保証は納品の日から二年間、部品と作業に適用されます。水や砂、雷によ\u200bる故障は対象外です。",
    ]
    start = WRAPPED.index("It is void")
    sentence = Sentence("s", True, 1, "q", None, (start, WRAPPED.index("- Send") - 1))
    for page, joint, behind_hyphen in ((1, " ", "\u200b"), (None, "\n", "\n")):
        source = Source(1, "d", "t", page, None, WRAPPED, 0.5)
        html = sources_html(Turn("q", "a", [source], grounding=Grounding("answered", (sentence,))), 0)
        assert f"<mark>It is void if a well-{behind_hyphen}known cause" in html
        assert f"sand and{joint}lightning.</mark>" in html


@pytest.mark.parametrize(
    "lines",
    [
        "def total_of(prices, tax=0.2, discount=None):\n    return sum(prices) * (1 + tax) - discount",
        "const total = prices.reduce((a, b) => a + b);\nconst taxed = total * (1 + tax) - discount;",
        "Roses are red, violets are blue\n\nSugar is sweet",
        "Name: Ann\nRole: keeper",
        "Quarter 1 2023 4,200 3,100 1,100 26 %\nQuarter 2 2023 4,500 3,300 1,200 27 %",
        "Item of the order     Quantity    Price of all\nBattery for the lamp  12          240.00 EUR",
    ],
)
def test_lines_that_were_ended_on_purpose_stay(lines: str) -> None:
    assert unwrapped(lines) == lines


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2. Press *the* `button` [now](http://a.example/b_c)\n   and wait.", "Press the button now and wait."),
        ("See [the list][1] of Q&amp;A.", "See the list of Q&A."),
        ("![A lamp](http://a.example/x.png) It shines.", "It shines."),
        ("| A | B |\n|---|---|\n| c | d |", "A\nB\nc\nd"),
        ("Run:\n\n```sh\nls -l\n```", "Run:\nls -l"),
        ("", ""),
    ],
)
def test_markdown_is_read_as_a_reader_sees_it(written: str, read: str) -> None:
    assert text_of_markdown(written) == read


def test_what_the_documents_do_not_hold_is_a_state_of_its_own() -> None:
    said = "This is not in your documents. The passages nearest to it are listed as sources."
    turn = Turn("q", said, [], TurnState.DONE, grounding=Grounding("not_found"))
    assert '<div class="not-found">' in turn_html(turn, 0)
    assert "add a document that tells it" in turn_html(turn, 0)


def test_what_the_engine_did_is_folded_and_what_was_left_out_is_said_openly() -> None:
    statistics = {
        "time_to_first_token_s": 0.214,
        "tokens_per_s": 84.2,
        "num_prompt_tokens": 1812,
        "num_cached_tokens": 640,
        "num_draft_tokens": 20,
        "num_accepted_tokens": 13,
        "num_passages": 4,
        "num_passages_left_out": 1,
        "num_turns_left_out": 2,
    }
    html = after_answer_html(Turn("q", "a", [], TurnState.DONE, statistics=statistics, model="tiny <b>"), 0)
    text = " ".join(re.sub(r"<[^>]+>", " ", html).split())
    assert "no longer reads its 2 oldest turns" in text
    assert "What the engine did Model tiny &lt;b&gt; First token after 214 ms Speed 84 tokens/s" in text
    assert "Prompt 1,812 tokens, 640 from the cache" in text
    assert "Drafts accepted 13 of 20 Passages 4 used, 1 left out for room" in text
    assert "What the engine did" not in after_answer_html(Turn("q", "a", [], TurnState.DONE), 0)


def test_tools_fit_the_state_of_the_turn() -> None:
    def tools(turn: Turn, *, is_last: bool = True) -> list[str]:
        return re.findall(r'data-act="(\w+)"', after_answer_html(turn, 0, is_last=is_last))

    done = Turn("q", "a", None, TurnState.DONE, is_accepted=True)
    assert tools(done) == ["copy", "retry", "rate", "rate", "comment"]
    assert tools(done, is_last=False) == ["copy", "rate", "rate", "comment"]
    cut = Turn("q", "a", None, TurnState.DONE, is_accepted=True, finish_reason="length")
    assert tools(cut) == ["continue", "copy", "retry", "rate", "rate", "comment"]
    assert tools(Turn("q", "a", None, TurnState.STOPPED))[0] == "continue"
    assert tools(Turn("q", "", None, TurnState.FAILED, "refused")) == ["retry"]
    assert tools(Turn("q", "a", None, TurnState.STREAMING)) == []
    given = Turn("q", "a", None, TurnState.DONE, is_accepted=True, feedback=Feedback("down"))
    assert re.findall(r'aria-pressed="(\w+)"', after_answer_html(given, 0)) == ["false", "true"]


def test_no_fitting_passage_is_said_once_the_answer_is_done() -> None:
    assert sources_html(Turn("q", "a", sources=[], state=TurnState.STREAMING), 0) == ""
    assert "No passage in your documents fits" in sources_html(Turn("q", "a", sources=[], state=TurnState.DONE), 0)
    unchecked = Turn("q", "a", sources=[], state=TurnState.DONE, grounding=Grounding("unchecked"))
    assert sources_html(unchecked, 0) == ""


@pytest.mark.parametrize(
    ("turn", "shown"),
    [
        (Turn("q", state=TurnState.WAITING), "Searching your documents"),
        (
            Turn("q", sources=[Source(1, "d", "t", None, None, "text", 0.5)], state=TurnState.WAITING),
            "Reading the passages",
        ),
        (Turn("q", sources=[], state=TurnState.WAITING), "Writing an answer"),
        (Turn("q", "part", [], TurnState.STOPPED), "(stopped)"),
        (Turn("q", "part", [], TurnState.FAILED, "broke off"), '<p class="error" role="alert">broke off</p>'),
        (Turn("q", " ", [], TurnState.DONE), "(the model gave an empty answer)"),
        (Turn("q", "part", [], TurnState.DONE, finish_reason="length"), "was cut at the longest length"),
        (Turn("q", state=TurnState.WAITING, position=3), "number 3 in the queue"),
    ],
)
def test_state_of_a_turn_is_said_in_words(turn: Turn, shown: str) -> None:
    assert shown in turn_html(turn, 0)


def test_waiting_tells_the_seconds_from_the_second_on() -> None:
    assert "documents<span" in turn_html(Turn("q"), 0, 1.9)
    assert "Searching your documents (3 s)" in turn_html(Turn("q"), 0, 3.2)


def test_open_answer_is_marked_busy_for_screen_readers() -> None:
    assert 'aria-busy="true"' in turn_html(Turn("q", state=TurnState.STREAMING), 0)
    assert 'aria-busy="false"' in turn_html(Turn("q", state=TurnState.DONE), 0)


def test_newest_turn_is_apart_from_the_earlier_ones() -> None:
    first = Turn("first", "a", [], TurnState.DONE)
    last = Turn("last", "b", [], TurnState.DONE)
    earlier, live, _ = conversation_html(Conversation("s", [first, last]))
    assert ("first" in earlier, "last" in earlier, "last" in live) == (True, False, True)
    assert conversation_html(Conversation("s")) == ("", "", "")


def test_server_states_are_told_apart() -> None:
    assert notice_html(Health("ready")) == ""
    assert "The server is starting" in notice_html(Health("starting", "loading the model"))
    assert "loading the model" in notice_html(Health("starting", "loading the model"))
    assert "cannot answer at the moment" in notice_html(Health("unhealthy", "disk full"))
    assert "cannot be reached" in notice_html(Health("unreachable", "Nothing answers"))


def test_conversations_are_grouped_by_age_and_a_search_shows_where_it_hit() -> None:
    now = datetime(2026, 5, 20, 12, tzinfo=UTC)

    def entry(number: int, day: str) -> ConversationEntry:
        return ConversationEntry(str(number), f"title {number}", 1, day, "a <b>hit</b>" if number == 1 else "")

    days = ["2026-05-20T01:00:00Z", "2026-05-19T23:00:00Z", "2026-05-14T00:00:00", "2026-01-01T00:00:00Z", "?"]
    html = conversations_html([entry(number, day) for number, day in enumerate(days)], now=now)
    assert re.findall(r"<h3>([^<]*)</h3>|class=\"title\" dir=\"auto\">([^<]*)<", html) == [
        ("Today", ""),
        ("", "title 0"),
        ("Yesterday", ""),
        ("", "title 1"),
        ("The last 7 days", ""),
        ("", "title 2"),
        ("Earlier", ""),
        ("", "title 3"),
        ("", "title 4"),
    ]
    assert "a &lt;b&gt;hit&lt;/b&gt;" in html
    assert "Search to find older ones" not in html
    assert "Search to find older ones" in conversations_html([entry(number, "?") for number in range(200)], now=now)


def document(number: int, collection: str = "default") -> Document:
    return Document(str(number), f"title {number}", "", collection, 1, 1, 1)


def test_document_table_tells_all_facts_and_names_each_button() -> None:
    given = Document("7", "Tides", "https://a.example/tides.pdf", "handbook", 1234, 12, 4200, "2026-05-02T10:00:00Z")
    html = documents_html([given])
    cells = [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<td.*?</td>", html)]
    assert cells == ["Sample handbook", "4.2 KB", "12", "1,234", "2 May 2026", "Ready", ""]
    assert re.findall(r'aria-label="([^"]*)"', html) == ["Download Tides", "Read Tides again", "Delete Tides"]


def test_documents_are_found_by_title_and_the_list_is_cut_and_says_so() -> None:
    html = documents_html([document(number) for number in range(250)])
    assert html.count("<tr data-document") == 200
    assert "and 50 more" in html
    assert documents_html([document(1), document(12)], "TITLE 12").count("<tr data-document") == 1
    assert "No document is called “x”" in documents_html([document(1)], "x")


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (4200, "4.2 KB"), (13_400_000, "13 MB"), (2 * 10**12, "2000 GB")],
)
def test_sizes_are_for_people(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


def test_opened_document_is_a_page_image_or_text_at_the_passage() -> None:
    pdf = Document("d 1", "Report", "report.PDF", "default", 3, 2, 10)
    sections = [Section(1, (), "one"), Section(2, (), "two quoted three")]
    html = viewer_html(pdf, sections, 9, quote="quoted")
    assert "Page 2 of 2" in html
    assert 'src="page/documents/d 1/pages/2.png"' in html
    assert "open><summary>Text of this page" in html
    assert "two quoted three" in html
    note = Document("2", "N", "n.md", "default", 1, 0, 10)
    assert "<em>x</em></div>" in viewer_html(note, [], None, "<em>x</em>")
    plain = viewer_html(note, [Section(None, ("A", "B"), "*x*"), Section(3, (), "<b>")], None)
    assert '<h4 dir="auto">B</h4><div dir="auto">*x*</div>' in plain
    assert "&lt;b&gt;" in plain
    assert "Page 3" in plain


def test_first_visit_offers_questions_on_what_there_is() -> None:
    handbook = Document("1", "Batching", "b.md", "handbook", 1, 0, 1)
    own = [Document(str(n), f"Report {n} <b>", "r.md", "default", 1, 0, 1) for n in range(5)]
    assert "What does TTFT measure?</button>" in welcome_html([*own, handbook])
    html = welcome_html(own)
    assert "5 documents are there to ask" in html
    assert html.count('data-act="example"') == 3
    assert "What does “Report 2 &lt;b&gt;” say?" in html
    assert "add a document first" in welcome_html([])


def test_own_collections_have_names_for_people() -> None:
    assert [collection_label(name) for name in ("default", "handbook", "mine")] == [
        "My documents",
        "Sample handbook",
        "mine",
    ]


def test_what_is_not_in_the_documents_has_nearest_passages_instead_of_sources() -> None:
    stored = {"question": "q", "answer": "a", "sources": [{"n": 1}], "grounding": {"state": "not_found"}}
    assert "<h4>Nearest passages</h4>" in sources_html(Turn.from_json(stored), 0)
    assert "<h4>Sources</h4>" in sources_html(Turn.from_json(stored | {"grounding": {"state": "answered"}}), 0)
    assert "<h4>Sources</h4>" in sources_html(Turn.from_json(stored | {"grounding": None}), 0)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("| signal | target |\n|---|---|\n| waiting requests | 2 |", "signal · target waiting requests · 2"),
        ("a | b\n- one", "a | b - one"),
        ("**Hash chain.** `/metrics` of 2 * 3 ** 2", "Hash chain. /metrics of 2 * 3 ** 2"),
    ],
)
def test_the_preview_has_no_marks_of_tables_bold_words_and_code(text: str, shown: str) -> None:
    html = sources_html(Turn("q", "a", [Source(1, "d", "t", None, None, text, 0.5)]), 0)
    preview = re.search(r'<span class="preview" dir="auto">(.*?)</span>', html)
    assert preview is not None
    assert " ".join(preview[1].split()) == shown
