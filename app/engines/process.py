"""The engine as a child process: started, watched, and started again when it ends by itself.

It is `ragstone engine` on a Unix socket that only this user can open. What a kill -9 of it breaks off gets a typed
error at once; requests that come while it starts again wait for it (`ChildEngineClient`).
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from app.child_process import die_with_parent
from app.engines.backend import FIRST_START_S, POLL_S, RemoteBackend
from app.engines.client import RequestTimes
from app.engines.remote import RemoteEngineClient
from app.engines.socket_folder import SOCKET, make_folder
from app.engines.start_failure import forget_failure, read_failure
from app.errors import StartupError
from app.setting_values import as_text
from app.settings import PREFIX, Settings
from engine.errors import EngineDeadError, EngineError

logger = logging.getLogger(__name__)

# One that says nothing may be just dying, which takes the system a moment: requests that come then wait for the next.
DYING_S = 5.0
# How long a request waits for an engine that is being started again.
RESTART_WAIT_S = 120.0
WATCH_S = 0.1
# One that ends again and again is started less and less often.
BACKOFF_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
STABLE_S = 60.0
STOP_S = 10.0


class ChildEngineClient(RemoteEngineClient):
    """The client of the child. Its address is of no use to who reads an error; what has become of it is."""

    @property
    def _place(self) -> str:
        return "the engine's process"

    def _unreachable(self, error: Exception) -> EngineDeadError:
        has_ended = isinstance(error, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError)
        return self._broken_off() if has_ended else super()._unreachable(error)

    def _broken_off(self) -> EngineDeadError:
        return EngineDeadError(f"{self._place} ended and is being started again; try again")


class EngineProcess(RemoteBackend):
    """A child that runs the engine."""

    def __init__(
        self, settings: Settings, *, model_name: str | None = None, on_end: Callable[[RequestTimes], None] | None = None
    ) -> None:
        self._folder = make_folder(settings.data_dir)
        self._socket = Path(self._folder.name) / SOCKET
        super().__init__(
            ChildEngineClient(
                "http://engine", socket=self._socket, model_name=model_name, starting_s=RESTART_WAIT_S, on_end=on_end
            )
        )
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._was_ready = False
        self._heard = 0.0

    @property
    def pid(self) -> int | None:
        """The child's process id; None before the start."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts the child and waits until it is ready.

        Raises what kept it from starting, as an engine in this process would; StartupError where it has not said so.
        """
        threading.Thread(target=self._watch, name="engine-watch", daemon=True).start()
        deadline = time.monotonic() + FIRST_START_S
        while not self._was_ready:
            has_ended = self._process is not None and self._process.poll() is not None
            if has_ended or time.monotonic() > deadline or self._ended.is_set():
                error = read_failure(self._socket)
                why = f"it ended {_how(self._process)}" if self._process and has_ended else self._health[1]
                self.drain(0.0)
                raise error or StartupError(f"the engine's process did not start: {why}")
            time.sleep(WATCH_S)

    def drain(self, timeout_s: float) -> None:
        self._ended.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()  # it finishes its answers, as any server of ours does
            try:
                process.wait(timeout_s + STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        super().drain(timeout_s)
        self._folder.cleanup()

    # The thread that forks a child must live as long as the child (`die_with_parent`): all are started here.
    def _watch(self) -> None:
        failures, started, looked = 0, time.monotonic(), 0.0
        process = self._launch()
        while not self._ended.wait(WATCH_S):
            if process.poll() is None:
                if self._health[0] != "ready" or time.monotonic() > looked + POLL_S:
                    self._look(started)
                    looked = time.monotonic()
                continue
            if not self._was_ready:
                return  # `start` reports it
            why = f"the engine's process ended ({_how(process)}) and is being started again"
            if (error := read_failure(self._socket)) is not None:
                why = f"the engine's process could not start again, and tries it once more: {error}"
            self._health = ("degraded", why)
            logger.error("%s", self._health[1])
            failures = 0 if time.monotonic() > started + STABLE_S else failures + 1
            if self._ended.wait(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)]):
                return
            started = time.monotonic()
            process = self._launch()
        process.wait()  # it finishes its answers, and would be killed with this thread

    def _look(self, started: float) -> None:
        """Notes how the child is; one that has come back gets its system prompt pinned again."""
        try:
            why = self.client.told_health()
            self._heard = time.monotonic()
        except EngineDeadError as error:
            if time.monotonic() < self._heard + DYING_S:
                return
            why = str(error)
        if why != "ready":
            if self._health[0] == "ready" or not self._was_ready:
                self._health = ("unhealthy", why)
            return
        if self._was_ready and self._health[0] == "degraded":
            logger.info("the engine answers again, %.1f s after its start", time.monotonic() - started)
            try:
                self.client.pin_system_prompt(self._settings.system_prompt)
            except EngineError as error:
                logger.warning("the system prompt could not be pinned again: %s", error)
        self._health = ("ready", "")
        self._was_ready = True
        self._read_stats()

    def _launch(self) -> "subprocess.Popen[bytes]":
        self._socket.unlink(missing_ok=True)
        forget_failure(self._socket)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "app", "engine", "--socket", str(self._socket)],
            env={**os.environ, **as_environment(self._settings), "PYTHONUNBUFFERED": "1"},
            cwd=Path(__file__).resolve().parent.parent.parent,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl+C is ours to handle
            preexec_fn=die_with_parent(os.getpid()),
        )
        logger.info("started the engine's process %d", self._process.pid)
        return self._process


def as_environment(settings: Settings) -> dict[str, str]:
    """The settings as a child of ours reads them."""
    values = {name: getattr(settings, name) for name in Settings.model_fields}
    return {f"{PREFIX}{name.upper()}": as_text(value) for name, value in values.items() if value is not None}


def _how(process: "subprocess.Popen[bytes]") -> str:
    code = process.returncode
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
