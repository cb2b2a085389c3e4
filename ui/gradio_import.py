"""Gradio's import, prepared: where it may write, what it may not ask the network, and without its slowest part.

Call `prepare` and then `import_gradio` before anything imports `gradio`; nothing else of the UI does so at start-up.
"""

import inspect
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def prepare(data_dir: Path) -> None:
    """Set what Gradio reads from the environment when it is imported: no telemetry, no look-ups, all files in ours."""
    for folder in ("tmp", "examples"):
        (data_dir / folder).mkdir(exist_ok=True)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(data_dir / "tmp")
    os.environ["GRADIO_EXAMPLES_CACHE"] = str(data_dir / "examples")
    os.environ["GRADIO_RUN_HISTORY"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Parts of an upload are spooled to the temporary folder before Gradio moves them to its own.
    tempfile.tempdir = str(data_dir / "tmp")


def import_gradio() -> None:
    """Import Gradio without letting it write a stub file beside each of its 81 components.

    The stubs are for editors. Making them takes more than half of the import, and writes into site-packages. Gradio
    skips a class whose source file it cannot find, so for that one module no file is found while it is imported.
    """
    find_file = inspect.getfile

    def find_no_file_for_stubs(thing: Any) -> str:
        if sys._getframe(1).f_globals.get("__name__") == "gradio.component_meta":
            raise OSError("no stub files")
        return find_file(thing)

    inspect.getfile = find_no_file_for_stubs  # type: ignore[assignment]
    try:
        import gradio  # noqa: F401
    finally:
        inspect.getfile = find_file
