"""What libraries put off until they are first used, done right after the start, beside the server that is ready."""

import importlib
from collections.abc import Iterable

from langchain_core.callbacks import AsyncCallbackManager
from starlette.routing import BaseRoute

from app.fixed_texts import texts_for

# Imported by the first answer.
LATE_MODULES = (
    "engine.tool_parser",
    "langchain_core.messages.block_translators.langchain_v0",
    "langchain_core.tracers.run_collector",
)


def warm_up(routes: Iterable[BaseRoute]) -> None:
    """Loads the modules and the model of languages that the first question needs. Blocks; harmless at any time.

    FastAPI builds the models of a router's routes when a path is first compared with them.
    """
    nowhere = {"type": "http", "method": "GET", "path": "/-", "root_path": "", "headers": []}
    for route in routes:
        route.matches(dict(nowhere))
    texts_for("What is this about?")
    AsyncCallbackManager.configure()
    for name in LATE_MODULES:
        importlib.import_module(name)
