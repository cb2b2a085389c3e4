"""Source code: its text as written, a block a declaration, under the names of the declarations around it."""

import re

from retrieval.loaders.document import LoadedDocument, TextBuilder
from retrieval.loaders.encoding import decode

CODE_EXTENSIONS = (
    ".py", ".pyi", ".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx", ".java", ".kt", ".kts", ".scala", ".groovy", ".c",
    ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp", ".cu", ".cuh", ".cs", ".fs", ".go", ".rs", ".rb", ".php", ".pl",
    ".pm", ".swift", ".m", ".mm", ".dart", ".lua", ".r", ".jl", ".hs", ".ml", ".ex", ".exs", ".erl", ".clj", ".sh",
    ".bash", ".zsh", ".ps1", ".bat", ".sql", ".css", ".scss", ".vue", ".proto", ".tf", ".cmake", ".yaml", ".yml",
    ".toml", ".ini", ".cfg", ".conf", ".properties",
)  # fmt: skip

# A declaration at the start of a line: words before it (public, async, export), the keyword, the name.
_DECLARATION = re.compile(
    r"([ \t]*)(?:@?[A-Za-z_]+(?:\([\w: ]*\))?[ \t]+){0,5}?"
    r"(class|interface|struct|enum|trait|impl|protocol|object|module|namespace|def|defmodule|func|function|fn|fun|sub|proc)"
    r"[ \t]+(?:\([^)\n]{0,80}\)[ \t]*)?([A-Za-z_$][\w$.:]*)"
)
_COMMENT = re.compile(r"[ \t]*(#|//|/\*|\*|--|;|%|\"\"\"|''')")


def load_code(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads source code and settings files of any common encoding. The title is the file's name. Raises LoadError."""
    builder = TextBuilder()
    path: list[tuple[int, str]] = []
    lines: list[str] = []

    def close() -> None:
        builder.add("\n".join(lines), "code", tuple(name for _, name in path))
        lines.clear()

    for line in decode(data).split("\n"):
        declared = None if _COMMENT.match(line) else _DECLARATION.match(line)
        if declared is not None:
            # What stands right above a declaration (comment, decorator) belongs to it.
            above = _leading(lines)
            del lines[len(lines) - len(above) :]
            close()
            indent = len(declared[1].expandtabs(4))
            while path and path[-1][0] >= indent:
                path.pop()
            path.append((indent, f"{declared[2]} {declared[3].rstrip(':.')}"))
            lines += above
        lines.append(line)
    close()
    return builder.build(fallback_title)


def _leading(lines: list[str]) -> list[str]:
    """The comments and decorators at the end of `lines`, down to the last blank or other line."""
    start = len(lines)
    while start and (_COMMENT.match(lines[start - 1]) or lines[start - 1].lstrip().startswith(("@", "[", "#["))):
        start -= 1
    return lines[start:]
