"""`ragstone serve` as a process: the UI beside it, the API in it, progress and addresses for the person who started it.

What is served is `app.server.create_app`; what must hold before it is `app.preflight`. Heavy imports happen late, after
the UI process has been started, so that both load at the same time.
"""

import collections
import contextlib
import gc
import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from app import models, preflight
from app.child_process import die_with_parent
from app.engines.model_table import ModelTable
from app.request_id import add_request_id
from app.search_models import embedding_files
from app.settings import Settings, unknown_variables

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from app.services import Services

logger = logging.getLogger(__name__)

# Libraries that report every request or file at INFO; their warnings are still shown.
NOISY_LOGGERS = ("httpx", "httpx2", "httpcore", "sentence_transformers", "bm25s", "faiss", "huggingface_hub", "urllib3")

READY = "ready"  # what /v1/health/ready says with 200

PROGRESS_INTERVAL_S = 5.0
UI_START_TIMEOUT_S = 60.0
UI_LEAST_LIFE_S = 2.0  # one that ends sooner would end again
UI_STOP_TIMEOUT_S = 5.0
# After answers have had their time: so long other requests have, and answers to say that they were ended.
CLOSING_TIMEOUT_S = 10
# For so long a thread may keep the interpreter while others want it. Python's own 5 ms are long beside a step: the
# engine waits for them behind the event loop, and a turn that is being stored at each of its statements.
SWITCH_INTERVAL_S = 0.0005


class StopRequested(BaseException):
    """SIGINT or SIGTERM arrived; not an Exception, so that no handler on the way takes it for a failure."""


