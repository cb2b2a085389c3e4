"""What a request that makes a model work must pass: its tenant's limits, and the policies of a server under load."""

import asyncio
import json
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import privacy
from app.answer_jobs import KEPT_S, Answer, AnswerJob, AnswerJobs
from app.degradation import ASYNCHRONOUS, HEADER, LATER_PRIORITIES, NONE, Degradation, set_degradation
from app.limits import LimitError, TenantLimits, TooManyQuestionsError, set_places
from app.metrics import ServerMetrics
from app.principal import LOCAL, Principal, set_principal
from app.request_path import route_path
from app.routes.answers import PREFIX
from app.routes.faults import respond

# Below these, a POST makes a model work.
CHAT_MODEL_PATHS = ("/chat/", "/llm/", "/v1/chat/completions", "/v1/completions")
MODEL_PATHS = (*CHAT_MODEL_PATHS, "/retrieve/", "/v1/embeddings", "/v1/ranking")
# Where one request may ask several questions: how a path ends, and the field of the body that lists them.
LISTS = (("/batch", "inputs"), ("/v1/completions", "prompt"))


class Admission:
    """Refuses a tenant's request over its limits with 429; notes what a request under load must do without.

    `degradation` tells what holds at the moment; `jobs` takes down what is to be answered later; `full` tells the
    refusal that a request to a chat model would get in any case.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: TenantLimits,
        metrics: ServerMetrics,
        degradation: Callable[[], Degradation],
        jobs: AnswerJobs,
        full: Callable[[], Exception | None],
        max_body_bytes: int,
    ) -> None:
        self._app = app
        self._limits = limits
        self._metrics = metrics
        self._degradation = degradation
        self._jobs = jobs
        self._full = full
        self._max_body_bytes = max_body_bytes
        jobs.answer_with(lambda job: answer_now(app, job))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not _asks_a_model(scope):
            await self._app(scope, receive, send)
            return
        if _is_private(scope):
            privacy.note_private()
        principal: Principal = scope.get("state", {}).get("principal", LOCAL)
        path, num_questions = route_path(scope), 1
        for end, field in LISTS:
            if path.rstrip("/").endswith(end):
                messages, body = await self._read(receive)
                receive = _again(messages, receive)
                num_questions = num_listed(body, field)
        try:
            num_places = self._limits.begin(principal.tenant, num_questions)
        except (LimitError, TooManyQuestionsError) as error:
            self._metrics.refused.labels(principal.tenant, error.field or "").inc()
            await respond(error, path)(scope, receive, send)
            return
        set_places(num_places)
        try:
            await self._admit(scope, receive, send, principal)
        finally:
            self._limits.end(principal.tenant, num_places)

    async def _admit(self, scope: Scope, receive: Receive, send: Send, principal: Principal) -> None:
        degradation = self._degradation()
        if ASYNCHRONOUS in degradation.policies:
            messages, body = await self._read(receive)
            priority = priority_of(scope, body)
            if body is not None and priority in LATER_PRIORITIES:
                await self._take_down(scope, send, principal, priority, body)
                return
            receive = _again(messages, receive)
        path = route_path(scope)
        if path.startswith(CHAT_MODEL_PATHS) and (refusal := self._full()) is not None:
            await respond(refusal, path)(scope, receive, send)
            return
        await self._app(scope, receive, self._marked(degradation, send))

    async def _take_down(self, scope: Scope, send: Send, principal: Principal, priority: str, body: bytes) -> None:
        """Answers 202 with where the answer will be."""
        path = route_path(scope)
        try:
            job_id = await self._jobs.add(principal, path, priority, body, is_private=_is_private(scope))
        except Exception as error:  # too many wait, or the disk is full: nothing was accepted
            await respond(error, path)(scope, _nothing, send)
            return
        self._metrics.degraded.labels(ASYNCHRONOUS).inc()
        location = f"{scope.get('root_path', '').rstrip('/')}{PREFIX}/{job_id}"
        content = {"job_id": job_id, "state": "queued", "location": location, "kept_s": KEPT_S}
        await JSONResponse(content, 202, headers={"Location": location, HEADER: ASYNCHRONOUS})(scope, _nothing, send)

    async def _read(self, receive: Receive) -> tuple[list[Message], bytes | None]:
        """The messages of a request's body, and the body; None where it is not whole, or too large."""
        messages: list[Message] = []
        size = 0
        while True:
            message = await receive()
            messages.append(message)
            size += len(message.get("body", b""))
            if message["type"] != "http.request" or size > self._max_body_bytes:
                return messages, None
            if not message.get("more_body"):
                return messages, b"".join(part.get("body", b"") for part in messages)

    def _marked(self, degradation: Degradation, send: Send) -> Send:
        """Notes the policies in force; they are said in the head of the reply."""
        policies = [policy for policy in degradation.policies if policy != ASYNCHRONOUS]
        if not policies:
            return send
        set_degradation(degradation)
        for policy in policies:
            self._metrics.degraded.labels(policy).inc()

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = ", ".join(policies)
            await send(message)

        return marked


def _is_private(scope: Scope) -> bool:
    # Whatever does not clearly say no is a yes: a word that is not known here must not send the request away.
    said = Headers(scope=scope).get(privacy.HEADER, "").strip().lower()
    return said not in ("", "false", "0", "no", "off")


def priority_of(scope: Scope, body: bytes | None) -> str:
    """How urgent a request is: `priority` of its body or of /chat's options, else the header; "" where none says it."""
    given = None
    try:
        fields = json.loads(body or b"null")
        given = fields.get("priority") or fields.get("config", {}).get("configurable", {}).get("priority")
    except (ValueError, RecursionError, AttributeError):
        pass  # the route will say what is wrong with it
    return given if isinstance(given, str) else Headers(scope=scope).get("x-priority", "")


def num_listed(body: bytes | None, field: str) -> int:
    """How many questions a body lists in a field; 1 where it is no list of questions: the route will say what it is."""
    try:
        listed = json.loads(body or b"null")[field]
    except (ValueError, RecursionError, TypeError, LookupError):
        return 1
    is_one = not isinstance(listed, list) or all(isinstance(token, int) for token in listed)
    return 1 if is_one else len(listed)


async def answer_now(app: ASGIApp, job: AnswerJob) -> Answer:
    """What the routes behind the checks of who asks answer to a request that was taken down."""
    status, content_type, parts = 500, "", []
    body: list[Message] = [{"type": "http.request", "body": job.body, "more_body": False}]

    async def send(message: Message) -> None:
        nonlocal status, content_type
        if message["type"] == "http.response.start":
            status, content_type = message["status"], Headers(raw=message["headers"]).get("content-type", "")
        else:
            parts.append(message.get("body", b""))

    set_principal(job.principal)
    set_degradation(NONE)
    set_places(None)
    privacy.begin(private=job.is_private)
    headers = {"content-type": "application/json", "x-priority": job.priority}
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": job.path,
        "raw_path": job.path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": None,
        "server": None,
        "state": {"principal": job.principal},
    }
    await app(scope, _again(body, _nothing), send)
    return Answer(status, content_type, b"".join(parts))


def _again(messages: list[Message], receive: Receive) -> Receive:
    """A source of messages that were read already, and then of the others."""
    waiting = iter(messages)

    async def received() -> Message:
        message = next(waiting, None)
        return await receive() if message is None else message

    return received


async def _nothing() -> Message:
    """A client that stays and says nothing more."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets that event")


def _asks_a_model(scope: Scope) -> bool:
    return route_path(scope).startswith(MODEL_PATHS)
