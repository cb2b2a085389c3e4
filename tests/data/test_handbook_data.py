"""The sample handbook and its questions: form, coverage, and that each answer stands where the question set says.

Whether retrieval finds the pages is measured elsewhere; nothing here loads a model.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).resolve().parents[2] / "data"
HANDBOOK = DATA / "handbook"
PAGES = sorted(HANDBOOK.glob("*.md"))
PAGE_NAMES = [page.name for page in PAGES]

# What issue 2 asks the handbook to cover, as it must appear in some heading (any one of the alternatives).
TOPICS = {
    "memory hierarchy": r"memory hierarchy",
    "arithmetic intensity": r"arithmetic intensity",
    "roofline": r"roofline",
    "prefill": r"prefill",
    "decode": r"decode",
    "TTFT": r"\bTTFT\b",
    "TPOT": r"\bTPOT\b",
    "ITL": r"\bITL\b",
    "goodput": r"goodput",
    "static batching": r"static batching",
    "dynamic batching": r"dynamic batching",
    "continuous batching": r"continuous batching",
    "KV-cache arithmetic": r"KV-cache arithmetic",
    "worked KV numbers": r"worked sizes",
    "paged KV": r"paged KV",
    "prefix caching": r"prefix caching",
    "FlashAttention": r"FlashAttention",
    "speculative decoding": r"speculative decoding",
    "FP16": r"\bFP16\b",
    "BF16": r"\bBF16\b",
    "FP8": r"\bFP8\b",
    "INT8": r"\bINT8\b",
    "INT4": r"\bINT4\b",
    "GPTQ": r"\bGPTQ\b",
    "AWQ": r"\bAWQ\b",
    "SmoothQuant": r"SmoothQuant",
    "tensor parallelism": r"tensor parallelism",
    "pipeline parallelism": r"pipeline parallelism",
    "data parallelism": r"data parallelism",
    "expert parallelism": r"expert parallelism",
    "CUDA graphs": r"CUDA graphs",
    "NIM": r"\bNIM\b",
    "TensorRT-LLM": r"TensorRT-LLM",
    "Triton Inference Server": r"Triton Inference Server",
    "vLLM": r"\bvLLM\b",
    "RAG stages": r"stages of retrieval-augmented generation",
    "vector search": r"vector search",
    "CAGRA": r"\bCAGRA\b",
    "IVF": r"\bIVF\b",
    "LCEL": r"\bLCEL\b",
    "LangServe": r"LangServe",
    "Gradio": r"Gradio",
    "capacity planning": r"capacity planning",
    "autoscaling signals": r"autoscaling signals",
    "backpressure": r"backpressure",
    "draining": r"draining",
    "cost": r"\bcosts?\b",
}

# The pages are about techniques and products: they credit no person, and no tool that wrote them.
CREDITS = re.compile(
    r"\bet al\b|\b(?:Mr|Mrs|Dr|Prof)\.\s|\b(?:written|generated|drafted) (?:by|with)\b|\bauthor:|[\w.]+@[\w.]+\.\w+",
    re.IGNORECASE,
)


def load_questions() -> list[dict[str, Any]]:
    lines = (DATA / "eval" / "handbook.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


QUESTIONS = load_questions()
ANSWERABLE = [question for question in QUESTIONS if question["answerable"]]
UNANSWERABLE = [question for question in QUESTIONS if not question["answerable"]]


def text_of(page: str) -> str:
    return (HANDBOOK / page).read_text(encoding="utf-8")


def normalised(text: str) -> str:
    return " ".join(text.lower().split())


def five_word_runs(text: str) -> set[tuple[str, ...]]:
    """All runs of five words, once with punctuation dropped ("8,192" is one word) and once with it as a border."""
    dropped = re.sub(r"[^\w\s]", "", text.lower()).split()
    split = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + 5]) for words in (dropped, split) for i in range(len(words) - 4)}


def sections_of(text: str) -> list[str]:
    """The bodies under each heading: a fact has to stand inside one of them to reach the model in one passage."""
    return re.split(r"^#{1,6} .*$", text, flags=re.MULTILINE)


def headings_of(text: str) -> list[str]:
    return re.findall(r"^#{1,6} (.+)$", text, flags=re.MULTILINE)


def test_handbook_has_about_twenty_five_pages_with_plain_kebab_case_names() -> None:
    assert 24 <= len(PAGES) <= 30
    assert [name for name in PAGE_NAMES if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*\.md", name)] == []
    assert [path.name for path in HANDBOOK.iterdir() if path.suffix != ".md"] == []


@pytest.mark.parametrize("page", PAGE_NAMES)
def test_page_has_one_title_sections_and_a_readable_length(page: str) -> None:
    text = text_of(page)
    assert text.startswith("# ")
    assert len(re.findall(r"^# ", text, flags=re.MULTILINE)) == 1
    assert len(re.findall(r"^## ", text, flags=re.MULTILINE)) >= 5
    assert 500 <= len(text.split()) <= 900
    assert '*From the handbook "Serving language models on GPUs".*' in text
    assert text.endswith("\n")


@pytest.mark.parametrize("page", PAGE_NAMES)
def test_sections_fit_into_one_passage(page: str) -> None:
    assert [section[:60] for section in sections_of(text_of(page)) if len(section.strip()) > 1_100] == []


@pytest.mark.parametrize("page", PAGE_NAMES)
def test_tables_have_the_same_number_of_cells_in_each_row(page: str) -> None:
    for table in re.findall(r"(?:^\|.*\|\n)+", text_of(page), flags=re.MULTILINE):
        rows = table.strip().splitlines()
        assert {row.count("|") for row in rows} == {rows[0].count("|")}, rows[0]


@pytest.mark.parametrize("page", PAGE_NAMES)
def test_page_credits_no_person_and_no_tool(page: str) -> None:
    assert CREDITS.findall(text_of(page)) == []


def test_titles_are_unique() -> None:
    titles = Counter(headings_of(text_of(page))[0] for page in PAGE_NAMES)
    assert [title for title, count in titles.items() if count > 1] == []


@pytest.mark.parametrize("topic", sorted(TOPICS))
def test_topic_of_the_issue_has_a_heading(topic: str) -> None:
    headings = [heading for page in PAGE_NAMES for heading in headings_of(text_of(page))]
    assert [h for h in headings if re.search(TOPICS[topic], h, flags=re.IGNORECASE)] != []


def test_ttft_is_defined_in_one_sentence() -> None:
    definition = "measures the time from sending a request until the first token of the answer arrives."
    assert f"TTFT (time to first token) {definition}" in text_of("ttft-and-tpot.md")


def test_there_are_sixty_answerable_and_twenty_unanswerable_questions() -> None:
    assert (len(ANSWERABLE), len(UNANSWERABLE)) == (60, 20)


def test_ids_and_questions_are_unique() -> None:
    assert len({question["id"] for question in QUESTIONS}) == 80
    assert len({normalised(question["question"]) for question in QUESTIONS}) == 80


def test_questions_have_exactly_the_documented_fields() -> None:
    answerable_fields = {"id", "question", "answerable", "fact", "page", "answer"}
    assert [q["id"] for q in ANSWERABLE if set(q) != answerable_fields] == []
    assert [q["id"] for q in UNANSWERABLE if set(q) != {"id", "question", "answerable"}] == []


def test_each_page_has_two_or_three_questions() -> None:
    counts = Counter(question["page"] for question in ANSWERABLE)
    assert sorted(counts) == PAGE_NAMES
    assert {page: count for page, count in counts.items() if count not in (2, 3)} == {}


@pytest.mark.parametrize("question", ANSWERABLE, ids=[q["id"] for q in ANSWERABLE])
def test_fact_is_short_and_stands_within_one_section_of_its_page(question: dict[str, Any]) -> None:
    fact = normalised(question["fact"])
    assert 2 <= len(fact) <= 60
    assert any(fact in normalised(section) for section in sections_of(text_of(question["page"])))


@pytest.mark.parametrize("question", ANSWERABLE, ids=[q["id"] for q in ANSWERABLE])
def test_question_shares_no_five_words_in_a_row_with_its_page(question: dict[str, Any]) -> None:
    shared = five_word_runs(question["question"]) & five_word_runs(text_of(question["page"]))
    assert shared == set()
