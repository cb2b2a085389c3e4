"""`ragstone serve` as a process: what it refuses before it loads anything, its child, its signals and what it prints.

The application itself is replaced by a small one (`ragstone serve` in full is driven in tests/e2e); the processes,
ports, signals and the UI are real.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app import preflight
from app.errors import DataFolderError, PortInUseError, StartupError
from app.serve import answers, base_url
from app.settings import Settings
from tests.app.serving import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0

# Stands for app.server: the same face (create_app, state.services), ready after a second or never, as argv says.
PROGRAM = """
import sys, threading, time, types
from fastapi import FastAPI
from app.settings import Settings
from app import serve

kind, port, ui_port, data, model, ui = sys.argv[1:]

class Services:
    def __init__(self):
        self.load_error = None
        self.born = time.monotonic()
    def status(self):
        if kind == "fails" and time.monotonic() > self.born + 1:
            self.load_error = RuntimeError("the weights are upside down")
            return "unhealthy", str(self.load_error)
        if kind == "loads-forever" or time.monotonic() < self.born + 1:
            return "starting", "loading"
        return "ready", ""
    def drain(self, timeout_s):
        pass

def create_app(settings):
    app = FastAPI()
    app.state.services = Services()
    app.get("/v1/health/live")(lambda: {"status": "live"})
    return app

sys.modules["app.server"] = types.SimpleNamespace(create_app=create_app)
settings = Settings(
    port=int(port), ui_port=int(ui_port), data=data, model=model, embedding_model=model, ui=ui == "ui", min_free_bytes=0
)
sys.exit(serve.serve(settings))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """The program above, started, with what it prints in two files."""

    def __init__(self, folder: Path, kind: str, *, ui: bool = False) -> None:
        self.port, self.ui_port = free_port(), free_port()
        self._out, self._log = folder / "out.txt", folder / "log.txt"
        self.data = folder / "data"
        model = folder / "tiny.gguf"
        model.write_bytes(b"resolved by path and never read")
        arguments = [kind, str(self.port), str(self.ui_port), str(self.data), str(model), "ui" if ui else "no-ui"]
        with self._out.open("w") as out, self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *arguments],
                stdout=out,
                stderr=log,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def ui_pid(self) -> int:
        found = re.search(r"starting the chat UI \(process (\d+)\)", self.log)
        assert found is not None, self.log
        return int(found[1])

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"out: {self.out}\nlog: {self.log}"
            time.sleep(0.05)

    def wait_until_ready(self) -> None:
        self.wait_for(lambda: "Press Ctrl+C" in self.out or self.process.poll() is not None)
        assert self.process.poll() is None, self.log


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start_one(kind: str = "works", *, ui: bool = False) -> Server:
        servers.append(Server(tmp_path, kind, ui=ui))
        return servers[-1]

    yield start_one
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()


