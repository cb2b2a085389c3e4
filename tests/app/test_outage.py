"""What is known of a server in another process that does not answer."""

from pathlib import Path

import pytest

from app.errors import StoreUnavailableError
from app.outage import Outage
from tests.app.serving import RunningServer, scripted_app


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("app.outage.time.monotonic", clock)
    return clock


def test_who_asks_after_somebody_has_waited_in_vain_is_refused_for_a_while(clock: Clock) -> None:
    outage = Outage("Redis")
    outage.check()
    error = outage.failed("timed out", waited=True)
    assert str(error) == "Redis: no answer within 5 s"
    with pytest.raises(StoreUnavailableError, match="no answer within 5 s"):
        outage.check()
    clock.now += 4
    outage.check()


def test_one_that_refuses_at_once_may_be_asked_again_at_once(clock: Clock) -> None:
    outage = Outage("Redis")
    assert str(outage.failed("connection refused")) == "Redis: connection refused"
    outage.check()


def test_the_reason_is_told_until_the_next_success_or_for_a_minute(clock: Clock) -> None:
    outage = Outage("Redis")
    outage.failed("Error 111 connecting to 10.0.0.5:6379")
    assert outage.reason == "Redis does not answer"
    outage.succeeded()
    assert outage.reason == ""
    outage.failed("connection refused")
    clock.now += 61
    assert outage.reason == ""


def test_readiness_tells_of_conversations_that_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunningServer(scripted_app(tmp_path)) as server:
        server.wait_until_ready()
        monkeypatch.setattr(type(server.services.history), "problem", "Redis does not answer")
        response = server.client.get("/v1/health/ready")
        assert (response.status_code, response.json()) == (
            200,
            {"status": "degraded", "reason": "Redis does not answer"},
        )
