"""LangServe's routes for /chat, /llm and /retrieve: the only module that knows LangServe, which is no longer developed.

`add_routes` brings the schemas, the playground, `/invoke`, `/batch` and the documentation. In front of them stand: a
check of every request before anything runs, because LangServe answers 500 to most bad ones; our own `/stream`,
`/stream_log` and `/stream_events`, because LangServe's never say why they break off and cut the connection; and routes
that stop their work when the client goes away. The wire format is held by tests/app/test_langserve.py, so that
LangServe can be replaced.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import orjson
from fastapi import APIRouter, Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from langchain_core.documents import Document
from langchain_core.runnables import Runnable, RunnableConfig
from langserve import add_routes
from langserve.api_handler import APIHandler, _config_from_hash
from langserve.serialization import WellKnownLCSerializer
from langserve.validation import StreamEventsParameters, StreamLogParameters
from pydantic import BaseModel, RootModel, ValidationError

from app.chat_schema import (
    CONFIG_SPECS,
    MODEL_SPECS,
    PRIORITIES,
    SEARCH_SPECS,
    ChatInput,
    ChatOptions,
    ChatOutput,
    question_of,
    refuse_misplaced,
    refuse_unknown_options,
    session_of,
)
from app.errors import InputTooLongError, RequestError, UnknownModelError
from app.messages import check_text
from app.privacy import note_private
from app.routes import sse
from app.routes.access import current_user
from app.routes.faults import Fault, dump, unreadable
from app.routes.served_chain import RUN_NAME, Served
from app.services import Services
from app.validation_text import shown

MAX_SESSION_ID_CHARS = 256
# Below /api/v1/conversations these would be other addresses.
_UNREACHABLE = re.compile(r"/(export|restore|turns/\d+)/*$")
# What a client may say about its run, for traces and events; of the config, these and `configurable` are honoured.
LABELS = ("tags", "metadata")
END = "event: end\r\n\r\n"
STREAMS = ("stream", "stream_log", "stream_events")
# LangServe's own documentation says that a stream is JSON.
PUBLISHED_STREAM: dict[str, Any] = {"content": {"text/event-stream": {}}, "description": "Server-sent events."}
Endpoint = Callable[[Request, str], Coroutine[Any, Any, Response]]


class Passages(RootModel[list[Document]]):
    """What /retrieve answers, best first. A model of its own, as LangServe tells bare types apart badly."""


def create_router(services: Services) -> APIRouter:
    """All routes under /chat, /llm and /retrieve."""
    router = APIRouter(route_class=sse.AbandonableRoute)
    chat = Served(services, lambda: services.chat, ChatInput, ChatOutput, CONFIG_SPECS)
    llm = Served(services, lambda: services.llm, ChatInput, str, MODEL_SPECS)
    retrieve = Served(services, lambda: services.retrieve, ChatInput, Passages, SEARCH_SPECS)
    _mount(router, chat, "/chat", RequestCheck(services, lambda: services.answer_names, needs_session=True))
    _mount(router, llm, "/llm", RequestCheck(services, lambda: services.generate_names))
    _mount(router, retrieve, "/retrieve", RequestCheck(services, lambda: services.answer_names))
    return router


def _mount(router: APIRouter, runnable: "Served", path: str, check: "RequestCheck") -> None:
    options: dict[str, Any] = {
        "path": path,
        "config_keys": ("configurable", *LABELS),
        "per_req_config_modifier": _fix_user,
        "serializer": Serializer(),
    }
    streams = Streams(APIHandler(runnable, **options), runnable)
    # The first route that matches serves, so ours win over LangServe's of the same name, whose documentation stays.
    for name in STREAMS:
        endpoint: Endpoint = getattr(streams, name)
        for route, handler in (
            (f"{path}/{name}", _without_hash(endpoint)),
            (f"{path}/c/{{config_hash}}/{name}", endpoint),
        ):
            router.add_api_route(
                route, handler, methods=["POST"], include_in_schema=False, dependencies=[Depends(check)]
            )
    # Without the labels, which its form would show as wrong until they are filled in.
    forms = APIHandler(runnable, **{**options, "config_keys": ("configurable",)})
    for before in (path, f"{path}/c/{{config_hash}}"):
        router.add_api_route(f"{before}/playground/{{file_path:path}}", forms.playground, include_in_schema=False)
    add_routes(router, runnable, dependencies=[Depends(check)], **options)
    for documented in router.routes:
        if isinstance(documented, APIRoute) and documented.path.rsplit("/", 1)[-1] in STREAMS:
            documented.responses = {**documented.responses, 200: PUBLISHED_STREAM}


def _without_hash(endpoint: Endpoint) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def handler(request: Request) -> Response:
        return await endpoint(request, "")

    return handler


def _fix_user(config: dict[str, Any], request: Request) -> dict[str, Any]:
    """Whose conversation it is comes from the server, never from the body. An option that is null is not given.

    How urgent a question is may be said by a header too, as on /v1.
    """
    fixed = {"user": current_user(request), RUN_NAME: getattr(request.state, "run_name", None)}
    given = {name: value for name, value in config.get("configurable", {}).items() if value is not None}
    if (priority := request.headers.get("x-priority")) and "priority" not in given:
        given["priority"] = priority
    return {**config, "configurable": {**given, **fixed}}


class Serializer(WellKnownLCSerializer):  # type: ignore[misc]  # LangServe has no types
    """LangServe's, made safe to send line by line, and lenient with what LangChain's events may hold."""

    def dumps(self, obj: Any) -> bytes:
        try:
            text = orjson.dumps(obj, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:  # integers beyond 64 bits, half a surrogate pair
            return json.dumps(obj, default=_plain).encode()
        if text.isascii():
            return text.encode()
        # The three line separators that JSON leaves as they are; clients that split on them would see half an event.
        return text.replace("\x85", "\\u0085").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").encode()


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, BaseException):
        return {"message": str(value)}
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return repr(value)


# ── requests, before anything runs ───────────────────────────────────────────────────────────────────────────────────


class RequestCheck:
    """A dependency of all routes that run a chain: refuses what cannot be served, naming the field.

    `names` tells by which names a model may be asked for.
    """

    def __init__(self, services: Services, names: Callable[[], Sequence[str]], *, needs_session: bool = False) -> None:
        self._services = services
        self._names = names
        self._needs_session = needs_session

    async def __call__(self, request: Request) -> None:
        run = request.scope["path"].rsplit("/", 1)[-1]
        if request.method != "POST" or run not in ("invoke", "batch", *STREAMS):
            return
        self._services.require_ready()
        priority = request.headers.get("x-priority") or None
        if priority is not None and priority not in PRIORITIES:
            allowed = ", ".join(PRIORITIES)
            raise RequestError(f"X-Priority is {priority[:40]!r}; it may be one of: {allowed}", field="X-Priority")
        body = await read_object(request)
        if body.get("config", {}) is None:
            del body["config"]  # of the body as it is kept with the request, so that LangServe does not see it either
        fixed = _configurable(_config_from_hash(request.path_params.get("config_hash", "")), "config")
        user = current_user(request)
        if run == "batch":
            await self._check_batch(body, fixed, user)
        else:
            options = await self._check_config(body.get("config", {}), fixed, "config", user)
            request.state.run_name = body.get("config", {}).get("run_name")
            self._check_input(body.get("input"), "input", options)
        refuse_misplaced(body)

    async def _check_batch(self, body: Mapping[str, Any], fixed: Mapping[str, Any], user: str) -> None:
        inputs, config = body.get("inputs"), body.get("config", {})
        if not isinstance(inputs, list):
            raise RequestError('inputs must be a list of objects: [{"input": "…"}, …]', field="inputs")
        if isinstance(config, list) and len(config) != len(inputs):
            raise RequestError(
                f"{len(config)} configs for {len(inputs)} inputs: send one for each, or one", field="config"
            )
        for number, given in enumerate(inputs):
            one, place = (config[number], f"config[{number}]") if isinstance(config, list) else (config, "config")
            self._check_input(given, f"inputs[{number}]", await self._check_config(one, fixed, place, user))
        if not inputs and not isinstance(config, list):
            await self._check_config(config, fixed, "config", user)

    def _check_input(self, given: Any, place: str, options: ChatOptions) -> None:
        try:
            question = question_of(given, may_be_empty=options.continue_turn)
        except RequestError as error:
            field = f"{place}.{(error.field or '').partition('.')[2]}"
            raise RequestError(error.message.replace(error.field or "", field), field=field) from None
        limit = self._services.settings.max_input_chars
        if len(question) > limit:
            raise InputTooLongError(given=len(question), limit=limit, field=f"{place}.input")

    async def _check_config(self, config: Any, fixed: Mapping[str, Any], place: str, user: str) -> ChatOptions:
        configurable = {**fixed, **_configurable(config, place)}
        place_of_options = f"{place}.configurable"
        _check_labels(config, place)
        refuse_unknown_options(configurable, place_of_options)
        if self._needs_session:
            check_session_id(session_of(configurable), f"{place_of_options}.session_id")
        options = ChatOptions.of(configurable, place_of_options)
        if options.model is not None and options.model not in (names := self._names()):
            raise UnknownModelError(options.model, *names, field=f"{place_of_options}.model")
        if options.private:
            note_private()
        await self._services.require_collections(options.collections, user, f"{place_of_options}.collections")
        return options if self._needs_session else ChatOptions()


def check_session_id(session_id: str, field: str) -> None:
    """Raises RequestError for a name that a conversation cannot have."""
    if len(session_id) > MAX_SESSION_ID_CHARS:
        raise RequestError(
            f"session_id has {len(session_id):,} characters, and may have {MAX_SESSION_ID_CHARS}: shorten it",
            field=field,
        )
    if _UNREACHABLE.search(session_id):
        raise RequestError(
            f"a conversation cannot be called {session_id!r}: with /export, /restore or /turns/0 at its end, its "
            "address would mean something else; choose another session_id",
            field=field,
        )


def _configurable(config: Any, place: str) -> dict[str, Any]:
    configurable = config.get("configurable", {}) if isinstance(config, dict) else None
    if not isinstance(configurable, dict):
        raise RequestError(f'{place} must be an object such as {{"configurable": {{…}}}}', field=place)
    return configurable


def _check_labels(config: Mapping[str, Any], place: str) -> None:
    tags, metadata, run_name = (config.get(name) for name in (*LABELS, "run_name"))
    if run_name is not None and not isinstance(run_name, str):
        raise RequestError(f"{place}.run_name must be a text", field=f"{place}.run_name")
    if tags is not None and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
        raise RequestError(f"{place}.tags must be a list of texts", field=f"{place}.tags")
    if metadata is not None and not isinstance(metadata, dict):
        raise RequestError(f"{place}.metadata must be an object", field=f"{place}.metadata")


async def read_object(request: Request) -> dict[str, Any]:
    """The request's body, which must be a JSON object in valid Unicode. Raises RequestError."""
    try:
        body = await request.json()
    except (ValueError, RecursionError) as error:
        raise RequestError(unreadable(error), field="body") from None
    if not isinstance(body, dict):
        raise RequestError(f"the body must be a JSON object, not {shown(body)}", field="body")
    check_text(body)
    return body


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Streams:
    """The three streaming endpoints of one chain."""

    def __init__(self, handler: APIHandler, runnable: Served) -> None:
        self._handler = handler
        self._runnable = runnable
        self._dumps = Serializer().dumps

    async def stream(self, request: Request, config_hash: str) -> Response:
        config, given = await self._unpack(request, config_hash, "stream")
        return await sse.open_stream(self._output(given, config), error_event)

    async def stream_log(self, request: Request, config_hash: str) -> Response:
        config, given = await self._unpack(request, config_hash, "stream_log")
        filters = await _filters(request, StreamLogParameters)
        return await sse.open_stream(self._log(given, config, filters), error_event)

    async def stream_events(self, request: Request, config_hash: str) -> Response:
        config, given = await self._unpack(request, config_hash, "stream_events")
        filters = await _filters(request, StreamEventsParameters)
        return await sse.open_stream(self._events(given, config, filters), error_event)

    async def _unpack(self, request: Request, config_hash: str, endpoint: str) -> tuple[RunnableConfig, dict[str, Any]]:
        unpacked: tuple[RunnableConfig, dict[str, Any]] = await self._handler._get_config_and_input(
            request, config_hash, endpoint=endpoint
        )
        return unpacked

    async def _output(self, given: dict[str, Any], config: RunnableConfig) -> sse.Events:
        head = sse.event(dump({"run_id": str(config["run_id"])}), "metadata")
        async with aclosing(self._runnable.astream(given, config)) as chunks:
            async for chunk in chunks:
                yield head + self._data(chunk)
                head = ""
        yield END

    async def _log(self, given: dict[str, Any], config: RunnableConfig, filters: dict[str, Any]) -> sse.Events:
        async with aclosing(log_patches(self._runnable, given, config, filters)) as patches:
            async for ops in patches:
                yield self._data({"ops": ops})
        yield END

    async def _events(self, given: dict[str, Any], config: RunnableConfig, filters: dict[str, Any]) -> sse.Events:
        events = self._runnable.astream_events(given, config, version="v2", **filters)
        async with aclosing(events) as stream:  # type: ignore[type-var]
            async for entry in stream:
                public = {key: value for key, value in entry["metadata"].items() if not key.startswith("__")}
                yield self._data({**entry, "metadata": public})
        yield END

    def _data(self, value: Any) -> str:
        return sse.event(self._dumps(value).decode(), "data")


