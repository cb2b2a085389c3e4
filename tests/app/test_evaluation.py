"""Evaluation without a server: cases from a file, measures of replies, reports, and runs compared."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from app.errors import EvaluationError, EvaluationFileError
from app.evaluation import html_report, text_report
from app.evaluation.cases import read_cases
from app.evaluation.comparison import compare
from app.evaluation.records import Case, FoundPassage, Reply, Result, Run, ServerInfo, read_run
from app.evaluation.running import Output
from app.evaluation.scoring import document_names, figures, folded_name, is_refusal, score
from retrieval.metrics import mean_interval, proportion

# ── cases ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def cases_file(folder: Path, *lines: Any) -> Path:
    path = folder / "cases.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def test_cases_are_read_with_every_spelling_of_their_fields(tmp_path: Path) -> None:
    file = read_cases(
        cases_file(
            tmp_path,
            {"id": 7, "question": " How many? ", "answer": [132, "a hundred"], "source": "gpu.md"},
            "",
            {"question": "U+2028 \u2028 inside?", "fact": "3.50", "page": ["a.md", "b.md"], "answer": None},
            '{"question": "Why?", "expected": 3.50, "answerable": true}\r',
            {"question": "Who?", "answerable": False, "id": "last"},
        )
    )
    assert file.cases == (
        Case(id="7", line=1, question="How many?", answers=("132", "a hundred"), sources=("gpu.md",)),
        Case(id="3", line=3, question="U+2028 \u2028 inside?", expected=("3.50",), sources=("a.md", "b.md")),
        Case(id="4", line=4, question="Why?", expected=("3.50",)),
        Case(id="last", line=5, question="Who?", answerable=False),
    )
    assert file.warnings == ()


def test_a_byte_order_mark_is_no_fault_and_unknown_fields_are_named(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"question": "Q", "source": "a.md", "expectd": "x"}\n')
    assert read_cases(path).warnings == (
        'the field "expectd" of 1 cases is not used; did you mean expected? '
        "(fields: question, answer, expected, source, answerable, id, rating)",
    )


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"question": "Q"', "line 2: not JSON, Expecting ',' delimiter at column 17: write one whole object on each"),
        ("[1, 2]", "line 2: a list, not an object such as {"),
        ("question,answer", "line 2: not JSON, Expecting value at column 1"),
        ("[" * 100_000, "line 2: nested too deeply"),
        ({"answer": "A"}, 'line 2: question is missing; it has "answer"'),
        ({}, "line 2: question is missing; it has no field with a value"),
        ({"question": ["Q"], "answer": "A"}, 'line 2: question is ["Q"]: give a text that is not empty'),
        ({"question": "Q", "answer": " "}, 'line 2: answer is " ": give a text or a list of texts, none of them empty'),
        ({"question": "Q", "expected": []}, "line 2: expected is an empty list"),
        ({"question": "Q", "source": ["a", {"b": 1}]}, 'line 2: source is {"b": "1"}: give a text or a list of texts'),
        ({"question": "Q", "answerable": "no"}, "line 2: answerable is 'no': give true or false"),
        ({"question": "Q", "anwser": "A"}, 'line 2: nothing to measure: it has "question", "anwser"; give an answer,'),
        ({"question": "Q", "fact": "F", "expected": "E"}, "line 2: expected is given twice, once by another name"),
        ({"question": "Q \ud83d", "answer": "A"}, "line 2: question holds half a surrogate pair"),
        ({"question": "Q", "answer": "A", "id": "1"}, "line 2: the id '1' is that of line 1 too: give each its own"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_what_is_allowed(tmp_path: Path, line: Any, fault: str) -> None:
    path = cases_file(tmp_path, {"question": "Q", "answer": "A"}, line)
    with pytest.raises(EvaluationFileError) as error:
        read_cases(path)
    assert error.value.message.startswith(f"{path}:\n  {fault}")
    assert error.value.exit_code == 2


def test_all_faults_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    path = cases_file(tmp_path, *[{"question": "Q"}] * 12)
    with pytest.raises(EvaluationFileError) as error:
        read_cases(path)
    lines = error.value.message.splitlines()
    assert [line.split(":")[0] for line in lines[1:11]] == [f"  line {number}" for number in range(1, 11)]
    assert lines[11:] == ["  and 2 more"]


@pytest.mark.parametrize(
    ("data", "fault"),
    [(b"", "there is no line with a case"), (b"\n\xff\xfe\n", "line 2: not UTF-8 at byte 0: save the file as UTF-8")],
)
def test_a_file_that_holds_no_text_is_refused(tmp_path: Path, data: bytes, fault: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_bytes(data)
    with pytest.raises(EvaluationFileError, match=fault):
        read_cases(path)
    with pytest.raises(EvaluationFileError, match="cannot be read: No such file"):
        read_cases(tmp_path / "other.jsonl")


# ── measures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def found(text: str, source: str = "b.md", title: str = "B", page: int | None = None) -> FoundPassage:
    return FoundPassage(
        n=4, document_id=source, title=title, source=source, page=page, heading=None, text=text, score=0.5
    )


CASE = Case(id="1", line=1, question="When?", answers=("in 1919",), expected=("1919",), sources=("a.md",))
PASSAGES = (found("other"), found("It was 1919.", "docs/A.md", "A"), found("more", "docs/A.md", "A"))


def test_a_right_reply_has_its_measures_and_nothing_wrong() -> None:
    result = score(CASE, Reply(answer="It was in 1919.", passages=PASSAGES))
    assert result.scores == {
        "source_at_1": 0.0,
        "source_at_3": 1.0,
        "source_found": 1.0,
        "source_ndcg_at_10": pytest.approx(0.63093, abs=1e-5),  # 1 / log2(3)
        "answer_in_passages": 1.0,
        "answered": 1.0,
        "contains": 1.0,
        "exact_match": 0.0,
        "f1": pytest.approx(2 * 2 / (4 + 2)),
    }
    assert result.failures == ()


def test_references_to_passages_are_no_part_of_an_answer() -> None:
    answered = Case(id="1", line=1, question="?", answers=("a[7] in 1919",))
    reply = Reply(answer="a[7] in 1919 [4]. [?]", passages=(found("It was 1919."),))
    assert score(answered, reply).scores["exact_match"] == 1.0


@pytest.mark.parametrize(
    ("case", "reply", "failures"),
    [
        (
            CASE,
            Reply(answer="1920", passages=PASSAGES),
            ["the answer does not hold the expected text; the passages hold it"],
        ),
        (
            CASE,
            Reply(answer="1920", passages=PASSAGES[:1]),
            [
                "the source is not among the passages",
                "the answer does not hold the expected text; nor do the passages hold it",
            ],
        ),
        (
            CASE,
            Reply(answer="The passages do not say. 1919?", passages=PASSAGES),
            ["refused, though the documents should answer it"],
        ),
        # A server that knows whether it refused is believed: this may be a quotation.
        (CASE, Reply(answer="The passages do not say. 1919?", passages=PASSAGES, refused=False), []),
        (CASE, Reply(error="HTTP 500"), ["no answer: HTTP 500"]),
        (
            Case(id="1", line=1, question="?", answerable=False, answers=("nobody knows",)),
            Reply(answer="In 1919."),
            ["answered, though the documents should not answer it"],
        ),
        (Case(id="1", line=1, question="?", answerable=False), Reply(answer="Not here.", refused=True), []),
        # An accepted answer need not be given word for word; an expected fact must.
        (Case(id="1", line=1, question="?", answers=("the big red dog",)), Reply(answer="red big dog"), []),
    ],
)
def test_what_is_wrong_is_said_in_words(case: Case, reply: Reply, failures: list[str]) -> None:
    assert list(score(case, reply).failures) == failures


@pytest.mark.parametrize(
    ("name", "is_meant"),
    [
        ("The Guide", True),
        ("the guide ", True),
        ("docs/en/Guide.v2.PDF", True),
        ("en\\guide.v2.pdf", True),
        ("./docs/en/guide.v2.pdf", True),
        ("guide.v2.pdf", True),
        ("guide.v2", True),
        ("uide.v2.pdf", False),
        ("guide", False),
        ("docs", False),
    ],
)
def test_a_source_may_be_named_by_title_path_or_file_name(name: str, is_meant: bool) -> None:
    assert (folded_name(name) in document_names("The Guide", "docs/en/guide.v2.pdf")) is is_meant


def test_names_of_documents_fold_accents_and_an_address_is_one_too() -> None:
    assert folded_name("Über.md") in document_names("", "U\u0308ber.md")
    assert folded_name("https://example.org/a/B.html") in document_names("B", "https://example.org/a/b.html")
    assert "" not in document_names("", "")


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        ("That is not mentioned.", True),
        ("The passages do not mention the bandwidth of the MI300X.", True),
        ("I don’t know.", True),
        ("There is no information about that.", True),
        ("It is not specified.", True),
        (" ", True),
        ("The H100 has 132 multiprocessors.", False),
        ("Prefill is not memory-bound.", False),
        ("No, caches are paged.", False),
    ],
)
def test_refusals_are_known_by_their_words(answer: str, refused: bool) -> None:
    assert is_refusal(answer) is refused


def test_figures_are_over_the_cases_they_apply_to_with_their_intervals() -> None:
    right, wrong = Reply(answer="1919", passages=PASSAGES), Reply(answer="1920", passages=PASSAGES)
    only_source = Case(id="2", line=2, question="?", sources=("b.md",))
    results = [score(CASE, right), score(CASE, wrong), score(only_source, right), score(CASE, Reply(error="x"))]
    measured = figures(results)
    assert measured["source_at_1"].model_dump() == {**proportion(1, 3).__dict__, "cases": 3}
    assert measured["contains"].model_dump() == {**proportion(1, 2).__dict__, "cases": 2}
    assert measured["f1"].model_dump() == {**mean_interval([2 / 3, 0.0]).__dict__, "cases": 2}
    assert "refused" not in measured


# ── runs, reports and comparisons ────────────────────────────────────────────────────────────────────────────────────


def run_of(*results: Result, label: str = "run") -> Run:
    return Run(
        label=label,
        file="cases.jsonl",
        started_at="2026-01-02T03:04:05Z",
        parallel=1,
        server=ServerInfo(url="http://127.0.0.1:1", model="m", num_documents=3),
        figures=figures(results),
        results=results,
    )


def case(number: int, **fields: Any) -> Case:
    return Case(id=str(number), line=number, question=f"Question {number}?", **{"expected": ("1919",), **fields})


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    run = run_of(score(CASE, Reply(answer="1919 年", passages=PASSAGES)))
    output = Output(tmp_path / "new" / "run.v2.json")
    output.write(run.model_dump_json(), "<p>")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["run.v2.html", "run.v2.json"]
    assert read_run(output.json) == run


@pytest.mark.parametrize(
    ("text", "said"), [("{}", "label is missing"), ("no", "Invalid JSON"), ('{"kind": "x"}', "kind must be")]
)
def test_a_file_that_is_no_run_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(EvaluationFileError, match=said):
        read_run(tmp_path / "run.json")
    with pytest.raises(EvaluationFileError, match="cannot be read: No such file"):
        read_run(tmp_path / "other.json")


def test_a_place_that_cannot_be_written_is_known_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EvaluationError, match=r"cannot be written .*name another place with --out"):
        Output(tmp_path / "file" / "run")
    Output(tmp_path / "run")
    assert not (tmp_path / "run.json").exists()


class Page(HTMLParser):
    """Names of the elements of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        assert not {"src", "href", "onload", "onerror"} & dict(attrs).keys()

    def handle_data(self, data: str) -> None:
        self.text += data


