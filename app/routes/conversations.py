"""Conversations: list, read, delete, and drop turns from a point on."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastapi import APIRouter, Response
from pydantic import BaseModel

from app.answering import Grounding
from app.conversation import DEFAULT_USER, Source
from app.errors import NotFoundError
from app.history import require_conversation
from app.services import Services

T = TypeVar("T")


class ConversationEntry(BaseModel):
    """One line of the list; times are UTC."""

    session_id: str
    title: str
    num_turns: int
    created_at: str
    updated_at: str


class ConversationList(BaseModel):
    conversations: Sequence[ConversationEntry]


class TurnEntry(BaseModel):
    """A question and what came of it; `interrupted`: stopped or broken, so that `answer` is what was produced."""

    index: int
    question: str
    answer: str
    sources: Sequence[Source]
    interrupted: bool
    created_at: str
    grounding: Grounding | None = None


class ConversationDetail(BaseModel):
    session_id: str
    title: str
    turns: Sequence[TurnEntry]


def create_router(services: Services) -> APIRouter:
    """Routes under /api/v1/conversations."""
    router = APIRouter(prefix="/api/v1/conversations", tags=["conversations"])
    user = DEFAULT_USER

    @router.get("", response_model=ConversationList)
    async def list_conversations() -> dict[str, Any]:
        """All conversations, the one used last first."""
        return {
            "conversations": [
                ConversationEntry.model_validate(entry, from_attributes=True)
                for entry in await asyncio.to_thread(services.history.conversations, user)
            ]
        }

    @router.get("/{session_id:path}", response_model=ConversationDetail)
    async def read_conversation(session_id: str) -> dict[str, Any]:
        """A conversation with all its turns. A turn that is being answered shows as interrupted until it ends."""
        conversation = await asyncio.to_thread(require_conversation, services.history, user, session_id)
        turns = await asyncio.to_thread(services.history.turns, user, session_id)
        return {
            "session_id": conversation.session_id,
            "title": conversation.title,
            "turns": [TurnEntry.model_validate(turn, from_attributes=True) for turn in turns],
        }

    # Before the deletion of a whole conversation, whose name may hold slashes and would match this path as well.
    @router.delete("/{session_id:path}/turns/{index}", status_code=204)
    async def drop_turns(session_id: str, index: int) -> Response:
        """Drops a turn and all later ones, so that the question can be asked again."""
        await asyncio.to_thread(require_conversation, services.history, user, session_id)
        if not await _exclusively(session_id, services.history.truncate, user, session_id, index):
            raise NotFoundError(f"conversation {session_id!r} has no turn {index}", field="index")
        return Response(status_code=204)

    @router.delete("/{session_id:path}", status_code=204)
    async def delete_conversation(session_id: str) -> Response:
        """Drops a conversation, after the turn that is being answered."""
        await asyncio.to_thread(require_conversation, services.history, user, session_id)
        await _exclusively(session_id, services.history.delete, user, session_id)
        return Response(status_code=204)

    async def _exclusively(session_id: str, change: Callable[..., T], *arguments: Any) -> T:
        async with services.locks.hold((user, session_id)):
            return await asyncio.to_thread(change, *arguments)

    return router
