"""Conversations in Redis: for each user a hash of heads and their newest times in order; a hash of turns for each.

Nothing is lost over a restart of Redis only where it writes to disk (`appendonly yes`).
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from app.history import as_stored
from app.outage import ANSWER_S, Outage
from app.record_history import Change, Record, RecordConversationStore, newest_time

PREFIX = "ragstone:"
CONNECT_S = 5.0
# A restart of Redis takes a moment; a request waits for it a little.
NUM_RETRIES = 6
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RedisConversationStore(RecordConversationStore):
    """Conversations in the Redis at `url` (redis://…, rediss://…, unix://…)."""

    def __init__(self, url: str) -> None:
        """Connects. Raises StoreUnavailableError."""
        self._redis: Any = redis.Redis.from_url(
            url,
            decode_responses=True,
            socket_connect_timeout=CONNECT_S,
            socket_timeout=ANSWER_S,
            # Not after a time-out: who does not answer once will not answer six times.
            retry=Retry(ExponentialBackoff(cap=1.0, base=0.05), NUM_RETRIES, (redis.ConnectionError,)),
        )
        self._outage = Outage("Redis")
        self._ask(self._redis.ping)

    def _heads(self, user: str) -> dict[str, Record]:
        found = self._ask(self._redis.hgetall, _heads_key(user))
        return {name: json.loads(text) for name, text in found.items()}

    def _head(self, user: str, session_id: str) -> Record | None:
        text = self._ask(self._redis.hget, _heads_key(user), session_id)
        return None if text is None else dict(json.loads(text))

    def _newest(self, user: str) -> str | None:
        times, heads = _times_key(user), _heads_key(user)
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.zrevrange(times, 0, 0, withscores=True)
        pipeline.zcard(times)
        pipeline.hlen(heads)
        last, num_times, num_heads = self._ask(pipeline.execute)
        if num_times != num_heads:  # an earlier version has kept them, which noted no times
            scores = {name: _score(head) for name, head in self._heads(user).items()}
            pipeline.delete(times)
            if scores:
                pipeline.zadd(times, scores)
            self._ask(pipeline.execute)
            last = sorted(scores.items(), key=lambda entry: entry[1])[-1:]
        return as_stored(_EPOCH + timedelta(milliseconds=int(last[0][1]))) if last else None

    def _records(self, user: str, session_id: str) -> dict[int, Record]:
        found = self._ask(self._redis.hgetall, _turns_key(user, session_id))
        return {int(number): json.loads(text) for number, text in found.items()}

    def _record(self, user: str, session_id: str, number: int) -> Record | None:
        text = self._ask(self._redis.hget, _turns_key(user, session_id), str(number))
        return None if text is None else dict(json.loads(text))

    def _apply(self, user: str, session_id: str, change: Change) -> None:
        heads, times, turns = _heads_key(user), _times_key(user), _turns_key(user, session_id)
        pipeline = self._redis.pipeline(transaction=True)
        if change.head is None:
            pipeline.hdel(heads, session_id)
            pipeline.zrem(times, session_id)
            pipeline.delete(turns)
        else:
            pipeline.hset(heads, session_id, json.dumps(change.head))
            pipeline.zadd(times, {session_id: _score(change.head)})
            for number, record in change.turns.items():
                if record is None:
                    pipeline.hdel(turns, str(number))
                else:
                    pipeline.hset(turns, str(number), json.dumps(record))
        self._ask(pipeline.execute)

    def _put(self, user: str, session_id: str, number: int, record: Record) -> None:
        self._ask(self._redis.hset, _turns_key(user, session_id), str(number), json.dumps(record))

    def close(self) -> None:
        self._redis.close()

    @property
    def problem(self) -> str:
        return self._outage.reason

    def _ask(self, call: Any, *arguments: Any) -> Any:
        self._outage.check()
        try:
            found = call(*arguments)
        except redis.RedisError as error:
            raise self._outage.failed(error, waited=isinstance(error, redis.TimeoutError)) from error
        self._outage.succeeded()
        return found


def _heads_key(user: str) -> str:
    return f"{PREFIX}conversations:{quote(user, safe='')}"


def _times_key(user: str) -> str:
    return f"{PREFIX}times:{quote(user, safe='')}"


def _score(head: Record) -> int:
    """Its newest time in milliseconds since 1970."""
    return (datetime.fromisoformat(newest_time(head)) - _EPOCH) // timedelta(milliseconds=1)


def _turns_key(user: str, session_id: str) -> str:
    return f"{PREFIX}turns:{quote(user, safe='')}:{quote(session_id, safe='')}"
