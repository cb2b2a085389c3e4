"""Conversations: list and search, read, rename, delete and restore, export, and drop turns from a point on."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from app.conversation_export import as_markdown, file_stem
from app.errors import NotFoundError, RequestError
from app.history import require_conversation
from app.routes.access import CurrentUser
from app.routes.attachments import attachment
from app.routes.openai_schema import CheckedBody
from app.routes.turn_entry import TurnEntry
from app.services import Services

T = TypeVar("T")

MAX_TITLE_CHARS = 200
MAX_QUERY_CHARS = 500
MAX_INDEX = 2**31 - 1

SessionId = Annotated[str, Path(description="The conversation's name.", examples=["my-chat"])]
TurnIndex = Annotated[int, Path(ge=0, le=MAX_INDEX, description="The turn's place, from 0.")]


class ConversationEntry(BaseModel):
    """One line of the list; times are UTC. `snippet` is where the search hit, null where it hit the title alone."""

    model_config = ConfigDict(
        from_attributes=True,
        json_schema_extra={
            "examples": [
                {
                    "session_id": "my-chat",
                    "title": "What does TTFT measure?",
                    "num_turns": 2,
                    "created_at": "2026-11-30T12:00:00.000+00:00",
                    "updated_at": "2026-11-30T12:01:00.000+00:00",
                    "snippet": None,
                }
            ]
        },
    )

    session_id: str
    title: str
    num_turns: int
    created_at: str
    updated_at: str
    snippet: str | None = None


class ConversationList(BaseModel):
    conversations: Sequence[ConversationEntry]


class ConversationDetail(BaseModel):
    session_id: str
    title: str
    created_at: str
    updated_at: str
    turns: Sequence[TurnEntry]


class Renaming(CheckedBody):
    """A new title."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"title": "Latency"}]})

    title: str = Field(max_length=MAX_TITLE_CHARS, description="Shown in the list; on one line.")


def create_router(services: Services) -> APIRouter:
    """Routes under /api/v1/conversations."""
    router = APIRouter(prefix="/api/v1/conversations", tags=["conversations"])
    history = services.history

    @router.get("", response_model=ConversationList)
    async def list_conversations(
        user: CurrentUser,
        query: Annotated[
            str, Query(max_length=MAX_QUERY_CHARS, description="Words that a title, question or answer must hold.")
        ] = "",
        limit: Annotated[int | None, Query(ge=1, le=1000, description="Most entries (default: all).")] = None,
        offset: Annotated[int, Query(ge=0, le=MAX_INDEX, description="So many entries are passed over.")] = 0,
    ) -> dict[str, Any]:
        """The conversations, the one used last first."""
        found = await asyncio.to_thread(history.conversations, user, query=query, limit=limit, offset=offset)
        return {"conversations": [ConversationEntry.model_validate(entry) for entry in found]}

    # A conversation's name may hold slashes: what says more than the name comes first.
    @router.get(
        "/{session_id:path}/export",
        response_model=None,
        responses={200: {"content": {"text/markdown": {}, "application/json": {}}, "description": "The file."}},
    )
    async def export_conversation(
        user: CurrentUser,
        session_id: SessionId,
        format: Annotated[Literal["markdown", "json"], Query()] = "markdown",
    ) -> Response:
        """A conversation as a file: Markdown for people, JSON as `GET /api/v1/conversations/{session_id}` has it."""
        conversation = await asyncio.to_thread(require_conversation, history, user, session_id)
        # Asked first: an answer that ends meanwhile is complete in its turn, and none that is under way seems stopped.
        is_answering = services.locks.is_held((user, session_id))
        turns = await asyncio.to_thread(history.turns, user, session_id)
        stem = file_stem(conversation.title)
        if format == "json":
            detail = await _detail(user, session_id)
            return attachment(detail.model_dump_json(indent=2).encode(), f"{stem}.json", "application/json")
        text = as_markdown(conversation, turns, is_answering=is_answering).encode("utf-8", "replace")
        return attachment(text, f"{stem}.md", "text/markdown; charset=utf-8")

    @router.get("/{session_id:path}", response_model=ConversationDetail)
    async def read_conversation(user: CurrentUser, session_id: SessionId) -> ConversationDetail:
        """A conversation with all its turns. A turn that is being answered shows as interrupted until it ends.

        Its words so far are there within a second or so; a turn that stays without `finish_reason` was broken off by
        the end of the server, and can be continued.
        """
        return await _detail(user, session_id)

    @router.patch("/{session_id:path}", response_model=ConversationEntry)
    async def rename_conversation(user: CurrentUser, session_id: SessionId, body: Renaming) -> ConversationEntry:
        """Gives a conversation a title of one's own."""
        title = " ".join(body.title.split())
        if not title:
            raise RequestError("title is empty: give the conversation a name", field="title")
        await asyncio.to_thread(require_conversation, history, user, session_id)
        await asyncio.to_thread(history.rename, user, session_id, title)
        conversation = await asyncio.to_thread(require_conversation, history, user, session_id)
        return ConversationEntry.model_validate(conversation)

    @router.delete("/{session_id:path}/turns/{index}", status_code=204)
    async def drop_turns(user: CurrentUser, session_id: SessionId, index: TurnIndex) -> Response:
        """Drops a turn and all later ones, so that the question can be asked again."""
        await asyncio.to_thread(require_conversation, history, user, session_id)
        if not await _exclusively((user, session_id), history.truncate, user, session_id, index):
            raise NotFoundError(f"conversation {session_id!r} has no turn {index}", field="index")
        return Response(status_code=204)

    @router.delete("/{session_id:path}", status_code=204)
    async def delete_conversation(user: CurrentUser, session_id: SessionId) -> Response:
        """Drops a conversation, after the turn that is being answered. It can be restored for a day."""
        await asyncio.to_thread(require_conversation, history, user, session_id)
        await _exclusively((user, session_id), history.delete, user, session_id)
        return Response(status_code=204)

    @router.post("/{session_id:path}/restore", response_model=ConversationEntry)
    async def restore_conversation(user: CurrentUser, session_id: SessionId) -> ConversationEntry:
        """Brings a deleted conversation back, within a day and unless its name was used again."""
        if not await _exclusively((user, session_id), history.restore, user, session_id):
            raise NotFoundError(
                f"there is no deleted conversation {session_id!r}: it was not deleted, or more than a day ago, or its "
                "name has been used again",
                field="session_id",
            )
        conversation = await asyncio.to_thread(require_conversation, history, user, session_id)
        return ConversationEntry.model_validate(conversation)

    async def _detail(user: str, session_id: str) -> ConversationDetail:
        conversation = await asyncio.to_thread(require_conversation, history, user, session_id)
        turns = await asyncio.to_thread(history.turns, user, session_id)
        return ConversationDetail(
            session_id=conversation.session_id,
            title=conversation.title,
            created_at=conversation.created_at,
            updated_at=conversation.updated_at,
            turns=[TurnEntry.model_validate(turn) for turn in turns],
        )

    async def _exclusively(key: tuple[str, str], change: Callable[..., T], *arguments: Any) -> T:
        async with services.locks.hold(key):
            return await asyncio.to_thread(change, *arguments)

    return router
