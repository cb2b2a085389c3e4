"""What has come of an answer so far, written down while it comes: a server that is killed loses a second of it."""

import asyncio
import logging
from collections.abc import Callable

from app.open_turn import OpenTurn

logger = logging.getLogger(__name__)

KEEP_EVERY_S = 1.0


async def keep_progress(turn: OpenTurn, store: Callable[[OpenTurn], None]) -> None:
    """Has `store`, which may block, write the turn down after each KEEP_EVERY_S in which words came. To be cancelled.

    A write that is then under way goes on in its thread: `OpenTurn.storing` keeps it before the one of the turn's end.
    """
    num_kept = 0
    while True:
        await asyncio.sleep(KEEP_EVERY_S)
        num_pieces = len(turn.answer)
        if num_pieces == num_kept:
            continue
        try:
            await asyncio.to_thread(store, turn)
        except Exception as error:
            logger.warning("an answer could not be written down while it came: %s; at its end it is tried again", error)
            return
        num_kept = num_pieces