def runs(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ragstone(*arguments: str, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAGSTONE_")}
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        cwd=cwd,
        env={**kept, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield int(other.getsockname()[1])


# ── what is refused before anything is loaded ────────────────────────────────────────────────────────────────────────


def test_api_port_in_use_says_which_for_what_and_how_to_change_it(tmp_path: Path, busy_port: int) -> None:
    result = ragstone("serve", "--port", str(busy_port), "--ui-port", str(free_port()), cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr == (
        f"error: port {busy_port} on 127.0.0.1, which the API needs, is in use by another program: stop that program, "
        "or choose another with --port or RAGSTONE_PORT\n"
    )
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []  # refused before a folder was made


def test_ui_port_in_use_says_which_for_what_and_how_to_change_it(tmp_path: Path, busy_port: int) -> None:
    result = ragstone("serve", cwd=tmp_path, RAGSTONE_PORT=str(free_port()), RAGSTONE_UI_PORT=str(busy_port))
    assert result.returncode == 1
    assert f"port {busy_port} on 127.0.0.1, which the chat UI needs, is in use" in result.stderr
    assert "--ui-port or RAGSTONE_UI_PORT" in result.stderr
    assert "Traceback" not in result.stderr


def test_port_of_the_ui_does_not_matter_without_ui(busy_port: int) -> None:
    with preflight.reserve_ports(Settings(port=free_port(), ui_port=busy_port, ui=False)) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_one_port_for_both_is_refused() -> None:
    port = free_port()
    with pytest.raises(PortInUseError, match=f"cannot both have port {port}"):
        preflight.reserve_ports(Settings(port=port, ui_port=port))


def test_reserved_port_can_be_listened_on_right_after_a_server_left_it() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as earlier:
        client = socket.create_connection(("127.0.0.1", port))
        connection, _ = earlier.accept()
        connection.close()  # the server closes first, so its side stays in TIME_WAIT
        client.close()
    with preflight.reserve_ports(Settings(port=port, ui=False)) as listener:
        listener.listen()


@pytest.mark.parametrize(
    ("host", "said"), [("192.0.2.1", "not an address of this machine"), ("no such", "not an address")]
)
def test_host_that_is_not_ours_is_refused_with_examples(host: str, said: str) -> None:
    with pytest.raises(StartupError, match=said) as raised:
        preflight.reserve_ports(Settings(host=host, port=free_port(), ui=False))
    assert "--host or RAGSTONE_HOST" in str(raised.value)


def test_data_folder_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    data = tmp_path / "file" / "data"
    result = ragstone(
        "serve", "--data", str(data), "--port", str(free_port()), "--ui-port", str(free_port()), cwd=tmp_path
    )
    assert result.returncode == 1
    assert result.stderr == (
        f"error: the data folder {data} cannot be written (Not a directory): give this user the right to write there, "
        "or choose another folder with --data or RAGSTONE_DATA\n"
    )


def test_read_only_data_folder_says_where() -> None:
    """/proc can be written by nobody, not even by root."""
    with pytest.raises(DataFolderError, match=r"the data folder /proc/sys cannot be written"):
        preflight.check_data_folder(Settings(data="/proc/sys"))


def test_full_disk_says_where_and_how_much(tmp_path: Path) -> None:
    result = ragstone(
        "serve", cwd=tmp_path, RAGSTONE_MIN_FREE_BYTES=str(1 << 60), RAGSTONE_PORT=str(free_port()), RAGSTONE_UI="false"
    )
    assert result.returncode == 1
    assert re.match(
        rf"error: the data folder {tmp_path}/ragstone-data has [\d,]+ MiB of disk space left, and it wants "
        r"1,099,511,627,776 MiB: free some space",
        result.stderr,
    )


def test_writing_that_fails_for_want_of_space_says_where(tmp_path: Path) -> None:
    """/dev/full is a device whose every write fails with "no space left"; the probe is pointed at it."""
    import tempfile

    full = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    with pytest.MonkeyPatch.context() as patch, full:
        patch.setattr(tempfile, "TemporaryFile", lambda dir: full)
        with pytest.raises(DataFolderError, match=f"no space is left in the data folder {tmp_path}"):
            preflight.check_data_folder(Settings(data=tmp_path))


def test_second_server_on_a_data_folder_is_refused_and_the_lock_ends_with_its_holder(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, min_free_bytes=0)
    with preflight.take_data_folder(settings):
        result = ragstone("serve", "--no-ui", "--data", str(tmp_path), "--port", str(free_port()), cwd=tmp_path)
        assert result.returncode == 1
        assert f"the data folder {tmp_path} is in use by another server (process {os.getpid()})" in result.stderr
    preflight.take_data_folder(settings).close()


# ── the environment ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_environment_keeps_writes_in_the_data_folder_and_tells_nobody(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    preflight.set_process_environment(Settings(data=tmp_path), environment)
    for name in ("TMPDIR", "HF_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "GRADIO_TEMP_DIR"):
        assert Path(environment[name]).is_relative_to(tmp_path), name
    assert environment["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert environment["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"
    assert environment["OMP_NUM_THREADS"] == str(preflight.usable_cpus())


def test_environment_that_a_person_has_set_stays(tmp_path: Path) -> None:
    environment = {"OMP_NUM_THREADS": "7", "HF_HOME": "/mine", "TMPDIR": str(tmp_path)}
    preflight.set_process_environment(Settings(data=tmp_path / "data"), environment)
    assert (environment["OMP_NUM_THREADS"], environment["HF_HOME"]) == ("7", "/mine")
    assert environment["HF_TOKEN_PATH"] == "/mine/token"


def test_cpus_are_those_of_the_process_and_not_of_the_machine() -> None:
    program = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    program += "from app.preflight import usable_cpus; print(usable_cpus())"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout == "1\n"


def test_distribution_that_would_be_shadowed_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert preflight.shadowing_distribution() is None
    (tmp_path / "kernels-0.9.0.dist-info").mkdir()
    (tmp_path / "kernels-0.9.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: kernels\nVersion: 0.9.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    warning = preflight.shadowing_distribution()
    assert warning is not None
    assert warning.startswith("the distribution `kernels` 0.9.0 is installed in this environment")
    assert warning.endswith(f"Remove it with: {sys.executable} -m pip uninstall -y kernels")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("box.lan", "http://box.lan:80"),
    ],
)
def test_address_is_one_that_a_browser_can_open(host: str, url: str) -> None:
    assert base_url(host, 80) == url


# ── the process ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_addresses_are_printed_once_ready_and_a_signal_ends_it_with_0(
    start: Callable[..., Server], number: signal.Signals
) -> None:
    server = start()
    server.wait_until_ready()
    server.process.send_signal(number)
    assert server.process.wait(PATIENCE_S) == 0
    assert server.out == f"\nRagstone is ready.\n  API   http://127.0.0.1:{server.port}\nPress Ctrl+C to stop.\n\n"
    assert "Traceback" not in server.log


def test_signal_while_loading_ends_it_at_once_with_0(start: Callable[..., Server]) -> None:
    server = start("loads-forever")
    with_api = f"http://127.0.0.1:{server.port}/v1/health/live"
    import urllib.error
    import urllib.request

    def is_live() -> bool:
        try:
            return bool(urllib.request.urlopen(with_api, timeout=5).status == 200)
        except (urllib.error.URLError, OSError):
            return False

    server.wait_for(is_live)  # the API answers while the models load
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE_S) == 0
    assert server.out == ""
    assert "stopped while loading" in server.log


def test_failed_load_ends_the_process_with_1(start: Callable[..., Server]) -> None:
    server = start("fails")
    assert server.process.wait(PATIENCE_S) == 1
    assert server.out == ""


def test_killed_server_takes_its_ui_along(start: Callable[..., Server]) -> None:
    server = start("loads-forever", ui=True)
    server.wait_for(lambda: "starting the chat UI" in server.log)
    pid = server.ui_pid
    assert runs(pid)
    server.process.kill()
    server.process.wait()
    server.wait_for(lambda: not runs(pid))


def test_ui_is_announced_when_it_answers_and_started_again_when_it_dies_while_the_api_goes_on(
    start: Callable[..., Server],
) -> None:
    server = start(ui=True)
    server.wait_until_ready()
    assert f"  Chat  http://127.0.0.1:{server.ui_port}\n  API   http://127.0.0.1:{server.port}\n" in server.out
    os.kill(server.ui_pid, signal.SIGKILL)
    server.wait_for(lambda: "the chat UI ended by itself (exit code -9); it is started again" in server.log)
    assert server.process.poll() is None
    socket.create_connection(("127.0.0.1", server.port), timeout=5).close()
    server.wait_for(lambda: answers(f"http://127.0.0.1:{server.ui_port}"))
    server.process.terminate()
    assert server.process.wait(PATIENCE_S) == 0


def test_stopped_server_stops_its_ui_without_calling_it_a_failure(start: Callable[..., Server]) -> None:
    server = start(ui=True)
    server.wait_until_ready()
    pid = server.ui_pid
    server.process.terminate()
    assert server.process.wait(PATIENCE_S) == 0
    assert not runs(pid)
    assert "ended by itself" not in server.log
    assert "Traceback" not in server.log


def test_the_page_alone_is_served_for_an_api_that_runs_already(tmp_path: Path) -> None:
    api, page = free_port(), free_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAGSTONE_")}
    where = ["--api-url", f"http://127.0.0.1:{api}/"]
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "ui", "--ui-port", str(page), "--data", str(tmp_path / "data"), *where],
        env={**kept, "PYTHONPATH": str(REPOSITORY)},
        cwd=tmp_path,
    )
    try:

        def shown() -> str:
            assert process.poll() is None
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{page}/", timeout=30) as answer:
                    return str(answer.read().decode())
            except OSError:
                return ""

        wait_until(lambda: shown() != "", 120)
        assert "Ragstone" in shown()
        assert list((tmp_path / "data").iterdir()) == [tmp_path / "data" / "ui"]
    finally:
        process.terminate()
        assert process.wait(60) in (0, -signal.SIGTERM)
