"""HTML of what stands around the chat: the list of conversations, and the state of the server."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from ui.icons import icon_button
from ui.markdown import text_html
from ui.records import NUM_LISTED_CONVERSATIONS, ConversationEntry, Health


def conversations_html(entries: Sequence[ConversationEntry], query: str = "", now: datetime | None = None) -> str:
    """The conversations in groups by age, each with a menu; of a search, where it hit."""
    if not entries:
        said = f"No conversation holds “{text_html(query)}”." if query else "Your conversations will be listed here."
        return f'<p class="empty">{said}</p>'
    now = now or datetime.now(UTC)
    groups: dict[str, list[str]] = {}
    for entry in entries:
        groups.setdefault(_age(entry.updated_at, now), []).append(_entry_html(entry))
    lists = (f'<h3>{label}</h3><ul aria-label="{label}">{"".join(items)}</ul>' for label, items in groups.items())
    is_cut = len(entries) >= NUM_LISTED_CONVERSATIONS
    return "".join(lists) + ('<p class="empty">Search to find older ones.</p>' if is_cut else "")


def _entry_html(entry: ConversationEntry) -> str:
    identity, title = text_html(entry.session_id), text_html(entry.title)
    snippet = f'<span class="snippet" dir="auto">{text_html(entry.snippet)}</span>' if entry.snippet else ""
    return (
        f'<li data-session="{identity}" data-title="{title}"><button type="button" class="entry" '
        f'data-act="open-conversation" title="{title}"><span class="title" dir="auto">{title}</span>{snippet}</button>'
        f"{icon_button('more', f'Menu of {title}', 'conversation-menu', 'aria-haspopup=menu')}</li>"
    )


def _age(updated_at: str, now: datetime) -> str:
    try:
        then = datetime.fromisoformat(updated_at)
    except ValueError:
        return "Earlier"
    days = (now.date() - (then if then.tzinfo else then.replace(tzinfo=UTC)).astimezone(now.tzinfo).date()).days
    if days <= 0:
        return "Today"
    if days == 1:
        return "Yesterday"
    return "The last 7 days" if timedelta(days=days) <= timedelta(days=7) else "Earlier"


def health_html(health: Health) -> str:
    """The state of the server as a small mark."""
    label = {"ready": "Ready", "starting": "Starting", "unhealthy": "Not well"}.get(health.status, "No connection")
    kind = health.status if health.status in ("ready", "starting") else "bad"
    return f'<span class="status {kind}" role="status"><span class="dot" aria-hidden="true"></span>{label}</span>'


def notice_html(health: Health) -> str:
    """What to say across the page while the server cannot answer; nothing when it can."""
    if health.is_ready:
        return ""
    headline = {
        "starting": "The server is starting. This page will be ready by itself.",
        "unhealthy": "The server is running but cannot answer at the moment.",
    }.get(health.status, "The server cannot be reached. This page will connect again by itself.")
    reason = f'<span class="reason">{text_html(health.reason)}</span>' if health.reason else ""
    kind = "starting" if health.status == "starting" else "bad"
    return f'<div class="notice {kind}" role="status"><strong>{headline}</strong>{reason}</div>'
