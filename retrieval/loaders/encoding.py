"""Bytes to text when nobody says which encoding: byte order marks, UTF-8, UTF-16/32 by their zeros, then statistics.

charset-normalizer does the statistics, but its first guess on a few Western European words is often a Central European
or Macintosh code page in which `—` and `é` become other characters. So bytes that look Western are read as cp1252
unless the evidence for a neighbour is clear, and only code pages that are met in practice are tried.
"""

import re
import unicodedata
from collections.abc import Sequence

from charset_normalizer import CharsetMatch, from_bytes

from retrieval.errors import CorruptDocumentError

_BYTE_ORDER_MARKS = (  # UTF-32 before UTF-16: the little-endian mark of the former begins with that of the latter
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
_LATIN_PAGES = ("cp1252", "cp1250", "cp1254", "cp1257")
_OTHER_PAGES = (
    "cp1251", "koi8_r", "cp866", "cp1253", "cp1255", "cp1256", "cp932", "euc_jp", "gb18030", "big5", "cp949", "cp874",
)  # fmt: skip
_HIGH_RUN = re.compile(rb"[\x80-\xff]+")
# cp1254 is cp1252 with Turkish letters in place of six Icelandic ones, and Icelandic never does without the others.
_TURKISH = re.compile(rb"[A-Za-z][\xf0\xfd\xfe]|[\xd0\xdd\xde\xf0\xfd\xfe][a-z]")
_ICELANDIC = re.compile(rb"[\xe1\xe6\xe9\xed\xf3]")
# How far a neighbour's language score must be above cp1252's before it is believed.
_CLEAR_MARGIN = 0.08
_SAMPLE_BYTES = 64 * 1024
# Scripts that a text in UTF-16 or UTF-32 is made of, and punctuation: Latin, Greek, Cyrillic, Hebrew, Arabic, Hindi,
# Thai, Chinese, Japanese, Korean.
_LIKELY = re.compile(
    "[\t\n\r\x20-\x7e\xa0-\u024f\u0300-\u052f\u0590-\u06ff\u0900-\u097f\u0e00-\u0e7f\u1e00-\u1eff\u2010-\u2044\u20ac"
    "\u3000-\u30ff\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff9f\U0001f300-\U0001faff]+"
)
_PAUSE = re.compile("[ \n\u3000-\u3002\uff0c]")
_NOT_TEXT = "this does not look like text (a binary file renamed?): give it the extension of what it really is"


def decode(data: bytes) -> str:
    """The text in `data`, in NFC with "\\n" line ends. Raises CorruptDocumentError where it is not text."""
    text = _decode(data)
    if _looks_binary(text):
        raise CorruptDocumentError(_NOT_TEXT)
    return clean(text)


def decode_as(data: bytes, encoding: str) -> str | None:
    """The text in `data` read as `encoding` (a name that the file itself declares), or None where that fails."""
    if encoding.lower().replace("_", "-") in ("iso-8859-1", "latin-1", "latin1", "us-ascii", "ascii"):
        encoding = "cp1252"  # what browsers do: pages that declare Latin-1 use cp1252's dashes and quotes
    try:
        return clean(data.decode(encoding))
    except (LookupError, UnicodeDecodeError, ValueError):
        return None


def clean(text: str) -> str:
    """`text` in NFC with "\\n" line ends, without NULs, lone surrogates or a byte order mark."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "").removeprefix("\ufeff")
    text = text.encode("utf-8", "replace").decode("utf-8") if _has_surrogate(text) else text
    return unicodedata.normalize("NFC", text)


def has_byte_order_mark(data: bytes) -> bool:
    """Whether `data` begins by saying that it is Unicode."""
    return any(data.startswith(mark) for mark, _ in _BYTE_ORDER_MARKS)


def _decode(data: bytes) -> str:
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace")
    # A few NULs in a text are dirt; in UTF-16 and UTF-32 every space has one.
    plain = data.replace(b"\x00", b"") if data.count(0) <= len(data) // 50 else data
    try:
        text = plain.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    if text is not None and plain.count(0) == 0:
        return text
    wide = _decode_wide(data)
    if wide is not None:
        return wide
    if plain.count(0):
        raise CorruptDocumentError(_NOT_TEXT)
    return _decode_code_page(plain)


def _decode_wide(data: bytes) -> str | None:
    """UTF-16 or UTF-32 without a mark, where the text that comes out consists of letters that texts are made of.

    Pairs of ASCII letters look like Chinese in UTF-16; so a pause or a space is asked for, which no such pair makes.
    """
    for encoding, width in (("utf-32-le", 4), ("utf-32-be", 4), ("utf-16-le", 2), ("utf-16-be", 2)):
        if len(data) % width:
            continue
        try:
            sample = data[:_SAMPLE_BYTES].decode(encoding)
        except UnicodeDecodeError as error:
            if error.start < min(len(data), _SAMPLE_BYTES) - 4:
                continue
            sample = data[: error.start].decode(encoding)  # the sample ends within a pair
        likely = sum(len(run) for run in _LIKELY.findall(sample))
        if likely >= 0.95 * len(sample) and _PAUSE.search(sample):
            return data.decode(encoding, "replace")
    return None


def _decode_code_page(data: bytes) -> str:
    runs = _HIGH_RUN.findall(data[:_SAMPLE_BYTES]) or _HIGH_RUN.findall(data)
    # Accented letters stand alone among ASCII ones; Cyrillic, Greek, Arabic or Chinese words are runs of high bytes.
    latin = sum(map(len, runs)) / len(runs) < 2.0
    encoding = _latin_page(data) if latin else _best_page(data, _OTHER_PAGES)
    for candidate in (encoding, "cp1252"):
        if candidate is None:
            continue
        try:
            return data.decode(candidate)
        except UnicodeDecodeError:
            continue
    return data.decode("latin-1")


def _latin_page(data: bytes) -> str | None:
    matches = _matches(data, _LATIN_PAGES)
    western = next((match for match in matches if "cp1252" in match.could_be_from_charset), None)
    if western is None:
        return matches[0].encoding if matches else None
    if _TURKISH.search(data) and not _ICELANDIC.search(data):
        return "cp1254"
    best = max(matches, key=lambda match: match.coherence)
    clearly_better = best.coherence - western.coherence > _CLEAR_MARGIN and best.chaos <= western.chaos + 0.1
    return best.encoding if clearly_better else "cp1252"


def _best_page(data: bytes, pages: Sequence[str]) -> str | None:
    matches = _matches(data, pages)
    if not matches:
        return None
    best = min(
        matches,
        key=lambda match: (round(match.chaos, 2), -match.coherence, _shouts(str(match)), pages.index(match.encoding)),
    )
    return best.encoding


def _matches(data: bytes, pages: Sequence[str]) -> list[CharsetMatch]:
    return list(from_bytes(data, cp_isolation=list(pages)))


def _shouts(text: str) -> bool:
    """Mostly capitals: what Hebrew bytes look like when they are read as Cyrillic."""
    cased = [char for char in text if char.lower() != char.upper()]
    return sum(map(str.isupper, cased)) > 0.7 * len(cased) > 0


def _has_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _looks_binary(text: str) -> bool:
    """More than 1 in 50 control characters (or replacement characters) in the first pages: no one reads that."""
    sample = text[:20_000]
    odd = sum(1 for char in sample if char == "\ufffd" or (char < " " and char not in "\t\n\r\f\v\x1b"))
    return odd > max(1, len(sample) // 50)
