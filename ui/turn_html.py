"""HTML of a conversation's turns: question, answer, its sources and what can be done with it.

A turn is drawn in two parts, so that a repaint of a growing answer carries the answer alone: `turn_html`, and
`after_answer_html` below it.
"""

import re
from collections.abc import Sequence

from ui.conversation import Conversation, Grounding, Sentence, Source, Turn, TurnState
from ui.icons import icon, icon_button
from ui.markdown import Marks, markdown_html, marked_html, text_html, unwrapped

PREVIEW_CHARS = 160
QUOTE_CHARS = 400
# Turns that are shown above the newest one, and that are fetched at a time when somebody scrolls up.
NUM_SHOWN = 10
_TABLE_ROW = re.compile(r"^\s*\|(.*)\|\s*$")
_EMPHASIS = re.compile(r"(\*\*|`)(\S|\S.*?\S)\1")
_TABLE_RULE = re.compile(r"[\s·:-]*-[\s·:-]*")
_REASONS = {
    "numbers": "A number in it does not stand in the sources.",
    "names": "A name in it does not stand in the sources.",
    "order": "It relates things in another order than the sources do.",
    "negation": "It affirms what the sources deny, or the other way round.",
    "wording": "Its words are not those of any source.",
    "left out": "It leaves out what the source says it of, or under which condition.",
    "meaning": "No source says anything close to it.",
}


def conversation_html(conversation: Conversation) -> tuple[str, str, str]:
    """(earlier turns, newest turn, what stands below it): apart, so that a repaint costs the same in a long one."""
    last = conversation.last
    if last is None:
        return "", "", ""
    index = len(conversation.turns) - 1
    return earlier_html(conversation.turns[:-1]), turn_html(last, index), after_answer_html(last, index, is_last=True)


def earlier_html(turns: Sequence[Turn]) -> str:
    """Finished turns: the last few, and a button for those before them, so that a long conversation costs no more."""
    start = max(0, len(turns) - NUM_SHOWN)
    button = (
        f'<div class="older"><button type="button" class="pill" data-act="older" data-before="{start}">'
        f"{icon('older')}Earlier turns ({start})</button></div>"
        if start
        else ""
    )
    return button + "".join(
        f'<article class="turn">{turn_html(turn, index)}{after_answer_html(turn, index)}</article>'
        for index, turn in enumerate(turns[start:], start)
    )


def turn_html(turn: Turn, index: int, waited_s: float = 0.0) -> str:
    """Question and answer of turn `index`. `waited_s`: seconds since it was asked, while open."""
    edit = "" if turn.is_open else icon_button("edit", "Edit question", "edit")
    # By which the script tells one answer in the making from the next, of whatever conversation.
    key = f' data-key="{turn.key}"' if turn.is_open else ""
    return (
        f'<div class="question" data-testid="user" data-turn="{index}"><h3 class="sr-only">You</h3>'
        f'{edit}<div class="bubble" dir="auto">{text_html(turn.question)}</div></div>'
        f'<div class="answer" data-testid="bot" data-turn="{index}"{key} aria-busy="{str(turn.is_open).lower()}">'
        f'<h3 class="sr-only">Ragstone</h3>{_answer_body(turn, index, waited_s)}</div>'
    )


def _answer_body(turn: Turn, index: int, waited_s: float) -> str:
    parts = []
    if turn.answer:
        cursor = " streaming" if turn.state is TurnState.STREAMING else ""
        text = f'<div class="text{cursor}" dir="auto">{markdown_html(turn.answer, _marks(turn, index))}</div>'
        # A model's own words are shown as such, whatever was found.
        is_told = turn.not_found and turn.grounding is not None and not turn.grounding.sentences
        parts.append(_not_found(text) if is_told else text)
    if turn.is_open and not turn.answer:
        parts.append(
            f'<p class="waiting">{_waiting_text(turn, waited_s)}<span class="dots" aria-hidden="true"></span></p>'
        )
    if turn.state is TurnState.STOPPED:
        parts.append('<p class="mark">(stopped)</p>')
    if turn.state is TurnState.UNFINISHED:
        parts.append('<p class="mark">(not finished: the server ended before the answer did, or is still at it)</p>')
    if turn.state is TurnState.DONE and turn.finish_reason == "length":
        parts.append('<p class="mark">The answer was cut at the longest length allowed.</p>')
    if turn.error:
        code = f' data-code="{text_html(turn.error_code)}"' if turn.error_code else ""
        parts.append(f'<p class="error" role="alert"{code}>{text_html(turn.error)}</p>')
    if turn.state is TurnState.DONE and not turn.answer.strip():
        parts.append('<p class="mark">(the model gave an empty answer)</p>')
    return "".join(parts)


