"""JSON text that is still being written, cut where its last escape sequence is whole."""

from __future__ import annotations

import re

# Behind backslashes that escape each other: half a surrogate pair, then what may become its other half; or an escape
# that has only begun.
_UNFINISHED = re.compile(
    r"(?<!\\)(?:\\\\)*(?P<tail>(?:\\u[dD][89abAB][0-9a-fA-F]{2})?(?:\\(?:u[0-9a-fA-F]{0,3})?)?)$", flags=re.ASCII
)


def whole_escapes(text: str) -> str:
    """`text` up to an escape sequence at its end that what follows may complete.

    Readers of partial JSON take a string that ends within one for no string at all, or for half a character.
    """
    match = _UNFINISHED.search(text)
    return text[: match.start("tail")] if match else text
