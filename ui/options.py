"""The options of one question, as a browser sends them. What they mean, and what is allowed, is the API's business."""

import json
from typing import Any

OPTIONS = ("model", "temperature", "top_p", "max_tokens", "memory", "num_passages", "retrieval", "collections")


def chat_options(given: Any) -> dict[str, Any]:
    """The options that a browser sends as JSON; keys that are no options, and what is no JSON object, are left out."""
    try:
        options = json.loads(given or "{}")
    except (TypeError, ValueError):
        return {}
    if not isinstance(options, dict):
        return {}
    return {name: options[name] for name in OPTIONS if options.get(name) is not None}
