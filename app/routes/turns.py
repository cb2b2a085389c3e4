"""One turn by its id, and what supports each sentence of its answer."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path

from app.answering import Grounding
from app.errors import NotFoundError
from app.history import Turn
from app.routes.access import CurrentUser
from app.routes.turn_entry import TurnEntry
from app.services import Services

TurnId = Annotated[str, Path(max_length=200, examples=["5f0c3a1e8b7d4c6f9a2b1c0d3e4f5a6b"])]


class NamedTurn(TurnEntry):
    """A turn, with the name of its conversation."""

    session_id: str


class NotCheckedError(NotFoundError):
    """An answer that was not held against sources."""

    code = "not_checked"


def create_router(services: Services) -> APIRouter:
    """Routes under /api/v1/turns."""
    router = APIRouter(prefix="/api/v1/turns", tags=["conversations"])

    async def find(user: str, turn_id: str) -> tuple[str, Turn]:
        found = await asyncio.to_thread(services.history.turn, user, turn_id)
        if found is None:
            raise NotFoundError(f"there is no turn {turn_id!r}; replies and conversations hold ids", field="turn_id")
        return found

    @router.get("/{turn_id}", response_model=NamedTurn)
    async def read_turn(user: CurrentUser, turn_id: TurnId) -> NamedTurn:
        """A turn, whatever its conversation."""
        session_id, turn = await find(user, turn_id)
        return NamedTurn(session_id=session_id, **TurnEntry.model_validate(turn).model_dump())

    @router.get("/{turn_id}/support", response_model=Grounding)
    async def support(user: CurrentUser, turn_id: TurnId) -> dict[str, object]:
        """Sentence by sentence: supported or not, by which source, by which of its sentences, and else why not."""
        _, turn = await find(user, turn_id)
        if turn.grounding is None:
            raise NotCheckedError(
                f"the answer of turn {turn_id!r} was not checked: it was stopped early, or checks are off (grounding)"
            )
        return turn.grounding

    return router
