"""The stores behind a URL, over real servers: the suite of the file (`test_history.py`), and what a restart does."""

import inspect
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.errors import SettingsError, StoreUnavailableError
from app.history import ConversationStore, TurnResult
from app.history_url import open_history
from app.settings import Settings
from tests.app import test_history as suite
from tests.app.serving import wait_until
from tests.app.test_operations import free_port

# Every test of the suite that is about stores as such, and not about the file.
globals().update(
    {
        name: test
        for name, test in vars(suite).items()
        if name.startswith("test_")
        and {"store"} <= set(inspect.signature(test).parameters)
        and "path" not in inspect.signature(test).parameters
    }
)


@dataclass
class Server:
    """A database server of this test's own. `command` starts it again on the same data."""

    url: str
    command: list[str]
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers)

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)  # SIGTERM makes Postgres wait until its clients have gone
        self.process.wait()

    def signal_all(self, number: signal.Signals) -> None:
        """To the server and to the processes that it answers connections with."""
        assert self.process is not None
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (pid, *map(int, children)):
            os.kill(each, number)

    def _answers(self) -> bool:
        try:
            open_history(Settings(history_url=self.url)).close()
        except StoreUnavailableError:
            return False
        return True


def redis_server(folder: Path) -> Server:
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes"]
    return Server(f"redis://127.0.0.1:{port}/0", [*command, "--appendfsync", "always", "--save", ""])


def postgres_server(folder: Path) -> Server:
    port = free_port()
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    initdb, postgres = (
        shutil.which(name, path=f"{binaries[-1]}:{os.environ['PATH']}") for name in ("initdb", "postgres")
    )
    assert initdb
    assert postgres
    as_user: list[str] = []
    if os.getuid() == 0:  # it refuses to run as root
        shutil.chown(folder, "postgres")
        as_user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
    data = str(folder / "data")
    subprocess.run(
        [*as_user, initdb, "-D", data, "-A", "trust", "-U", "ragstone", "-N"], check=True, capture_output=True
    )
    command = [*as_user, postgres, "-D", data, "-p", str(port), "-c", "listen_addresses=127.0.0.1", "-k", str(folder)]
    return Server(f"postgresql://ragstone@127.0.0.1:{port}/postgres", command)


KINDS: dict[str, tuple[Callable[[Path], Server], Callable[[], bool]]] = {
    "redis": (redis_server, lambda: shutil.which("redis-server") is not None),
    "postgres": (postgres_server, lambda: any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))),
}


@pytest.fixture(params=list(KINDS), scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    make, is_installed = KINDS[request.param]
    if not is_installed():
        pytest.skip(f"{request.param} is not installed")
    # Outside the tests' own folder, which nobody else may enter: Postgres runs as another user than root.
    with tempfile.TemporaryDirectory() as folder:
        server = make(Path(folder))
        server.start()
        yield server
        server.stop()


@pytest.fixture
def store(server: Server) -> Iterator[ConversationStore]:
    store = open_history(Settings(history_url=server.url))
    if server.url.startswith("redis"):
        store._redis.flushdb()  # type: ignore[attr-defined]
    else:
        store._ask(lambda connection: connection.execute("TRUNCATE ragstone_conversations CASCADE"))  # type: ignore[attr-defined]
    yield store
    store.close()


def test_what_was_stored_is_there_after_a_restart_of_the_server(server: Server, store: ConversationStore) -> None:
    store.finish_turn("ada", "s/\u00e4 1", store.begin_turn("ada", "s/\u00e4 1", "q\x00\u00e9"), TurnResult(answer="a"))
    store.begin_turn("ada", "s/\u00e4 1", "and then?")
    server.stop()
    server.start()
    assert [(turn.question, turn.answer, turn.interrupted) for turn in store.turns("ada", "s/\u00e4 1")] == [
        ("q\x00\u00e9", "a", False),
        ("and then?", "", True),
    ]
    assert store.begin_turn("ada", "s/\u00e4 1", "more") == 2


def test_what_an_earlier_version_kept_stays_behind_what_is_used_later(
    server: Server, store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It noted no times beside the heads, and clocks are set back."""
    for name in "ab":
        store.finish_turn("ada", name, store.begin_turn("ada", name, "q\x00"), TurnResult(answer="a"))
    if server.url.startswith("redis"):
        store._redis.delete("ragstone:times:ada")  # type: ignore[attr-defined]
    else:
        without = "ALTER TABLE ragstone_conversations DROP COLUMN newest"
        store._ask(lambda connection: connection.execute(without))  # type: ignore[attr-defined]
    with closing(open_history(Settings(history_url=server.url))) as upgraded:
        monkeypatch.setattr("app.history.utc_now", lambda: datetime(2020, 1, 1, tzinfo=UTC))
        upgraded.begin_turn("ada", "c", "q")
        upgraded.delete("ada", "b")
        upgraded.begin_turn("ada", "a", "q")
        assert [entry.session_id for entry in upgraded.conversations("ada")] == ["a", "c"]
        assert upgraded.restore("ada", "b") is True
        upgraded.truncate("ada", "c", 0)
        assert [entry.session_id for entry in upgraded.conversations("ada")] == ["a", "b"]


def test_server_that_is_away_is_told_of_by_a_typed_error(server: Server, store: ConversationStore) -> None:
    server.stop()
    try:
        with pytest.raises(StoreUnavailableError) as raised:
            store.turns("ada", "s")
        assert raised.value.status_code == 503
    finally:
        server.start()
    assert store.turns("ada", "s") == []


def test_server_that_hangs_is_told_of_soon_and_makes_nobody_else_wait(
    server: Server, store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.outage._PAUSE_S", 60.0)
    assert store.problem == ""
    server.signal_all(signal.SIGSTOP)
    try:
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match="no answer within 5 s"):
                store.turns("ada", "s")
        assert store.problem.endswith(" does not answer")
    finally:
        server.signal_all(signal.SIGCONT)
    monkeypatch.setattr("app.outage._PAUSE_S", 0.0)
    wait_until(lambda: has_turns(store, 0))
    assert store.problem == ""


def has_turns(store: ConversationStore, number: int) -> bool:
    try:
        return len(store.turns("ada", "s")) == number
    except StoreUnavailableError:
        return False


def test_url_of_another_kind_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="redis://, rediss://, unix:// or postgresql://"):
        Settings(history_url="mysql://host/db")
