"""Text to token ids and back, as the chat model sees them. vLLM's routes: /tokenize and /detokenize."""

import asyncio
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from app.engines.client import EngineClient
from app.model_services import ModelServices
from app.routes.openai_reply import check_length
from app.routes.openai_schema import Bool, ChatMessage, CheckedBody, Integer, engine_messages
from engine.errors import InvalidParameterError


class TokenizeRequest(CheckedBody):
    """A text, or the messages of a chat with the model's template around them."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: Bool = Field(True, description="Begin a text with BOS where the model's prompts do.")
    messages: list[ChatMessage] | None = Field(None, min_length=1)
    add_generation_prompt: Bool = Field(True, description="End messages with the header of an answer.")
    tools: list[dict[str, Any]] | None = None
    return_token_strs: Bool | None = False


class DetokenizeRequest(BaseModel):
    """Token ids."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    tokens: list[Integer]


def create_router(services: ModelServices) -> APIRouter:
    """/tokenize and /detokenize."""
    router = APIRouter(tags=["tokens"])

    def client_of(name: str | None) -> EngineClient:
        services.require_ready()
        return services.generator(services.model_name if name is None else name)

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        """Token ids of `prompt` or of `messages`, and how many a request may have."""
        engine = client_of(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise InvalidParameterError("prompt", "give either prompt or messages")
        if body.messages is None:
            text = body.prompt or ""
            await check_length("prompt", len(text), engine, services.settings)
            token_ids = await asyncio.to_thread(engine.encode, text, add_bos=body.add_special_tokens)
        else:
            messages = engine_messages(body.messages)
            num_chars = sum(len(message["content"]) for message in messages)
            await check_length("messages", num_chars, engine, services.settings)
            token_ids = await asyncio.to_thread(
                engine.encode_chat, messages, tools=body.tools, add_generation_prompt=body.add_generation_prompt
            )
        return {
            "count": len(token_ids),
            "max_model_len": engine.max_model_len,
            "tokens": token_ids,
            "token_strs": engine.token_texts(token_ids) if body.return_token_strs else None,
        }

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, str]:
        """The text of token ids; special tokens have none."""
        return {"prompt": await asyncio.to_thread(client_of(body.model).decode, body.tokens)}

    return router
