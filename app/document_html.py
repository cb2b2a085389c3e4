"""HTML and Markdown documents as HTML that any page may show: it runs nothing, loads nothing and looks like the page.

What may stay is listed; all else is dropped by a sanitizer (nh3, on the rules of HTML5's own parser). Knows no HTTP.
"""

import re
from collections.abc import Callable
from html import escape, unescape

import nh3
from markdown_it import MarkdownIt

from retrieval.loaders.html import decode_html
from retrieval.loaders.markdown import read_markdown

MARKDOWN = frozenset({".md", ".markdown"})
HTML = frozenset({".html", ".htm", ".xhtml"})
# A browser takes seconds to lay out more, and whoever reads so much saves the file.
MAX_RENDERED_BYTES = 4 << 20

_TAGS = frozenset(
    {"a", "abbr", "article", "b", "bdi", "bdo", "blockquote", "br", "caption", "cite", "code", "col", "colgroup",
     "dd", "del", "details", "dfn", "div", "dl", "dt", "em", "figcaption", "figure", "h1", "h2", "h3", "h4", "h5",
     "h6", "hr", "i", "img", "ins", "kbd", "li", "ol", "p", "pre", "q", "rp", "rt", "ruby", "s", "samp", "section",
     "small", "span", "strong", "sub", "summary", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "time",
     "tr", "u", "ul", "var", "wbr"}
)  # fmt: skip
# Dropped with what stands in them; of other tags the text stays.
_DROPPED = frozenset(
    {"audio", "button", "canvas", "datalist", "embed", "iframe", "math", "nav", "noscript", "object", "script",
     "select", "style", "svg", "template", "textarea", "title", "video"}
)  # fmt: skip
_ATTRIBUTES = {
    "*": {"dir", "lang"},
    "a": {"href", "title"},
    "abbr": {"title"},
    "img": {"src", "alt", "title", "width", "height"},
    "ol": {"start", "reversed"},
    "td": {"colspan", "rowspan"},
    "th": {"colspan", "rowspan", "scope"},
}
_PICTURE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+", re.IGNORECASE)
_TAG = re.compile(r"<(/?)([a-zA-Z][\w-]*)((?:\s+[^\s=>\"]+=\"[^\"]*\")*)\s*/?>")
_ATTRIBUTE = re.compile(r"([^\s=>\"]+)=\"([^\"]*)\"")
_ELSEWHERE = re.compile(r"https?:|//|(?![a-z][a-z0-9+.-]*:)", re.IGNORECASE)
_LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
# Tags in Markdown are shown as they are written: there they are text as often as not.
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def document_html(suffix: str, data: bytes) -> str | None:
    """The file as safe HTML; None for other formats than HTML and Markdown, and for what is too large to look at.

    Headings stay headings, links lead to http(s) and mailto and open beside the page, and pictures are those within
    the file; of others the address is left, as `title` of an `img` without `src`. Raises LoadError for a file that is
    no text.
    """
    if len(data) > MAX_RENDERED_BYTES:
        return None
    if suffix in HTML:
        return _clean(decode_html(data))
    if suffix in MARKDOWN:
        text, metadata = read_markdown(data)
        title = f"<h1>{escape(metadata['title'])}</h1>" if "title" in metadata else ""
        return _clean(title + str(_MARKDOWN.render(text)))
    return None


def _clean(html: str) -> str:
    safe = _sanitized(html, _but_for_pictures)
    # Twice: what is put into the addresses' place goes through the rules as all else does.
    return _sanitized(_TAG.sub(_without_loading, safe), _kept) if "<img" in safe else safe


def _sanitized(html: str, attribute_filter: Callable[[str, str, str], str | None]) -> str:
    return nh3.clean(
        html,
        tags=set(_TAGS),
        clean_content_tags=set(_DROPPED),
        attributes=_ATTRIBUTES,
        attribute_filter=attribute_filter,
        set_tag_attribute_values={"a": {"target": "_blank"}},
        link_rel="noopener noreferrer nofollow",
        url_schemes={"http", "https", "mailto", "data"},
    )


def _without_loading(tag: "re.Match[str]") -> str:
    """A tag of sanitized HTML, where every value stands in double quotes: a picture of elsewhere names its address."""
    if tag[1] or tag[2].lower() != "img":
        return tag[0]
    attributes = dict(_ATTRIBUTE.findall(tag[3]))
    address = attributes.pop("src", "")
    if _PICTURE.fullmatch(unescape(address)):
        return tag[0]
    attributes.pop("title", None)
    if address and _ELSEWHERE.match(address):
        attributes["title"] = address
    return "<img" + "".join(f' {name}="{value}"' for name, value in attributes.items()) + ">"


def _but_for_pictures(tag: str, name: str, value: str) -> str | None:
    return value if (tag, name) == ("img", "src") else _kept(tag, name, value)


def _kept(tag: str, name: str, value: str) -> str | None:
    """An attribute's value, or None to drop it: links within a site lead nowhere from here."""
    if name == "href":
        return value if _LINK.match(value) else None
    if name == "src":
        return value if _PICTURE.fullmatch(value) else None
    return value
