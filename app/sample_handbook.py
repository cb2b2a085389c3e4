"""The sample handbook: pages that a fresh server knows, put in once for each version of them."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.principal import DEFAULT_USER
from retrieval.records import IngestResult

if TYPE_CHECKING:
    from retrieval import KnowledgeBase

logger = logging.getLogger(__name__)

HANDBOOK = Path(__file__).resolve().parent.parent / "data" / "handbook"
COLLECTION = "handbook"


def take_in(knowledge_base: "KnowledgeBase", data_dir: Path, tell: Callable[[str], None]) -> None:
    """Puts the pages in, once for each version of them: who deletes a page does not get it back. Blocks.

    `tell` is called with how far it is.
    """
    pages = sorted(path for path in HANDBOOK.iterdir() if path.is_file()) if HANDBOOK.is_dir() else []
    marker, version = data_dir / "handbook.sha256", _digest(pages)
    if not pages or (marker.is_file() and marker.read_text() == version):
        return
    done = 0

    def progress(result: IngestResult) -> None:
        nonlocal done
        done += 1
        tell(what := f"taking in the sample handbook, {done} of {len(pages)} pages")
        if done % 10 == 0:
            logger.info("%s", what)
        if result.status == "failed":
            logger.warning("%s was not taken in: %s", result.path, result.reason)

    tell(f"taking in the sample handbook, {len(pages)} pages")
    knowledge_base.ensure_collection(COLLECTION, owner=DEFAULT_USER, visibility="shared")
    results = knowledge_base.ingest_paths(
        pages, collection=COLLECTION, owner=DEFAULT_USER, progress=progress, relative_to=HANDBOOK
    )
    changed = sum(result.status in ("added", "updated") for result in results)
    logger.info("sample handbook: %d pages, %d new or changed", len(results), changed)
    marker.write_text(version)


def _digest(paths: Sequence[Path]) -> str:
    """SHA-256 over names and contents."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
