"""Which text of a DOCX is struck out or hidden: by what stands on a run, by its style, or by its paragraph's style."""

from collections.abc import Mapping
from typing import Any

from docx.oxml.ns import qn

_MARKS = tuple(qn(name) for name in ("w:strike", "w:dstrike", "w:vanish"))
_OFF = ("0", "false", "off", "none")
_VALUE, _PROPERTIES, _ROW_PROPERTIES = qn("w:val"), qn("w:rPr"), qn("w:trPr")
_RUN_STYLE, _PARAGRAPH_STYLE = qn("w:rStyle"), f"{qn('w:pPr')}/{qn('w:pStyle')}"
_GONE_ROW = (qn("w:del"), qn("w:hidden"))
_MAX_STYLES = 20  # of one upon another

Marks = Mapping[str, bool]


class Unsaid:
    """Knows the styles of one document, by their ids."""

    def __init__(self, styles: Any) -> None:
        self._styles = {style.get(qn("w:styleId")): style for style in styles.iter(qn("w:style"))}
        self._known: dict[str, Marks] = {}

    def paragraph(self, paragraph: Any) -> Marks:
        """What the paragraph's style says of its text."""
        return self._style(paragraph.find(_PARAGRAPH_STYLE))

    def is_unsaid(self, run: Any, paragraph: Marks) -> bool:
        """Whether a run's text is struck out or hidden, in a paragraph of that style."""
        properties = run.find(_PROPERTIES)
        if properties is None:
            return any(paragraph.values())
        return any({**paragraph, **self._style(properties.find(_RUN_STYLE)), **_given(properties)}.values())

    @staticmethod
    def is_row_gone(row: Any) -> bool:
        """Whether a table's row is hidden, or deleted by a tracked change."""
        properties = row.find(_ROW_PROPERTIES)
        return properties is not None and any(_is_on(properties.find(mark)) for mark in _GONE_ROW)

    def _style(self, reference: Any) -> Marks:
        name = reference.get(_VALUE, "") if reference is not None else ""
        if name not in self._known:
            self._known[name] = self._resolved(name)
        return self._known[name]

    def _resolved(self, name: str) -> Marks:
        """What a style says, with what it takes from those that it is based on."""
        marks: dict[str, bool] = {}
        for _ in range(_MAX_STYLES):
            if (style := self._styles.get(name)) is None:
                break
            marks = {**_given(style.find(_PROPERTIES)), **marks}
            based_on = style.find(qn("w:basedOn"))
            name = based_on.get(_VALUE, "") if based_on is not None else ""
        return marks


def _given(properties: Any) -> Marks:
    if properties is None:
        return {}
    return {mark: _is_on(element) for mark in _MARKS if (element := properties.find(mark)) is not None}


def _is_on(element: Any) -> bool:
    return element is not None and element.get(_VALUE, "1").lower() not in _OFF
