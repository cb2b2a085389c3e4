"""/api/v1/options: what is taken where a question does not choose, and how much may be sent."""

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from app.memory import MemoryKind
from app.services import Services


class Defaults(BaseModel):
    """The options of a question (`config.configurable` of /chat) as the server's settings have them."""

    model_config = ConfigDict(protected_namespaces=())

    model: str
    temperature: float
    top_p: float
    max_tokens: int
    memory: MemoryKind
    num_passages: int
    retrieval: bool = True


class SizeLimits(BaseModel):
    """The longest question in characters, and the largest file in bytes, that are taken."""

    max_input_chars: int
    max_upload_bytes: int


class ServerOptions(BaseModel):
    defaults: Defaults
    limits: SizeLimits


def create_router(services: Services) -> APIRouter:
    """/api/v1/options."""
    router = APIRouter(prefix="/api/v1/options", tags=["conversations"])
    settings = services.settings

    @router.get("", response_model=ServerOptions)
    async def options() -> ServerOptions:
        """What holds for a question that chooses nothing, for a client to show; and what is too large to send."""
        return ServerOptions(
            defaults=Defaults(
                model=services.model_name,
                temperature=settings.temperature,
                top_p=settings.top_p,
                max_tokens=settings.max_tokens,
                memory=settings.memory_kind,
                num_passages=settings.num_passages,
            ),
            limits=SizeLimits(max_input_chars=settings.max_input_chars, max_upload_bytes=settings.max_upload_bytes),
        )

    return router
