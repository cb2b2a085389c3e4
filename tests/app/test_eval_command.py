"""`ragstone eval` as a command, with a real server."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app import cli
from app.errors import EvaluationError
from app.evaluation.asking import Server, checks_of
from app.evaluation.records import read_run
from tests.app.serving import RunningServer
from tests.app.test_evaluation import cases_file

REPOSITORY = Path(__file__).resolve().parents[2]


def test_questions_are_put_to_a_server_measured_reported_and_compared(server: RunningServer, tmp_path: Path) -> None:
    before = server.client.get("/api/v1/conversations").json()
    path = cases_file(
        tmp_path,
        {"id": "ttft", "question": "What does TTFT mean?", "expected": "time to first token", "source": "ttft.md"},
        {
            "id": "gears",
            "question": "What moves the chain of a bicycle?",
            "answer": "A derailleur",
            "source": "Bicycles",
        },
        {"id": "long", "question": "x" * (server.services.settings.max_input_chars + 1), "source": "moon.md"},
    )
    arguments = ["eval", str(path), "--url", server.url, "--label", "first", "--out", str(tmp_path / "one")]
    result = CliRunner().invoke(cli.cli, arguments)
    assert result.exit_code == 1, result.output
    assert "sources that this server has no document of: moon.md\n" in result.stderr
    assert "1 of 3 questions got no answer" in result.stderr
    assert "3 cases of" in result.stdout

    run = read_run(tmp_path / "one.json")
    assert run.server.model == server.services.model_name
    assert run.server.num_documents == 3
    assert run.figures["source_at_1"].value == 1.0
    assert run.figures["source_at_1"].cases == 2
    ttft, gears, long = run.results
    assert ttft.scores["answer_in_passages"] == gears.scores["answer_in_passages"] == 1.0
    assert ttft.reply.passages[0].source == "ttft.md"
    assert gears.reply.answer != ""
    assert "HTTP 413" in (long.reply.error or "")
    assert (tmp_path / "one.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert server.client.get("/api/v1/conversations").json() == before

    arguments = [
        "eval",
        "--compare",
        str(tmp_path / "one.json"),
        str(tmp_path / "one.json"),
        "--out",
        str(tmp_path / "both"),
    ]
    result = CliRunner().invoke(cli.cli, arguments)
    assert result.exit_code == 0, result.output
    assert "Wrong in B only: 0" in result.stdout
    assert json.loads((tmp_path / "both.json").read_text())["cases"] == 2


def ragstone(*arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "app", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_a_bad_file_ends_with_2_and_without_a_server(tmp_path: Path) -> None:
    result = ragstone("eval", str(cases_file(tmp_path, "{")))
    assert (result.returncode, result.stdout) == (2, "")
    assert "error: " in result.stderr
    assert "line 1: not JSON" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [[], ["cases.jsonl", "--compare", "a.json", "b.json"]])
def test_either_a_file_or_two_runs_must_be_given(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.cli, ["eval", *arguments])
    assert result.exit_code == 2
    assert "give either FILE.jsonl to ask" in result.stderr


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:9", "cannot be asked .does not answer.: start it with `ragstone serve`"),
        ("ftp://x", "no address"),
        ("http://127.0.0.1:port", "no address"),
    ],
)
def test_without_a_server_it_says_how_to_start_one(url: str, said: str) -> None:
    with pytest.raises(EvaluationError, match=said), Server(url):
        pass


@pytest.mark.parametrize(
    ("grounding", "refused", "supported"),
    [
        (None, None, None),
        ({"mode": "strict", "state": "not_found", "sentences": []}, True, None),
        ({"mode": "strict", "state": "answered", "sentences": [{"supported": True}]}, False, 1.0),
        ({"mode": "mark", "state": "not_found", "sentences": [{"supported": False}]}, None, 0.0),
        ({"mode": "strict", "state": "unchecked", "sentences": []}, None, None),
        ({"mode": "off", "state": "unchecked", "sentences": []}, None, None),
    ],
)
def test_what_a_server_says_of_its_own_answer_is_read(
    grounding: dict[str, Any] | None, refused: bool | None, supported: float | None
) -> None:
    checks = checks_of(grounding)
    assert (checks.get("refused"), checks.get("supported")) == (refused, supported)
