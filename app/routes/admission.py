"""What a request that makes a model work must pass: its tenant's limits, and the policies of a server under load."""

from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import privacy
from app.degradation import HEADER, Degradation, set_degradation
from app.limits import LimitError, TenantLimits
from app.metrics import ServerMetrics
from app.principal import LOCAL, Principal
from app.request_path import route_path
from app.routes.faults import respond

# Below these, a POST makes a model work.
MODEL_PATHS = ("/chat/", "/llm/", "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/ranking")


class Admission:
    """Refuses a tenant's request over its limits with 429; notes what a request under load must do without.

    `degradation` tells what holds at the moment.
    """

    def __init__(
        self, app: ASGIApp, *, limits: TenantLimits, metrics: ServerMetrics, degradation: Callable[[], Degradation]
    ) -> None:
        self._app = app
        self._limits = limits
        self._metrics = metrics
        self._degradation = degradation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not _asks_a_model(scope):
            await self._app(scope, receive, send)
            return
        if Headers(scope=scope).get(privacy.HEADER, "").strip().lower() in ("true", "1", "yes"):
            privacy.note_private()
        principal: Principal = scope.get("state", {}).get("principal", LOCAL)
        try:
            self._limits.begin(principal.tenant)
        except LimitError as error:
            self._metrics.refused.labels(principal.tenant, error.field or "").inc()
            await respond(error, route_path(scope))(scope, receive, send)
            return
        try:
            await self._app(scope, receive, self._marked(send))
        finally:
            self._limits.end(principal.tenant)

    def _marked(self, send: Send) -> Send:
        """Notes the policies in force; they are said in the head of the reply."""
        degradation = self._degradation()
        if not degradation.policies:
            return send
        set_degradation(degradation)
        for policy in degradation.policies:
            self._metrics.degraded.labels(policy).inc()

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = ", ".join(degradation.policies)
            await send(message)

        return marked


def _asks_a_model(scope: Scope) -> bool:
    return route_path(scope).startswith(MODEL_PATHS)