def _not_found(text: str) -> str:
    return (
        f'<div class="not-found"><span class="badge">{icon("none")}</span><div>{text}'
        "<p>Try other words or the language of your documents, search more collections, or add a document that tells "
        "it.</p></div></div>"
    )


def _marks(turn: Turn, index: int) -> Marks:
    sentences = turn.grounding.sentences if turn.grounding is not None else ()
    return Marks(
        turn=index,
        titles={source.n: source.title for source in turn.sources or ()},
        explanations=[
            _REASONS.get(sentence.reason or "", "No source supports this sentence.")
            for sentence in sentences
            if not sentence.is_supported
        ],
    )


def _waiting_text(turn: Turn, waited_s: float) -> str:
    if turn.position:
        return f"Waiting for the engine: number {turn.position} in the queue"
    if turn.sources is None:
        doing = "Searching your documents"
    else:
        doing = "Reading the passages" if turn.sources else "Writing an answer"
    # Whole seconds only: the page is repainted far more often than the number changes.
    return f"{doing} ({int(waited_s)} s)" if waited_s >= 2 else doing


# ── below the answer ─────────────────────────────────────────────────────────────────────────────────────────────────


def after_answer_html(turn: Turn, index: int, *, is_last: bool = False) -> str:
    """What stands below an answer: its sources, and once it has ended what can be done with it and how it was made."""
    if turn.is_open:
        return sources_html(turn, index)
    return _tools_html(turn, index, is_last) + sources_html(turn, index) + _engine_html(turn)


def _tools_html(turn: Turn, index: int, is_last: bool) -> str:
    buttons = []
    if turn.can_continue and is_last:
        buttons.append(f'<button type="button" class="pill" data-act="continue">{icon("go_on")}Continue</button>')
    if turn.answer:
        # As it was written: of what is drawn, lists and tables would lose their form.
        buttons.append(icon_button("copy", "Copy answer", "copy", f'data-text="{text_html(turn.answer.strip())}"'))
    if is_last:
        buttons.append(icon_button("retry", "Retry", "retry"))
    if turn.answer and turn.is_accepted:
        given = turn.feedback.rating if turn.feedback is not None else ""
        comment = text_html(turn.feedback.comment) if turn.feedback is not None else ""
        comment_label = "Change your comment" if comment else "Add a comment"
        for rating, label in (("up", "Good answer"), ("down", "Bad answer")):
            extra = f'data-rating="{rating}" aria-pressed="{str(given == rating).lower()}"'
            buttons.append(icon_button(rating, label, "rate", extra))
        hidden = "" if given else " hidden"
        buttons.append(icon_button("chat", comment_label, "comment", f'data-comment="{comment}"{hidden}'))
    return f'<div class="tools" data-turn="{index}">{"".join(buttons)}</div>' if buttons else ""


def sources_html(turn: Turn, index: int) -> str:
    """The sources of an answer: a card each, with title, page or heading, and the passage's text."""
    if turn.sources is None:
        return ""
    if not turn.sources:
        is_asked = turn.grounding is None or turn.grounding.state != "unchecked"
        is_done = turn.state is TurnState.DONE and turn.answer
        return '<p class="mark">No passage in your documents fits this question.</p>' if is_done and is_asked else ""
    cards = "".join(_source_html(source, index, turn.grounding) for source in turn.sources)
    title = "Nearest passages" if turn.not_found else "Sources"
    return f'<section class="sources" aria-label="Sources"><h4>{title}</h4><div class="cards">{cards}</div></section>'


