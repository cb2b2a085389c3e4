"""Collections of documents: list, create, delete."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from app.errors import ConflictError, NotFoundError
from app.routes.access import CurrentUser
from app.routes.openai_schema import CheckedBody
from app.services import Services

MAX_NAME_CHARS = 200


class CollectionEntry(BaseModel):
    """A collection that the user may search; `is_own`: the user may change it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"name": "handbook", "visibility": "shared", "is_own": True, "num_documents": 20, "num_chunks": 312}
            ]
        }
    )

    name: str
    visibility: str
    is_own: bool
    num_documents: int
    num_chunks: int


class CollectionList(BaseModel):
    collections: Sequence[CollectionEntry]


class NewCollection(CheckedBody):
    """A collection to create; it is private."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"name": "contracts"}]})

    name: str = Field(max_length=MAX_NAME_CHARS, description="1 to 200 printable characters.")


def create_router(services: Services) -> APIRouter:
    """Routes under /api/v1/collections."""
    router = APIRouter(prefix="/api/v1/collections", tags=["documents"])

    @router.get("", response_model=CollectionList)
    async def list_collections(user: CurrentUser) -> dict[str, Any]:
        """The collections that may be searched: one's own, and shared ones."""
        return {"collections": await _entries(services, user)}

    @router.post("", response_model=CollectionEntry, status_code=201)
    async def create_collection(user: CurrentUser, body: NewCollection) -> CollectionEntry:
        """Creates a private collection. Uploads into a collection create it too, and say so."""
        name = body.name.strip()
        if not await asyncio.to_thread(services.knowledge_base.create_collection, name, owner=user):
            raise ConflictError(f"there is a collection {name!r} already: use it, or choose another name", field="name")
        return next(entry for entry in await _entries(services, user) if entry.is_own and entry.name == name)

    # A name may hold slashes.
    @router.delete("/{name:path}", status_code=204)
    async def delete_collection(
        user: CurrentUser, name: Annotated[str, Path(max_length=MAX_NAME_CHARS, examples=["contracts"])]
    ) -> Response:
        """Deletes one of one's own collections with all its documents."""
        if not await asyncio.to_thread(services.knowledge_base.delete_collection, name, owner=user):
            raise NotFoundError(f"you have no collection {name!r}; GET /api/v1/collections lists them", field="name")
        return Response(status_code=204)

    return router


async def _entries(services: Services, user: str) -> list[CollectionEntry]:
    found = await asyncio.to_thread(services.knowledge_base.collections, user)
    return [
        CollectionEntry(
            name=entry.name,
            visibility=entry.visibility,
            is_own=entry.owner == user,
            num_documents=entry.num_documents,
            num_chunks=entry.num_chunks,
        )
        for entry in found
    ]
