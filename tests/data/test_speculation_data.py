"""The prompts that speculation is measured on: their number, kinds and layout."""

import json
from collections import Counter
from pathlib import Path

from app.settings import DEFAULT_SYSTEM_PROMPT
from app.turn_prompt import QUESTION_LEAD

DATA = Path(__file__).resolve().parents[2] / "data"
PROMPTS = [json.loads(line) for line in (DATA / "eval" / "speculation.jsonl").read_text(encoding="utf-8").splitlines()]


def test_there_are_fifty_prompts_of_three_kinds() -> None:
    assert Counter(prompt["kind"] for prompt in PROMPTS) == {"rag": 30, "quote": 10, "open": 10}
    assert len({prompt["id"] for prompt in PROMPTS}) == 50
    assert len({prompt["messages"][-1]["content"] for prompt in PROMPTS}) == 50


def test_passages_stand_as_the_app_lays_them_out() -> None:
    handbook = " ".join(" ".join(page.read_text(encoding="utf-8").split()) for page in (DATA / "handbook").glob("*.md"))
    for prompt in PROMPTS:
        if prompt["kind"] == "open":
            assert [message["role"] for message in prompt["messages"]] == ["user"]
            assert "Passages:" not in prompt["messages"][0]["content"]
            continue
        system, user = prompt["messages"]
        assert system == {"role": "system", "content": DEFAULT_SYSTEM_PROMPT}
        passages, _, request = user["content"].partition(QUESTION_LEAD)
        assert request
        header, *blocks = passages.strip().split("\n\n[")
        assert header == "Passages:"
        assert 1 <= len(blocks) <= 4
        # The best one, number 1, stands last.
        assert [int(block.split("]")[0]) for block in blocks] == list(range(len(blocks), 0, -1))
        for block in blocks:
            first_sentence = block.split("\n", 1)[1].split(". ")[0]
            assert " ".join(first_sentence.split()) in handbook


def test_quoting_prompts_ask_for_the_exact_words() -> None:
    for prompt in PROMPTS:
        request = prompt["messages"][-1]["content"].rpartition(QUESTION_LEAD)[2]
        assert ("word for word" in request or "exactly" in request) == (prompt["kind"] == "quote")