def serve(settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM; the exit code (0 after such a signal).

    Raises RagstoneError where the server cannot start: a port in use, a data folder that cannot be written, a model
    that cannot be found.
    """
    configure_logging(settings)
    for warning in (*unknown_variables(), preflight.shadowing_distribution()):
        if warning:
            logger.warning(warning)
    with stop_on_signals():
        try:
            listener = preflight.reserve_ports(settings)
            with contextlib.closing(listener), preflight.take_data_folder(settings):
                if warning := preflight.check_keys(settings):
                    logger.warning(warning)
                preflight.set_process_environment(settings)
                return _serve(settings, listener)
        except StopRequested:
            logger.info("stopped")
            return 0
        finally:
            # The interpreter looks through every object once more before it ends, which takes seconds after torch has
            # been imported; what is frozen it passes over.
            gc.freeze()


def configure_logging(settings: Settings) -> None:
    """One line an event on stderr; stdout is for the addresses."""
    level = settings.log_level.upper()
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(add_request_id)
    line = "%(asctime)s %(levelname)-7s %(name)s%(request)s: %(message)s"
    logging.basicConfig(level=level, handlers=[handler], format=line, force=True)
    for name in NOISY_LOGGERS if settings.log_level != "debug" else ():
        logging.getLogger(name).setLevel(logging.WARNING)
    if settings.log_level == "info":
        # Its start and stop lines say what ours say; its errors are shown.
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def _serve(settings: Settings, listener: socket.socket) -> int:
    entries = ModelTable.of(settings).entries.values()
    chat_models = [entry.source for entry in entries if entry.url is None and entry.load == "always"]
    with UIProcess(settings) if settings.ui else contextlib.nullcontext() as ui:
        for name in filter(None, (*chat_models, embedding_files(settings))):
            path = models.resolve(name, settings)
            logger.info("model %s is %s", name, path)
        return _run_api(settings, listener, ui)


# ── the API ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _run_api(settings: Settings, listener: socket.socket, ui: "UIProcess | None") -> int:
    logger.info("starting the server")
    gc.disable()  # until ready: collections find nothing in modules and weights, and take a sixth of the start
    from app.server import create_app

    return run_server(
        create_app(settings), settings, listener, [f"  API   {base_url(settings.host, settings.port)}"], ui
    )


def run_server(
    app: "FastAPI", settings: Settings, listener: socket.socket, addresses: Sequence[str], ui: "UIProcess | None"
) -> int:
    """Serve an application whose `state.services` load beside it; the exit code.

    Once it is ready, `addresses` are printed, after the UI's; nothing is where there are none.
    """
    import uvicorn

    from app.request_arrival import protocol_within

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    services: Services = app.state.services
    config = uvicorn.Config(
        app,
        http=protocol_within(settings.arrival_timeout_s),
        lifespan="on",
        log_config=None,
        access_log=settings.log_level == "debug",
        timeout_graceful_shutdown=CLOSING_TIMEOUT_S,
    )
    server = uvicorn.Server(config)
    _set_ways_to_stop(server, services, ui, settings.drain_timeout_s)
    arguments = (settings, server, services, addresses, ui)
    threading.Thread(target=_announce, args=arguments, name="announce", daemon=True).start()
    server.run(sockets=[listener])
    return 0 if services.load_error is None else 1


def _announce(
    settings: Settings,
    server: "uvicorn.Server",
    services: "Services",
    addresses: Sequence[str],
    ui: "UIProcess | None",
) -> None:
    """Print the addresses once both answer, or stop the server if it could not load (it has logged why).

    Runs beside the server, which must not wait for it.
    """
    last_word = time.monotonic()
    while not (server.started and services.status()[0] in (READY, "degraded")):
        if services.load_error is not None:
            server.should_exit = True
        if server.should_exit:
            return
        if time.monotonic() > last_word + PROGRESS_INTERVAL_S:
            logger.info("%s", services.status()[1])
            last_word = time.monotonic()
        time.sleep(0.1)
    gc.freeze()  # what is there now stays: no later collection, in the middle of an answer, needs to go through it
    gc.enable()
    ui_answers = ui is not None and ui.wait_until_it_answers(UI_START_TIMEOUT_S)
    lines = ["", "Ragstone is ready."]
    if ui_answers:
        lines.append(f"  Chat  {base_url(settings.host, settings.ui_port)}")
    if addresses:
        print("\n".join([*lines, *addresses, "Press Ctrl+C to stop.", ""]), flush=True)
    if ui is not None and not ui_answers and ui.is_running:
        logger.warning("the chat UI does not answer after %.0f s; the API does", UI_START_TIMEOUT_S)


def base_url(host: str, port: int) -> str:
    """The address under which a program on this machine reaches a server that listens on `host`."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # nosec B104
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def readiness(api: str, timeout_s: float = 2.0) -> str:
    """READY, or in words why the API at this address is not."""
    try:
        with _open(f"{api}/v1/health/ready", timeout_s):
            return READY
    except urllib.error.HTTPError as error:  # 503 with {"status", "reason"}
        with contextlib.suppress(ValueError, AttributeError):
            body = json.loads(error.read())
            return ": ".join(str(body[key]) for key in ("status", "reason") if body.get(key)) or f"HTTP {error.code}"
        return f"HTTP {error.code}"
    except (OSError, http.client.HTTPException):
        return "does not answer"


def model_states(api: str, timeout_s: float = 5.0) -> dict[str, str]:
    """The chat models of the server at this address, and how each is; none where it does not say."""
    try:
        with _open(f"{api}/v1/models", timeout_s) as reply:
            entries = json.loads(reply.read())["data"]
        return {str(entry["id"]): str(entry["state"]) for entry in entries if "state" in entry}
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return {}


def answers(url: str, timeout_s: float = 2.0) -> bool:
    """Whether something there speaks HTTP."""
    try:
        _open(url, timeout_s).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, http.client.HTTPException):
        return False
    return True


def _open(url: str, timeout_s: float) -> Any:
    key = os.environ.get("RAGSTONE_API_KEY")
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    # No proxy: the address is on this machine, whatever http_proxy says.
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=timeout_s)


