"""/api/v1/usage: what tenants have used, and what it costs by the prices in the settings."""

import asyncio
from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel

from app.routes.access import CurrentPrincipal
from app.settings import Settings
from app.usage import Counts, UsageStore

MILLION = 1_000_000


class UsageEntry(BaseModel):
    """One day of one tenant with one model. `cost` is in whatever unit the prices are."""

    day: str
    tenant: str
    model: str
    num_requests: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    cost: float


class Usage(BaseModel):
    usage: Sequence[UsageEntry]


def create_router(settings: Settings, store: UsageStore) -> APIRouter:
    """/api/v1/usage."""
    router = APIRouter(prefix="/api/v1/usage", tags=["usage"])

    # A model's own price goes before the one for all.
    entries = {entry.name: entry for entry in settings.models}

    def cost(model: str, counts: Counts) -> float:
        own = entries.get(model)
        prompt = own.price_per_million_prompt_tokens if own else None
        output = own.price_per_million_output_tokens if own else None
        prompt = settings.price_per_million_prompt_tokens if prompt is None else prompt
        output = settings.price_per_million_output_tokens if output is None else output
        return (counts.num_prompt_tokens * prompt + counts.num_output_tokens * output) / MILLION

    @router.get("", response_model=Usage)
    async def usage(
        principal: CurrentPrincipal,
        since: Annotated[date | None, Query(description="First day, as 2026-01-31 (default: all).")] = None,
    ) -> dict[str, Any]:
        """Requests, tokens and cost of the key's tenant by day and model; of all tenants with the scope `admin`."""
        of = None if principal.may("admin") else principal.tenant
        rows = await asyncio.to_thread(store.read, since=since.isoformat() if since else "", tenant=of)
        return {
            "usage": [
                {"day": day, "tenant": tenant, "model": model, **vars(counts), "cost": cost(model, counts)}
                for day, tenant, model, counts in rows
            ]
        }

    return router
