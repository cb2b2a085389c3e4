"""Whether the server lives, whether it is ready and if not why, its metrics, and what it is."""

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from app import __version__
from app.errors import RETRY_AFTER_S
from app.metrics import CONTENT_TYPE
from app.model_services import ModelServices
from app.routes.faults import ERRORS


def create_router(services: ModelServices) -> APIRouter:
    """/v1/health/*, /v1/metrics, /v1/metadata and /v1/version as NIM has them; /metrics, /version as vLLM has."""
    router = APIRouter(tags=["health"])

    # Monitors often send HEAD.
    @router.head("/v1/health/live", include_in_schema=False)
    @router.get("/v1/health/live")
    async def live() -> dict[str, str]:
        """200 as long as the process answers."""
        return {"status": "live"}

    @router.head("/v1/health/ready", include_in_schema=False)
    @router.get("/v1/health/ready", responses={503: {"description": "Not ready; `reason` says why."}})
    async def ready() -> Response:
        """200 when questions are answered; 503 with the reason while the models load or when something has failed."""
        status, reason = services.status()
        if status == "ready":
            return JSONResponse({"status": status})
        if status == "degraded":  # questions are answered, if later
            return JSONResponse({"status": status, "reason": reason})
        return JSONResponse({"status": status, "reason": reason}, 503, headers={"Retry-After": str(RETRY_AFTER_S)})

    page: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/plain": {}}, "description": "Prometheus' text format."}
    }

    @router.get("/v1/metrics", response_class=Response, include_in_schema=False)
    @router.get("/metrics", response_class=Response, responses={**ERRORS, **page})
    def metrics() -> Response:
        """Metrics for Prometheus, under vLLM's names with the prefix `ragstone:`."""
        return Response(services.metrics.render(), media_type=CONTENT_TYPE)

    @router.get("/v1/metadata")
    async def metadata() -> dict[str, Any]:
        """Version and models."""
        models = [{"shortName": name, "modelUrl": ""} for name in services.served_models]
        return {"version": __version__, "modelInfo": models, "assetInfo": [], "licenseInfo": {"name": "Apache-2.0"}}

    @router.get("/v1/version")
    async def release() -> dict[str, str]:
        """The release, and the version of the /v1 protocol."""
        return {"release": __version__, "api": "1"}

    @router.get("/version", responses=ERRORS)
    async def version() -> dict[str, str]:
        """The release."""
        return {"version": __version__}

    return router
