import unicodedata

import pytest

from retrieval.errors import CorruptDocumentError
from retrieval.loaders.encoding import clean, decode, decode_as

RUSSIAN = "Привет, мир. Сегодня хорошая погода, и мы пойдём гулять в лес."
JAPANESE = "今日は天気がいいので、散歩に行きましょう。カタカナも入ります。"


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
)
def test_unicode_encodings_are_read_with_and_without_byte_order_mark(encoding: str) -> None:
    text = "Naïve café — “quoted” text,\nwith 3 lines\nand Привет."
    assert decode(text.encode(encoding)) == text


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize(
    "text",
    [
        JAPANESE,
        RUSSIAN,
        "今天天气很好，我们去公园散步吧。",
        "안녕하세요 세계. 오늘 날씨가 좋아서 산책을 갑니다.",
        "مرحبا بالعالم. الطقس جميل اليوم.",
        "A pile of 🔥 and 🦙.",
    ],
)
def test_wide_encodings_without_a_mark_are_read_in_every_script(encoding: str, text: str) -> None:
    assert decode(text.encode(encoding)) == text
    assert decode((text * 5000).encode(encoding)) == text * 5000


def test_a_stray_nul_in_a_text_is_dropped() -> None:
    assert decode(b"A plain text with one NUL\x00 in it, and more words to make it a text.\n").startswith(
        "A plain text with one NUL in it"
    )
    assert "NUL café" in decode(
        "NUL café — and more words that stand here for a text\x00, all in cp1252".encode("cp1252")
    )


def test_big_and_little_endian_marks_are_honoured() -> None:
    assert decode(b"\xff\xfe" + "é—".encode("utf-16-le")) == "é—"
    assert decode(b"\xfe\xff" + "é—".encode("utf-16-be")) == "é—"


@pytest.mark.parametrize(
    "text",
    [
        "café",
        "a — b",
        "Müller",
        "The café — “opened” in 1990. It’s naïve to think so.",
        "A plain English sentence — with one dash only.",
        "Le café était fermé — dommage. Ça coûte 5 €, n’est-ce pas ? Où êtes-vous allé ?",
        "Die Größe der Übung ist für Jörg schön. Straße und Fluß.",
        "El niño comió la manzana. ¿Qué pasó mañana? La información está aquí.",
        "Góðan daginn. Það er fallegt veður í dag og við ætlum að ganga í skóginum. Þetta er próf.",
        "Det er en smuk dag i København. Vi går på tur og spiser smørrebrød.",
    ],
)
def test_western_text_keeps_its_dashes_and_accents(text: str) -> None:
    assert decode(text.encode("cp1252")) == text


def test_latin_1_without_windows_characters_is_read() -> None:
    text = "Señor Muñoz comió en Córdoba."
    assert decode(text.encode("latin-1")) == text


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1250", "Příliš žluťoučký kůň úpěl ďábelské ódy. Dnes je hezké počasí a půjdeme na procházku do lesa."),
        ("cp1250", "Zażółć gęślą jaźń. Dzisiaj jest ładna pogoda i pójdziemy na spacer do lasu, a potem na obiad."),
        ("cp1254", "Bugün hava çok güzel, ormanda yürüyüşe çıkacağız. Daha sonra arkadaşlarımızı da ziyaret edeceğiz."),
        ("cp1251", RUSSIAN),
        ("koi8-r", RUSSIAN),
        ("cp1253", "Καλημέρα κόσμε. Σήμερα ο καιρός είναι καλός και θα πάμε βόλτα."),
        ("cp1255", "שלום עולם. היום מזג האוויר נחמד ונלך לטייל ביער."),
        ("cp1256", "مرحبا بالعالم. الطقس جميل اليوم وسوف نذهب إلى الحديقة للتنزه."),
        ("shift_jis", JAPANESE),
        ("euc-jp", JAPANESE),
        ("gb18030", "今天天气很好，我们去公园散步吧。这是一个测试文件。"),
        ("big5", "今天天氣很好，我們去公園散步吧。這是一個測試文件。"),
        ("euc-kr", "안녕하세요 세계. 오늘 날씨가 좋아서 산책을 갑니다."),
    ],
)
def test_code_pages_of_other_languages_are_told_apart(encoding: str, text: str) -> None:
    assert decode(text.encode(encoding)) == unicodedata.normalize("NFC", text)


def test_a_declared_latin_1_is_read_as_browsers_read_it() -> None:
    assert decode_as("5 € — “so”".encode("cp1252"), "ISO-8859-1") == "5 € — “so”"
    assert decode_as(b"abc", "no-such-encoding") is None
    assert decode_as(b"\xff\xfe\xfa", "utf-8") is None


@pytest.mark.parametrize(
    "data", [bytes(range(256)) * 40, b"\x7fELF\x02\x01\x01" + bytes(200), b"PK\x03\x04" + bytes(range(30)) * 50]
)
def test_binary_data_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptDocumentError, match="does not look like text"):
        decode(data)


def test_clean_unifies_line_ends_and_drops_what_no_store_can_hold() -> None:
    assert clean("a\r\nb\rc\x00d\ud800e") == "a\nb\ncd?e"
    assert clean("cafe\u0301") == "café"
