"""The page's icons, drawn here: lines on a grid of 24, in the colour of the text around them."""

_PATHS = {
    "copy": '<rect x="9" y="9" width="11" height="11" rx="2"/><path d="M5 15V6a2 2 0 0 1 2-2h8"/>',
    "retry": '<path d="M20 11a8 8 0 1 0-2.3 6.3"/><path d="M20 5v6h-6"/>',
    "edit": '<path d="M4 20h4L19 9l-4-4L4 16z"/><path d="m13 7 4 4"/>',
    "up": '<path d="M7 11v9H4v-9zM7 11l4-8a2.5 2.5 0 0 1 2.4 3L13 9h5.5a2 2 0 0 1 2 2.4l-1.3 7A2 2 0 0 1 17.2 20H7"/>',
    "down": '<path d="M7 13V4H4v9zM7 13l4 8a2.5 2.5 0 0 0 2.4-3L13 15h5.5a2 2 0 0 0 2-2.4l-1.3-7A2 2 0 0 0 17.2 4H7"/>',
    "go_on": '<path d="M5 5v14l8-7zM16 5v14"/>',
    "attach": '<path d="m20 11-8.5 8.5a5 5 0 0 1-7-7L13 4a3.3 3.3 0 0 1 5 5l-8.5 8.5a1.7 1.7 0 0 1-2.4-2.4L14.5 7"/>',
    "lock": '<rect x="5" y="11" width="14" height="9" rx="2"/><path d="M8 11V8a4 4 0 0 1 8 0v3"/>',
    "newest": '<path d="M12 5v14M6 13l6 6 6-6"/>',
    "open": '<path d="M14 4h6v6M20 4l-9 9M18 14v5a1 1 0 0 1-1 1H5a1 1 0 0 1-1-1V7a1 1 0 0 1 1-1h5"/>',
    "more": '<circle cx="5" cy="12" r="1.2"/><circle cx="12" cy="12" r="1.2"/><circle cx="19" cy="12" r="1.2"/>',
    "older": '<path d="M12 20V6M6 11l6-6 6 6"/>',
    "download": '<path d="M12 4v11M7 11l5 5 5-5M5 20h14"/>',
    "delete": '<path d="M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13M10 11v5M14 11v5"/>',
    "upload": '<path d="M12 16V5M7 9l5-5 5 5M5 20h14"/>',
    "document": '<path d="M6 3h8l4 4v14H6zM14 3v4h4M9 12h6M9 16h6"/>',
    "search": '<circle cx="11" cy="11" r="6.5"/><path d="m16 16 4.5 4.5"/>',
    "none": '<circle cx="12" cy="12" r="8.5"/><path d="M12 8v5M12 16v.2"/>',
    "previous": '<path d="m14 6-6 6 6 6"/>',
    "next": '<path d="m10 6 6 6-6 6"/>',
    "close": '<path d="m6 6 12 12M18 6 6 18"/>',
    "menu": '<path d="M4 7h16M4 12h16M4 17h16"/>',
    "plus": '<path d="M12 5v14M5 12h14"/>',
    "settings": '<path d="M4 7h9M17 7h3M4 17h3M11 17h9"/><circle cx="15" cy="7" r="2"/><circle cx="9" cy="17" r="2"/>',
    "status": '<path d="M3 13h4l3-8 4 14 3-6h4"/>',
    "chat": '<path d="M5 5h14a1 1 0 0 1 1 1v9a1 1 0 0 1-1 1h-7l-5 4v-4H5a1 1 0 0 1-1-1V6a1 1 0 0 1 1-1z"/>',
    "key": '<circle cx="8" cy="14" r="4"/><path d="m11 11 8-8M16 6l3 3"/>',
}


def icon(name: str) -> str:
    """The icon as SVG; it says nothing to screen readers, so that its button needs a name of its own."""
    return (
        '<svg class="icon" viewBox="0 0 24 24" width="18" height="18" fill="none" stroke="currentColor" '
        'stroke-width="1.7" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" focusable="false">'
        f"{_PATHS[name]}</svg>"
    )


def icon_button(name: str, label: str, act: str, extra: str = "") -> str:
    """A button that shows an icon only. `act` names what `ui/static` does on a press; `label` is plain HTML."""
    return (
        f'<button type="button" class="icon-button" data-act="{act}" aria-label="{label}" title="{label}" {extra}>'
        f"{icon(name)}</button>"
    )
