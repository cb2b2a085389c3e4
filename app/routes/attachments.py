"""Files that a browser must save and never run: the headers of a download."""

from urllib.parse import quote

from starlette.responses import Response


def attachment(content: bytes, name: str, media_type: str) -> Response:
    """A response that is saved under `name`. RFC 6266 and RFC 8187: a plain name, and the whole one beside it."""
    plain = "".join(char if char.isascii() and (char.isalnum() or char in " ._-") else "_" for char in name)
    disposition = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
    headers = {
        "Content-Disposition": disposition,
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "private, no-store",
    }
    return Response(content, media_type=media_type, headers=headers)
