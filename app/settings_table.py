"""The table of all settings, as documentation: docs/settings.md is what `ragstone settings --markdown` prints."""

from pathlib import Path
from typing import get_args

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from app.setting_values import allowed_values, as_text
from app.settings import ALIASES, PREFIX, Settings

HEAD = """\
# Settings

Every setting is a variable in the environment and a line in `ragstone.toml` (or in the file that `RAGSTONE_CONFIG`
names); the most common ones are options of the commands too. An option wins over the environment, the environment over
the file, the file over the default. `ragstone settings` prints those in force. This page is what
`ragstone settings --markdown` prints.

| in the file | variable | default | values | what it is |
|---|---|---|---|---|
"""


def markdown_table() -> str:
    """The page."""
    rows = []
    for name, field in Settings.model_fields.items():
        shown = next((alias for alias, target in ALIASES.items() if target == name), name)
        cells = (
            f"`{shown}`",
            f"`{PREFIX}{shown.upper()}`",
            default_of(name, field),
            allowed_values(name, field) + (" (or none)" if type(None) in get_args(field.annotation) else ""),
            field.description or "",
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return HEAD + "\n".join(rows) + "\n"


def default_of(name: str, field: FieldInfo) -> str:
    """A setting's default as one would write it; long texts are left to the code."""
    if field.default is PydanticUndefined or field.default in (None, ()):
        return ""
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    text = str(field.default) if not isinstance(field.default, Path) else field.default.as_posix()
    return f"`{text}`" if 0 < len(text) < 60 else ("" if not text else "(a text)")


def in_force(settings: Settings) -> list[tuple[str, str]]:
    """Every setting with its value; keys are not shown."""
    return [
        (name, "(set)" if Settings.model_fields[name].repr is False else as_text(value))
        for name, value in settings
        if value is not None
    ]
