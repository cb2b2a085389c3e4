"""Whether the server lives, whether it is ready and if not why, and its metrics."""

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from app.metrics import CONTENT_TYPE
from app.services import RETRY_AFTER_S, Services


def create_router(services: Services) -> APIRouter:
    """/v1/health/live, /v1/health/ready and /metrics."""
    router = APIRouter(tags=["health"])

    @router.get("/v1/health/live")
    async def live() -> dict[str, str]:
        """200 as long as the process answers."""
        return {"status": "live"}

    @router.get("/v1/health/ready", responses={503: {"description": "Not ready; `reason` says why."}})
    async def ready() -> Response:
        """200 when questions are answered; 503 with the reason while the models load or when something has failed."""
        status, reason = services.status()
        if status == "ready":
            return JSONResponse({"status": status})
        return JSONResponse({"status": status, "reason": reason}, 503, headers={"Retry-After": str(RETRY_AFTER_S)})

    @router.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> Response:
        """Metrics for Prometheus, under vLLM's names with the prefix `ragstone:`."""
        return Response(services.metrics.render(), media_type=CONTENT_TYPE)

    return router
