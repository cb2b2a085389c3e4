"""What the UI process needs to know, read from its environment; defaults suit `python -m ui` beside a local API."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ui.errors import UISettingsError


@dataclass(frozen=True)
class UISettings:
    """Settings of the UI process; every field is an environment variable `RAGSTONE_…` named in `from_environment`."""

    api_url: str = "http://127.0.0.1:8080"
    host: str = "127.0.0.1"
    port: int = 7860
    data_dir: Path = Path("ragstone-data") / "ui"
    max_upload_bytes: int = 100 << 20

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "UISettings":
        """Read RAGSTONE_API_URL, RAGSTONE_UI_{HOST,PORT,DATA} and RAGSTONE_MAX_UPLOAD_BYTES; empty means default.

        Raises UISettingsError where a value is unusable.
        """
        default = cls()
        return cls(
            api_url=_url(environment.get("RAGSTONE_API_URL") or default.api_url),
            host=environment.get("RAGSTONE_UI_HOST") or default.host,
            port=_number(environment, "RAGSTONE_UI_PORT", default.port, 0, 65535),
            data_dir=Path(environment.get("RAGSTONE_UI_DATA") or default.data_dir).absolute(),
            max_upload_bytes=_number(environment, "RAGSTONE_MAX_UPLOAD_BYTES", default.max_upload_bytes, 1, 1 << 40),
        )


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UISettingsError(
            f"RAGSTONE_API_URL is {text!r}; it must be the API's address, such as http://127.0.0.1:8080."
        )
    return text.rstrip("/")


def _number(environment: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = environment.get(name) or str(default)
    if text.isdecimal() and least <= int(text) <= most:
        return int(text)
    raise UISettingsError(f"{name} is {text!r}; it must be a number from {least} to {most}.")
