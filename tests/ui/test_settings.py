"""Settings of the UI process: defaults, and one sentence for what cannot be used."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ui.errors import UISettingsError
from ui.settings import UISettings


def test_environment_is_read_and_empty_means_default(tmp_path: Path) -> None:
    settings = UISettings.from_environment(
        {"RAGSTONE_API_URL": "http://api:8080/", "RAGSTONE_UI_HOST": "", "RAGSTONE_UI_DATA": str(tmp_path)}
    )
    assert settings == UISettings("http://api:8080", "127.0.0.1", 7860, tmp_path, 100 << 20)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RAGSTONE_API_URL", "localhost:8080"),
        ("RAGSTONE_UI_PORT", "70000"),
        ("RAGSTONE_UI_PORT", "x"),
        ("RAGSTONE_MAX_UPLOAD_BYTES", "0"),
    ],
)
def test_unusable_value_is_named(name: str, value: str) -> None:
    with pytest.raises(UISettingsError, match=rf"^{name} is '{value}'; it must be"):
        UISettings.from_environment({name: value})


def run_ui(**environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "ui"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_ui(RAGSTONE_UI_PORT=str(port), RAGSTONE_UI_DATA=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "RAGSTONE_UI_PORT" in done.stderr


def test_data_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run_ui(RAGSTONE_UI_PORT="0", RAGSTONE_UI_DATA=str(tmp_path / "file" / "ui"))
    assert done.returncode == 2
    assert f"RAGSTONE_UI_DATA: cannot write to {tmp_path / 'file' / 'ui'}" in done.stderr
    assert done.stderr.count("\n") == 1
