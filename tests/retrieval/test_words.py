from concurrent.futures import ThreadPoolExecutor

import pytest

from retrieval.words import fold, terms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The caches are caching cached KV-cache blocks", ["cach", "cach", "cach", "kv", "cach", "block"]),
        ("131,072 bytes, 131072 bytes", ["131072", "byte", "131072", "byte"]),
        ("3.35 TB/s in 1,2,3", ["3.35", "tb", "s", "1,2,3"]),
        ("max_model_len=8192", ["max", "model", "len", "8192"]),
        ("FP8 e4m3 H100's x2", ["fp8", "e4m3", "h100", "x2"]),
        ("Café CAFÉ cafe\u0301", ["cafe", "cafe", "cafe"]),
        ("Größe STRASSE Straße", ["gross", "strass", "strass"]),
        ("α = 0.5, alpha; β-Faltblatt", ["alpha", "0.5", "alpha", "beta", "faltblatt"]),
        ("ﬁne ２０２４ №", ["fine", "2024"]),
        ("How do I know what it's about?", ["how", "do", "know", "what", "about"]),
        ("We’ll say they don't; vitamin D, the US", ["say", "don", "vitamin", "d", "us"]),
        ("", []),
        ("<|im_end|> {braces}", ["im", "end", "brace"]),
    ],
)
def test_latin_words_are_folded_and_stemmed_and_numbers_stay_whole(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("今天天气", ["今天", "天天", "天气"]),
        ("今天 hello世界", ["今天", "hello", "世界"]),
        ("猫", ["猫"]),
        ("カタカナ", ["カタ", "タカ", "カナ"]),
        ("안녕하세요", ["안녕", "녕하", "하세", "세요"]),
    ],
)
def test_scripts_without_spaces_become_character_pairs(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


@pytest.mark.parametrize("word", ["किताबें", "தமிழ்", "сегодня", "مرحبا", "שלום", "καλημερα"])
def test_words_of_other_scripts_stay_whole(word: str) -> None:
    assert terms(f"{word}, {word}") == [fold(word)] * 2


def test_accents_are_dropped_but_the_vowel_signs_of_other_scripts_stay() -> None:
    assert fold("Καλημέρα Ünïcödé йод") == "καλημερα unicode иод"
    assert fold("किताबें") == "किताबें"


def test_threads_do_not_share_a_stemmer() -> None:
    text = "running quickly through caches of tokens " * 200
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(terms, [text] * 64))
    assert all(result == results[0] for result in results)