def error_event(fault: Fault) -> str:
    """The last event of a stream that breaks off."""
    return sse.event(dump(fault.event()), "error")


async def _filters(request: Request, model: type[BaseModel]) -> dict[str, Sequence[str] | None]:
    try:
        return model.model_validate(await request.json()).model_dump()
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


async def log_patches(
    runnable: Runnable[dict[str, Any], Any], given: dict[str, Any], config: RunnableConfig, filters: Mapping[str, Any]
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """The operations of `astream_log`, patch by patch.

    When closed, it stops the run; LangChain's own generator would wait until the run has ended by itself.
    """
    source = _Cancellable(runnable)
    arrived: asyncio.Queue[list[dict[str, Any]] | None] = asyncio.Queue()

    async def read() -> None:
        try:
            async for patch in source.astream_log(given, config, diff=True, **filters):
                arrived.put_nowait(patch.ops)
        finally:
            arrived.put_nowait(None)

    reading = asyncio.create_task(read())
    try:
        while (ops := await arrived.get()) is not None:
            yield ops
        await reading
    finally:
        source.cancel()
        reading.cancel()
        await asyncio.wait({reading})


class _Cancellable(Runnable[dict[str, Any], Any]):
    """Passes a stream through, and can break it off from outside the task that reads it."""

    def __init__(self, runnable: Runnable[dict[str, Any], Any]) -> None:
        self._runnable = runnable
        self._task: asyncio.Task[Any] | None = None

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def invoke(self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._runnable.invoke(input, config, **kwargs)

    async def astream(
        self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        self._task = asyncio.current_task()
        async with aclosing(self._runnable.astream(input, config, **kwargs)) as stream:  # type: ignore[type-var]
            async for chunk in stream:
                yield chunk