# ── signals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def stop_on_signals() -> Iterator[None]:
    """SIGINT and SIGTERM end the block by StopRequested.

    In force before uvicorn sets its handlers, and after: when it has shut down, it restores ours and raises the signal
    again.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise StopRequested

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _set_ways_to_stop(
    server: "uvicorn.Server", services: "Services", ui: "UIProcess | None", drain_timeout_s: float
) -> None:
    """Make uvicorn's signal handler end the process at once while the server is loading, and drain it later.

    Once loaded, the server goes on listening while answers end: it says that it is draining, which takes it out of a
    load balancer, and refuses new questions with 503. Answers that are not finished in time end with a typed error, and
    uvicorn closes what is still open some seconds later. A second signal skips the rest.

    While it loads, a clean shutdown would wait for the loading thread (weights, the first documents), which cannot be
    interrupted. Nothing is lost: no request is served yet, what ingest has not committed it repeats, and a half-fetched
    model has no name.
    """
    close_connections = server.handle_exit
    is_draining = False

    def drain(number: int) -> None:
        services.drain(drain_timeout_s)
        close_connections(number, None)

    def handle_exit(number: int, frame: FrameType | None) -> None:
        nonlocal is_draining
        if is_draining:
            close_connections(number, frame)
        elif services.status()[0] != "starting":
            is_draining = True
            logger.info("draining: answers get %g s to end, and no new ones begin", drain_timeout_s)
            threading.Thread(target=drain, args=(number,), name="drain", daemon=True).start()
        else:
            logger.info("stopped while loading")
            if ui is not None:
                ui.stop()
            logging.shutdown()
            sys.stdout.flush()
            os._exit(0)

    server.handle_exit = handle_exit  # type: ignore[method-assign, assignment]


# ── the UI ───────────────────────────────────────────────────────────────────────────────────────────────────────────


# Started in the repository, so that `-m ui` is this project's and no folder `ui` where a person happens to be.
REPOSITORY = Path(__file__).resolve().parent.parent
UI_COMMAND = (sys.executable, "-m", "ui")


def _ui_environment(settings: Settings, api_url: str) -> dict[str, str]:
    return {
        **os.environ,
        "RAGSTONE_API_URL": api_url,
        "RAGSTONE_UI_HOST": settings.host,
        "RAGSTONE_UI_PORT": str(settings.ui_port),
        "RAGSTONE_UI_DATA": str(settings.ui_dir),
        "RAGSTONE_MAX_UPLOAD_BYTES": str(settings.max_upload_bytes),
        "PYTHONUNBUFFERED": "1",
    }


def serve_ui(settings: Settings, api_url: str | None) -> NoReturn:
    """Becomes the chat page, for the API at a URL; None: for the one that the settings describe."""
    environment = _ui_environment(settings, api_url or base_url(settings.host, settings.port))
    os.chdir(REPOSITORY)
    os.execve(sys.executable, UI_COMMAND, environment)  # nosec B606: this very interpreter


class UIProcess:
    """`python -m ui` as a child that ends with this process, however this process ends.

    Its output is passed on to stderr. If it ends by itself, that is reported with its last lines, the API goes on, and
    it is started again, unless it has never answered or ends as soon as it has begun.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None
        self._last_lines: collections.deque[str] = collections.deque(maxlen=15)
        self._lock = threading.Lock()  # held to start it and to say that it is to stop
        self._stopping = threading.Event()
        self._has_answered = False
        self._started_s = 0.0

    def __enter__(self) -> "UIProcess":
        self._settings.ui_dir.mkdir(parents=True, exist_ok=True)
        self._start()
        threading.Thread(target=self._watch, name="ui-watch", daemon=True).start()
        return self

    def _start(self) -> None:
        with self._lock:
            if self._stopping.is_set():
                return
            self._last_lines.clear()
            self._started_s = time.monotonic()
            self._process = subprocess.Popen(
                UI_COMMAND,
                env=_ui_environment(self._settings, base_url(self._settings.host, self._settings.port)),
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl+C is ours to handle: we stop the UI after the API has drained
                preexec_fn=die_with_parent(os.getpid()),
            )
            logger.info("starting the chat UI (process %d)", self._process.pid)

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End the UI: politely, then by force. Harmless when it has ended already."""
        with self._lock:
            self._stopping.set()
        if self._process is None or not self.is_running:
            return
        self._process.terminate()
        try:
            self._process.wait(UI_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def wait_until_it_answers(self, timeout_s: float) -> bool:
        """Whether the UI answers within the time. It listens long before: while it loads, a request would wait."""
        url = base_url(self._settings.host, self._settings.ui_port)
        deadline = time.monotonic() + timeout_s
        while self.is_running and time.monotonic() < deadline:
            if answers(url):
                self._has_answered = True
                return True
            time.sleep(0.1)
        return False

    def _watch(self) -> None:
        # In one thread: a child ends with the thread that has started it.
        while not self._stopping.is_set():
            process = self._process
            assert process is not None
            assert process.stdout is not None
            for line in process.stdout:
                self._last_lines.append(line.rstrip())
                sys.stderr.write(line)
            code = process.wait()
            if self._stopping.is_set():
                return
            again = self._has_answered and time.monotonic() - self._started_s >= UI_LEAST_LIFE_S
            logger.error(
                "the chat UI ended by itself (exit code %d); %s. Its last lines:\n  %s",
                code,
                "it is started again" if again else "the API goes on without it",
                "\n  ".join(self._last_lines) or "(none)",
            )
            if not again:
                return
            self._start()
