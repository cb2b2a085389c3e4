"""Questions for a meaning, and sentences that tell one."""

import pytest

from retrieval.definitions import subject_of, tells_meaning


@pytest.mark.parametrize(
    ("question", "subject"),
    [
        ("What is TTFT?", "ttft"),
        ("What does TTFT mean?", "ttft"),
        ("what's a paged KV cache", "paged kv cache"),
        ("And what are the guest rooms?", "guest rooms"),
        ("Define goodput.", "goodput"),
        ("Was bedeutet TTFT?", "ttft"),
        ("Qu'est-ce que la photosynthèse ?", "photosynthese"),
        ("¿Qué es el TTFT?", "ttft"),
        ("Que mesure le TTFT ?", "ttft"),
        ("Was misst TTFT?", "ttft"),
        ("什么是光合作用？", "光合作用"),
        ("光合作用是什么意思？", "光合作用"),
        ("How long is the river?", ""),
        ("What is the name of the person who opened the museum in 1887?", ""),
        ("What?", ""),
    ],
)
def test_the_subject_of_a_question_for_a_meaning(question, subject):
    assert subject_of(question) == subject


@pytest.mark.parametrize(
    ("sentence", "subject", "tells"),
    [
        ("TTFT (time to first token) measures the time until the first token.", "ttft", True),
        ("**TTFT** is a time.", "ttft", True),
        ("A paged KV cache stores keys.", "paged kv cache", False),
        ("- Goodput: requests that met every objective.", "goodput", True),
        ("The guest rooms are on the first floor.", "guest rooms", True),
        ("TTFT grows with the length of the prompt.", "ttft", False),
        ("A rising TTFT is the mark of queueing.", "ttft", False),
        ("光合作用是植物利用光能的过程。", "光合作用", True),
        ("Anything is possible.", "", False),
    ],
)
def test_a_sentence_tells_a_meaning_where_it_says_what_its_own_subject_is(sentence, subject, tells):
    assert tells_meaning(sentence, subject) == tells