def _source_html(source: Source, index: int, grounding: Grounding | None) -> str:
    locator = f'<span class="locator" dir="auto">{text_html(_locator(source))}</span>' if _locator(source) else ""
    score = "" if source.score is None else f' title="Match {source.score:.2f} of 1"'
    quotes = [] if grounding is None else grounding.quotes_of(source.n)
    supported = [] if grounding is None else grounding.supported_by(source.n)
    sentences = [item.span for item in supported if item.span is not None]
    words = [word for item in supported for word in item.words]
    page = "" if source.page is None else f' data-page="{source.page}"'
    heading = "" if source.heading is None else f' data-heading="{text_html(source.heading)}"'
    used = ' <span class="used">cited</span>' if quotes else ""
    # Pages are laid out; of other documents a line ends where whoever wrote it ended it.
    text = source.text if source.page is None else unwrapped(source.text)
    return (
        f'<details class="source" id="source-{index}-{source.n}" data-document="{text_html(source.document_id)}">'
        f'<summary{score}><span class="number">{source.n}</span>'
        f'<span class="title" dir="auto">{text_html(source.title)}</span>{used}{locator}'
        f'<span class="preview" dir="auto">{text_html(_preview(quotes[0] if quotes else source.text))}</span></summary>'
        f'<div class="passage" dir="auto" tabindex="0">{marked_html(text, sentences, words)}</div>'
        f'<button type="button" class="pill" data-act="open-document"{page}{heading} '
        f'data-quote="{text_html(_to_find(source, supported))}">{icon("open")}Open document</button>'
        "</details>"
    )


def _to_find(source: Source, supported: Sequence[Sentence]) -> str:
    """What to look for in the document: the first supporting sentence as it is written there, else the passage."""
    for sentence in supported:
        if sentence.quote is not None:
            return sentence.quote if sentence.span is None else source.text[slice(*sentence.span)]
    return source.text[:QUOTE_CHARS]


def _locator(source: Source) -> str:
    page = "" if source.page is None else f"page {source.page}"
    return " · ".join(part for part in (page, source.heading or "") if part)


def _preview(text: str) -> str:
    """The beginning on one line; bold words, code and rows of a Markdown table without what marks them."""
    lines = [_TABLE_ROW.sub(lambda row: row[1].replace("|", "·"), line) for line in text.splitlines()]
    flat = " ".join(" ".join(line for line in lines if not _TABLE_RULE.fullmatch(line)).split())
    flat = _EMPHASIS.sub(r"\2", flat)
    return flat if len(flat) <= PREVIEW_CHARS else flat[:PREVIEW_CHARS].rsplit(" ", 1)[0] + " …"


# ── what the engine did ──────────────────────────────────────────────────────────────────────────────────────────────


def _engine_html(turn: Turn) -> str:
    """Times and counts, folded away; what was left out for want of room stands in the open."""
    facts = _facts(turn)
    rows = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    folded = f'<details class="engine"><summary>What the engine did</summary><dl>{rows}</dl></details>' if facts else ""
    return _left_out_html(turn) + folded


def _left_out_html(turn: Turn) -> str:
    num_turns = int(turn.statistics.get("num_turns_left_out", 0))
    if num_turns <= 0:
        return ""
    turns = "oldest turn" if num_turns == 1 else f"{num_turns} oldest turns"
    return (
        f'<p class="left-out">This conversation has grown long: the model no longer reads its {turns}. '
        '<button type="button" class="link" data-act="new">Start a new one</button> if it loses the thread.</p>'
    )


def _facts(turn: Turn) -> list[tuple[str, str]]:
    given = turn.statistics

    def number(name: str) -> int | None:
        return int(given[name]) if name in given else None

    facts = [("Model", text_html(turn.model))] if turn.model else []
    if "time_to_first_token_s" in given:
        facts.append(("First token after", _seconds(given["time_to_first_token_s"])))
    if "tokens_per_s" in given:
        facts.append(("Speed", f"{given['tokens_per_s']:.0f} tokens/s"))
    if (prompt := number("num_prompt_tokens")) is not None:
        cached = number("num_cached_tokens")
        facts.append(("Prompt", f"{prompt:,} tokens" + (f", {cached:,} from the cache" if cached is not None else "")))
    if (output := number("num_output_tokens")) is not None:
        facts.append(("Written", f"{output:,} tokens"))
    if drafts := number("num_draft_tokens"):
        facts.append(("Drafts accepted", f"{number('num_accepted_tokens') or 0:,} of {drafts:,}"))
    if (passages := number("num_passages")) is not None:
        left = number("num_passages_left_out")
        facts.append(("Passages", f"{passages:,} used" + (f", {left:,} left out for room" if left else "")))
    if (left := number("num_turns_left_out")) is not None:
        facts.append(("Earlier turns left out", f"{left:,}"))
    if turn.grounding is not None and turn.grounding.left_out:
        facts.append(("Left out for room", "; ".join(text_html(title) for title in turn.grounding.left_out)))
    return facts


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
