"""What is a greeting and what is a question."""

import pytest

from app.small_talk import is_small_talk


@pytest.mark.parametrize(
    "message",
    ["hello", "Hi!", "Good morning :)", "Thank you very much!", "hi there, how are you?", "Danke schön!", "¡Hola!",
     "你好！", "What's up?", "Bye-bye", "Who are you?", "what can you do"],
)  # fmt: skip
def test_greetings_and_thanks_ask_nothing_of_the_documents(message):
    assert is_small_talk(message)


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
    assert not is_small_talk(message)
