"""HTML into a tree that holds what a reader of the page takes as said: nothing that is struck out or not shown.

Style sheets are not looked at, only what stands on an element itself. What an element hides is known where its end tag
stands: one that was never closed would take all that follows with it, and stays.
"""

from bs4 import BeautifulSoup
from bs4.element import Tag

from retrieval.loaders.document import MOST_LEFT_OUT

STRUCK_TAGS = frozenset({"del", "s", "strike"})
_COMMENT, _COMMENT_ENDS = "<!--", ("-->", "--!>")
# HTML lets their end tags be left out; the parser then puts what follows inside them.
_ENDED_BY_THE_NEXT = frozenset({"p", "li", "dt", "dd", "td", "th", "option"})
# A page whose whole body is hidden waits for a script that shows it.
_WHOLE_PAGE = frozenset({"html", "body"})


class HtmlTree(BeautifulSoup):
    """A page's tree, without what is struck out, and `with_hidden` False without what is hidden.

    `notice` tells where that was most of the page.
    """

    def __init__(self, markup: str, *, with_hidden: bool = False) -> None:
        self._closed: set[int] = set()
        super().__init__(_with_comments_closed(markup), "html.parser")
        unsaid = self.find_all(is_struck if with_hidden else is_unsaid)
        before = _length(self) if unsaid else 0
        for tag in unsaid:
            self._take_out(tag)
        self.notice = MOST_LEFT_OUT if unsaid and _length(self) < before / 2 else None

    def handle_endtag(self, name: str, nsprefix: str | None = None) -> None:
        """Called by the parser: notes whose end tag this is."""
        if (ended := next((tag for tag in reversed(self.tagStack) if tag.name == name), None)) is not None:
            self._closed.add(id(ended))
        super().handle_endtag(name, nsprefix)

    def _take_out(self, tag: Tag) -> None:
        if id(tag) in self._closed:
            tag.extract()
        elif tag.name in _ENDED_BY_THE_NEXT:
            for child in list(tag.children):
                if isinstance(child, Tag) and child.name in _ENDED_BY_THE_NEXT:
                    return
                child.extract()


def is_unsaid(tag: Tag) -> bool:
    """Whether what stands in this element is struck out or not shown."""
    return is_struck(tag) or is_hidden(tag)


def is_struck(tag: Tag) -> bool:
    style = _style(tag)
    lines = f"{style.get('text-decoration', '')} {style.get('text-decoration-line', '')}"
    return tag.name in STRUCK_TAGS or "line-through" in lines.split()


def is_hidden(tag: Tag) -> bool:
    """Whether the element itself is hidden; what a reader finds by searching the page ("until-found") is not."""
    if tag.name in _WHOLE_PAGE:
        return False
    style = _style(tag)
    display = style.get("display")
    if display == "none" or (display is None and tag.has_attr("hidden") and tag["hidden"] != "until-found"):
        return True
    # Within what is invisible a part may be visible again.
    return style.get("visibility") in ("hidden", "collapse") and not tag.find(_is_visible)


def _is_visible(tag: Tag) -> bool:
    return _style(tag).get("visibility") == "visible"


def _style(tag: Tag) -> dict[str, str]:
    """The declarations of the element's own `style`, in lower case; of a repeated one the last."""
    given = tag.get("style")
    if not isinstance(given, str):
        return {}
    declarations = (declaration.partition(":") for declaration in given.lower().split(";"))
    return {name.strip(): " ".join(value.replace("!important", "").split()) for name, _, value in declarations}


def _with_comments_closed(markup: str) -> str:
    """A comment that is never closed is text: parsers differ in how much of the page it takes with it."""
    start = markup.rfind(_COMMENT)
    # "<!-->" and "<!--->" are whole comments.
    if start < 0 or any(markup.find(end, start + 2) >= 0 for end in _COMMENT_ENDS):
        return markup
    return f"{markup[:start]}&lt;!--{markup[start + len(_COMMENT) :]}"


def _length(tag: Tag) -> int:
    return len(tag.get_text(strip=True))
