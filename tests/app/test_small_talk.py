"""What is a greeting, what asks about the assistant, what is a question; and in which language it is replied to."""

import pytest

from app.fixed_texts import ENGLISH, TRANSLATIONS, about_assistant, reply_to, texts_for
from app.small_talk import SmallTalk, small_talk_of


@pytest.mark.parametrize(
    "message",
    ["hello", "Hi!", "Good morning :)", "Thank you very much!", "hi there, how are you?", "Danke schön!", "¡Hola!",
     "你好！", "Здравствуйте!", "नमस्ते", "What's up?", "Bye-bye", "Who are you?", "what can you do",
     "Thanks, that helped a lot."],
)  # fmt: skip
def test_greetings_and_thanks_ask_nothing_of_the_documents(message):
    assert small_talk_of(message) is not None


@pytest.mark.parametrize(
    "message",
    [
        "",
        "?",
        "hi, how do I book travel?",
        "What is TTFT?",
        "hello world program",
        "a" * 5000,
        "hi " * 500,
        "thanks to whom?",
    ],
)
def test_anything_else_is_a_question(message):
    assert small_talk_of(message) is None


@pytest.mark.parametrize(
    ("message", "language"),
    [
        ("Who are you?", "en"), ("hi, what can you do for me?", "en"), ("Which model are you?", "en"),
        ("Are you a robot?", "en"), ("help", "en"), ("Wer bist du?", "de"), ("Qu'est-ce que tu peux faire ?", "fr"),
        ("¿Quién eres?", "es"), ("Chi sei?", "it"), ("Quem é você?", "pt"),
        ("Wie ben je?", "nl"), ("Кто ты?", "ru"),
        ("من أنت؟", "ar"), ("आप कौन हैं?", "hi"),
        ("你是谁？", "zh"), ("あなたは誰ですか？", "ja"), ("너는 누구야?", "ko"),
        ("Hello!", None), ("Who are you going to vote for?", None), ("help desk hours", None),
        ("What is a model?", None),
    ],
)  # fmt: skip
def test_questions_about_the_assistant_are_known_by_their_language(message, language):
    found = small_talk_of(message)
    assert (found.language if found and found.kind == "about" else None) == language


@pytest.mark.parametrize(
    ("message", "kind", "language"),
    [
        ("Hello!", "greeting", "en"), ("ok, thanks a lot!", "thanks", "en"), ("Danke schön", "thanks", "de"),
        ("Guten Morgen", "greeting", "de"), ("Merci", "thanks", "fr"), ("¡Hola!", "greeting", "es"),
        ("Grazie mille", "thanks", "it"), ("谢谢", "thanks", "zh"), ("こんにちは", "greeting", "ja"),
        ("hi, who are you? thanks", "about", "en"),
    ],
)  # fmt: skip
def test_greetings_and_thanks_are_replied_to_in_their_language(message, kind, language):
    assert small_talk_of(message) == SmallTalk(kind, language)
    assert reply_to(SmallTalk("thanks", "de")) == "Gern geschehen."


@pytest.mark.parametrize(
    ("questions", "language"),
    [
        (["Wie viele Urlaubstage habe ich?"], "de"), (["Combien de jours de congé ai-je ?"], "fr"),
        (["¿Cuántos días de vacaciones tengo?"], "es"), (["O que é TTFT?"], "pt"), (["Waar is het kantoor?"], "nl"),
        (["Que mesure le TTFT ?"], "fr"), (["Was misst TTFT?"], "de"), (["Wann verfällt er?"], "de"),
        (["¿Qué mide TTFT?"], "es"),
        (["我有多少天假期？"], "zh"), (["什么是TTFT？"], "zh"),
        (["كم عدد أيام الإجازة؟"], "ar"),
        (["Что такое TTFT?"], "ru"),
        (["und in Berlin?", "Wie viele Urlaubstage habe ich?"], "de"),
        (["How many days?"], "en"), (["Dog policy"], "en"), (["GPU memory H100"], "en"), (["42?"], "en"), ([], "en"),
        (["Скільки в мене днів відпустки?"], "en"),  # Ukrainian, of which there is no translation
    ],
)  # fmt: skip
def test_fixed_sentences_are_in_the_language_of_who_asks(questions, language):
    assert texts_for(*questions) is TRANSLATIONS[language]


def test_what_the_assistant_is_names_the_model_where_it_is_known():
    assert about_assistant("en", "smollm2") == f"{ENGLISH.about} The language model behind me is smollm2."
    assert about_assistant("en") == ENGLISH.about
    assert "smollm2" in about_assistant("ja", "smollm2")
