"""The path of a request as our routes know it: without the prefix under which a reverse proxy publishes us."""

from starlette.types import Scope


def route_path(scope: Scope) -> str:
    """The path that routes are matched with, whether or not the proxy has taken the prefix (`root_path`) off."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "").rstrip("/")
    return path[len(prefix) :] if prefix and path.startswith(f"{prefix}/") else path