EVIL = '</title></style><script>alert(1)</script><img src=x onerror=alert(1)> & "quotes" \x1b[31m'


def test_reports_show_what_was_found_instead_and_no_text_acts_in_them() -> None:
    evil = score(
        Case(id=EVIL, line=1, question=EVIL, expected=(EVIL,), sources=(EVIL,)),
        Reply(answer=EVIL[::-1], passages=(found(EVIL, page=3),)),
    )
    page = Page(html_report.report(run_of(evil, score(CASE, Reply(answer="1919", passages=PASSAGES)), label=EVIL)))
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert page.tags.count("svg") == 3
    assert page.tags.count("details") == 2
    assert f"{EVIL}: {EVIL}" in page.text
    assert "the source is not among the passages" in page.text
    assert "b.md, page 3" in page.text

    text = text_report.report(run_of(evil))
    assert "\x1b" not in text
    assert "1 of 1 cases have something wrong:" in text
    assert "found 1   b.md, page 3: </title>" in text


def test_a_run_without_any_answer_is_reported_too() -> None:
    run = run_of(score(CASE, Reply(error="HTTP 503: busy")))
    assert run.figures == {}
    assert run.num_unanswered == 1
    assert "no answer: HTTP 503: busy" in text_report.report(run)
    assert "no answer: HTTP 503: busy" in Page(html_report.report(run)).text


