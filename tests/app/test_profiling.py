"""`ragstone profile` on the real model: a trace that a browser opens, and a table of what takes the time."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app import cli
from app.profiling import ProfileError, profile
from app.settings import Settings


def test_steps_and_their_parts_stand_in_the_trace_and_in_the_table(chat_model_path: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    command = ["profile", "What does TTFT measure?", "--steps", "5", "--out", str(trace)]
    options = ["--model", str(chat_model_path), "--device", "cpu", "--max-model-len", "512"]
    result = CliRunner().invoke(cli.cli, [*command, *options, "--data", str(tmp_path / "data")])
    assert result.exit_code == 0, result.output
    events = json.loads(trace.read_text())["traceEvents"]
    names = [event.get("name") for event in events if event.get("ph") == "X"]
    assert [name for name in names if str(name).startswith("step ")] == [f"step {number}" for number in range(5)]
    for part in ("schedule", "forward", "sample"):
        assert names.count(part) == 5, part
        assert part in result.stdout
    assert "5 steps over" in result.stdout


def test_a_place_that_is_none_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"there is no folder .*/no: make it, or name another place"):
        profile(Settings(model="none"), "hi", num_steps=1, trace=tmp_path / "no" / "trace.json")
    with pytest.raises(ProfileError, match="is a folder: name a file in it"):
        profile(Settings(model="none"), "hi", num_steps=1, trace=tmp_path)
