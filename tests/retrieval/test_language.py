import numpy as np
import pytest

from retrieval import language
from retrieval.language import UNKNOWN, foreign, language_among, language_of, languages_of, uses_latin_letters

SPANISH = "Las vacaciones anuales se piden con dos semanas de antelación, y el equipo las aprueba por escrito."
VIETNAMESE = "Nhân viên được nghỉ phép hai mươi ngày mỗi năm và phải báo trước hai tuần."


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Annual leave is asked for two weeks ahead, and the team approves it in writing.", "en"),
        (SPANISH, "es"),
        (VIETNAMESE, "vi"),
        ("年假须提前两周申请。", "zh"),
        ("يجب طلب الإجازة السنوية قبل أسبوعين.", "ar"),
        ("Ежегодный отпуск согласуют за две недели.", "ru"),
    ],
)
def test_languages_are_told_apart(text: str, code: str) -> None:
    assert language_of(text) == code


@pytest.mark.parametrize("text", ["", "1,024 2,048 4,096 8,192", "JTE-920", "vacaciones", "Super Bowl 50", "🦙 \ud800"])
def test_names_figures_and_single_words_are_in_no_known_language(text: str) -> None:
    assert language_of(text) == UNKNOWN


def test_only_what_is_surely_in_another_language_is_foreign() -> None:
    languages = languages_of(
        [SPANISH, "1,024 2,048", "The caches are kept for the next of the turns, as far as they fit."]
    )
    assert languages.tolist() == ["es", UNKNOWN, "en"]
    assert foreign(languages, {"en"}).tolist() == [True, False, False]
    assert foreign(languages, {"en", "es"}).tolist() == [False, False, False]
    assert foreign(np.zeros(0, dtype="<U8"), {"en"}).tolist() == []


def test_scripts() -> None:
    assert uses_latin_letters("Größe 50")
    assert uses_latin_letters("1,024")
    assert uses_latin_letters(VIETNAMESE)
    assert not uses_latin_letters("黑豹队的防守 NFL")


def test_without_room_to_unpack_its_model_no_language_is_told_and_nothing_fails(monkeypatch, caplog):
    def no_room(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("py3langid.langid.LanguageIdentifier.from_model_file", no_room)
    language._loaded.cache_clear()
    try:
        assert language_of(SPANISH) == language_among(SPANISH, {"es", "en"}) == UNKNOWN
        assert [record.levelname for record in caplog.records] == ["WARNING"]  # said once
    finally:
        language._loaded.cache_clear()