def test_two_runs_are_compared_over_the_cases_that_both_answered() -> None:
    right, wrong, none = Reply(answer="1919"), Reply(answer="1920"), Reply(error="x")
    first = run_of(*(score(case(n), reply) for n, reply in enumerate([right, wrong, wrong, right, right], 1)))
    second = run_of(
        score(case(1), wrong),
        score(case(2), right),
        score(case(3), wrong),
        score(case(4), none),
        score(case(5, expected=("2020",)), right),  # another case under the same id
        score(case(6), right),
        label="new",
    )
    comparison = compare(first, second)
    assert len(comparison.pairs) == 3
    assert comparison.num_unpaired == 3
    assert [before.case.id for before, _ in comparison.broken] == ["1"]
    assert [before.case.id for before, _ in comparison.mended] == ["2"]
    assert comparison.num_both_wrong == 1
    contains = next(row for row in comparison.differences if row.measure.name == "contains")
    assert (contains.first, contains.second, contains.cases) == (1 / 3, 1 / 3, 3)
    assert contains.change == mean_interval([-1.0, 1.0, 0.0])
    assert not contains.is_clear
    text = text_report.comparison_report(comparison)
    assert "3 cases in both; 3 left out, not answered in both" in text
    assert "Wrong in B only: 1\n  1  Question 1?\n    A  1919\n    B  1920  (the answer does not hold" in text
    page = Page(html_report.comparison_report(comparison))
    assert page.tags.count("details") == 2
    assert json.loads(comparison.as_json())["wrong_in_second_only"] == ["1"]


def test_a_clear_difference_is_called_so() -> None:
    first = run_of(*(score(case(number), Reply(answer="1920")) for number in range(1, 9)))
    second = run_of(*(score(case(number), Reply(answer="1919")) for number in range(1, 9)))
    row = next(row for row in compare(first, second).differences if row.measure.name == "contains")
    assert row.is_clear
    assert (row.change.value, row.change.low, row.change.high) == (1.0, 1.0, 1.0)


def test_runs_of_different_files_are_not_compared() -> None:
    with pytest.raises(EvaluationFileError, match="no answered case in common"):
        compare(run_of(score(case(1), Reply(answer="x"))), run_of(score(case(2), Reply(answer="x"))))
