"""A client that goes away frees the engine, in every phase of its request and on every route that runs one."""

import json
import socket
import threading

import pytest

from tests.app.scripted import ScriptedEngineClient
from tests.app.serving import RunningServer, question, scripted_app, wait_until

MODEL = "smollm2-135m-instruct"
LONG = "Tell me more about this. " * 400  # some 2,400 tokens: many steps of 256
ROUTES = {
    "/chat/stream": lambda text, session: question(text, session, retrieval=False),
    "/chat/invoke": lambda text, session: question(text, session, retrieval=False),
    "/chat/batch": lambda text, session: {
        "inputs": [{"input": text}],
        "config": question(text, session, retrieval=False)["config"],
    },
    "/chat/stream_log": lambda text, session: question(text, session, retrieval=False),
    "/chat/stream_events": lambda text, session: question(text, session, retrieval=False),
    "/llm/stream": lambda text, session: question(text, None),
    "/v1/chat/completions": lambda text, session: completion(text, stream=False),
    "/v1/chat/completions stream": lambda text, session: completion(text, stream=True),
}


def completion(text, **fields):
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 1000,
        "ignore_eos": True,
        **fields,
    }


class Client:
    """A request on a bare socket, so that a test decides when the connection ends."""

    def __init__(self, server, path, body):
        self.socket = socket.create_connection(("127.0.0.1", server.port))
        self.socket.settimeout(120)
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
        self.socket.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + content)

    def read_until(self, text):
        received = b""
        while text not in received:
            part = self.socket.recv(65536)
            assert part, received
            received += part

    def vanish(self):
        self.socket.close()


def start(server, route, text=LONG, session="vanish"):
    return Client(server, route.split()[0], ROUTES[route](text, session))


def stats(server):
    return server.services.engine.engine.stats()


@pytest.fixture
def idle(server):
    """The engine before and after: nothing runs, and all blocks are free."""

    def is_idle():
        now = stats(server)
        return now.num_running == now.num_waiting == 0 and now.num_free_blocks == free

    wait_until(lambda: stats(server).num_running == stats(server).num_waiting == 0)
    free = stats(server).num_free_blocks
    yield
    wait_until(is_idle)


@pytest.mark.parametrize("route", ROUTES)
def test_leaving_during_the_prefill_frees_the_engine(server, idle, route):
    computed = stats(server).num_generated_tokens
    # Something else in front of each prompt, or the prefix cache would know it.
    client = start(server, route, f"{route} prefill. {LONG}")
    wait_until(lambda: stats(server).num_running == 1)
    client.vanish()
    wait_until(lambda: stats(server).num_running == 0)
    assert stats(server).num_generated_tokens == computed  # it ended before its first token


@pytest.mark.parametrize("route", ROUTES)
def test_leaving_the_queue_takes_the_request_out_of_it(server, idle, route):
    # Two requests fill the engine (max_num_seqs = 2).
    others = [Client(server, "/v1/chat/completions", completion("Count.", stream=True)) for _ in range(2)]
    for other in others:
        other.read_until(b'"content":"')
    wait_until(lambda: stats(server).num_running == 2)
    client = start(server, route, "Hello?")
    wait_until(lambda: stats(server).num_waiting == 1)
    client.vanish()
    wait_until(lambda: stats(server).num_waiting == 0)
    assert stats(server).num_running == 2
    for other in others:
        other.vanish()


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/chat/completions stream"])
def test_leaving_during_the_answer_frees_the_engine(server, idle, route):
    generated = stats(server).num_generated_tokens
    client = start(server, route, "Count to a thousand.")
    wait_until(lambda: stats(server).num_generated_tokens >= generated + 3)
    client.vanish()
    wait_until(lambda: stats(server).num_running == 0)
    assert stats(server).num_generated_tokens < generated + 900


@pytest.mark.parametrize("route", [route for route in ROUTES if route.startswith("/chat")])
def test_leaving_a_chat_during_its_answer_keeps_what_was_produced(tmp_path, route):
    engine = ScriptedEngineClient([f"word{number} " for number in range(1000)], delay_s=0.02)
    with RunningServer(scripted_app(tmp_path, engine)) as server:
        server.wait_until_ready()
        client = start(server, route, "Go on.")
        wait_until(lambda: engine.produced >= 3)
        client.vanish()
        wait_until(lambda: engine.open == 0)
        wait_until(lambda: not server.services.locks.is_held(("local", "vanish")))
        (turn,) = server.client.get("/api/v1/conversations/vanish").json()["turns"]
        assert turn["answer"].startswith("word0 word1")
        assert turn["interrupted"] is True
        assert engine.produced < 900


def test_leaving_while_waiting_for_the_turn_before_leaves_no_turn(tmp_path):
    engine = ScriptedEngineClient(["a "] * 30, delay_s=0.02)
    with RunningServer(scripted_app(tmp_path, engine)) as server:
        server.wait_until_ready()
        first = threading.Thread(target=server.post, args=("/chat/invoke", question("first", "vanish")))
        first.start()
        wait_until(lambda: engine.open == 1)
        waiting = [start(server, route, "second") for route in ("/chat/stream", "/chat/invoke")]
        for client in waiting:
            client.vanish()
        first.join(60)
        wait_until(lambda: not server.services.locks.is_held(("local", "vanish")))
        turns = server.client.get("/api/v1/conversations/vanish").json()["turns"]
        assert [(turn["question"], turn["interrupted"]) for turn in turns] == [("first", False)]


def test_a_slow_reader_does_not_stop_the_others(tmp_path):
    engine = ScriptedEngineClient(["x" * 10_000] * 600)
    with RunningServer(scripted_app(tmp_path, engine)) as server:
        server.wait_until_ready()
        slow = start(server, "/chat/stream", "Go.", "slow")
        wait_until(lambda: engine.produced >= 5)
        engine.pieces = ["done"]
        assert server.post("/chat/invoke", question("hi", "quick")).json()["output"]["answer"] == "done"
        slow.vanish()
        wait_until(lambda: engine.open == 0)
