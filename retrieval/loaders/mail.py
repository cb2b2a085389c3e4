"""EML: one message: who, to whom, when and what about, then its text. Attachments are named, not read."""

import email
import email.policy
from email.message import MIMEPart

from retrieval.loaders.archive import reading
from retrieval.loaders.document import LoadedDocument, TextBuilder
from retrieval.loaders.encoding import clean, decode, decode_as
from retrieval.loaders.html import html_document
from retrieval.loaders.text import add_paragraphs

_SHOWN = ("From", "To", "Cc", "Date")


def load_eml(data: bytes, fallback_title: str) -> LoadedDocument:
    """Reads a message; its text where it has one, else its HTML. Title: the subject. Raises LoadError."""
    with reading("an e-mail message (.eml)"):
        message = email.message_from_bytes(data, policy=email.policy.default)
        head = {name: clean(str(message[name])).strip() for name in _SHOWN if message[name]}
        subject = " ".join(clean(str(message["Subject"] or "")).split())
        body = message.get_body(("plain", "html"))
        names = [clean(part.get_filename() or "") for part in message.iter_attachments()]
        if not head and not subject:
            decode(data)  # a binary file renamed says so
    title = subject or fallback_title
    builder = TextBuilder()
    builder.add("\n".join(f"{name}: {value}" for name, value in head.items()), "prose", (title,))
    if body is not None:
        text = _body_text(body)
        if body.get_content_subtype() == "html":
            text = html_document(text, title).text if text.strip() else ""
        add_paragraphs(builder, text, (title,))
    builder.add("\n".join(f"Attachment: {name}" for name in names if name), "prose", (title,))
    return builder.build(title, metadata={name.lower(): value for name, value in head.items()})


def _body_text(body: MIMEPart) -> str:
    """The part's text in its declared encoding where that fits the bytes, else in the one that they look like."""
    payload = body.get_payload(decode=True)
    if not isinstance(payload, bytes):
        return ""
    declared = decode_as(payload, body.get_content_charset() or "utf-8")
    return declared if declared is not None else decode(payload)
