"""What the HTTP stack costs over the engine, its own ceiling, and waiting times by the number of clients.

    python -m benchmarks.serve [ceiling] [overhead] [clients] [ramp] [--json FILE] [--engine-mode process]

Without names, all parts are run. `ceiling` puts a fake model behind the routes, which is never slower than they are;
the others load the model of the settings. Clients are another process, which the server goes before, and read bytes
without parsing what is in them. Rates count the tokens that the replies say they have. The engine alone is asked as
each route asks it: /chat puts a system prompt before the question, samples as the settings say, and ends where the
model does.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.http_servers import ragstone, stand_in
from benchmarks.http_streams import (
    QUESTION,
    Request,
    Times,
    all_at_once,
    chat_request,
    one_after_another,
    percentiles,
    read_stream,
    run_clients,
    v1_request,
)
from benchmarks.machine import describe_machine

STREAMS = 32
# Tokens of an answer: some hundred words, as people get.
NUM_TOKENS = 128
# Requests one by one, and rounds of STREAMS at once, of which medians are taken.
ALONE, ROUNDS = 15, 5
# Clients, and how many questions each asks one after another.
CLIENTS = {1: 40, 4: 15, 16: 8, 64: 4}
CLIENT_TOKENS = 24
RAMP_S = 12.0
# So many may wait while requests come faster than they can be answered; more are refused.
RAMP_QUEUE = 32
ROUTES = ("/v1", "/chat/stream")

# What each figure should reach: at least (1) or at most (-1).
BARS = {
    "/v1 (chunks/s)": (15_000, 1),
    "/chat/stream (chunks/s)": (4_000, 1),
    "/v1: first token over the engine's (ms)": (15.0, -1),
    "/chat/stream: first token over the engine's (ms)": (15.0, -1),
    "/v1: share of the engine's tokens/s": (0.9, 1),
    "/chat/stream: share of the engine's tokens/s": (0.75, 1),
    "goodput at 2 x capacity, of that at capacity": (0.95, 1),
    "goodput at 4 x capacity, of that at 2 x": (0.95, 1),
}


def asked(route: str, model: str, max_tokens: int) -> Request:
    """A question by one of the routes that are compared, in a conversation of its own."""
    return v1_request(model, max_tokens) if route == "/v1" else chat_request(f"s{time.perf_counter_ns()}", max_tokens)


# ── parts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def ceiling() -> dict[str, Any]:
    """Chunks a second that the routes send of a model that is never slower."""
    figures: dict[str, Any] = {}
    with stand_in("bare") as port:
        figures["bare route (chunks/s)"] = _chunks_per_s(port, lambda: ("/stream", {}))
    with stand_in("chain") as port:
        figures["bare LangServe chain (chunks/s)"] = _chunks_per_s(port, lambda: ("/chain/stream", {"input": {}}))
    with stand_in("fake") as port:
        for route in ROUTES:
            figures[f"{route} (chunks/s)"] = _chunks_per_s(port, lambda route=route: asked(route, "fake", 1000))  # type: ignore[misc]
    return figures


def _chunks_per_s(port: int, request: Callable[[], Request]) -> float:
    """The best of three, after one for warming up."""
    rates = []
    for _ in range(4):
        found, seconds = run_clients(all_at_once(port, [request() for _ in range(STREAMS)]))
        rates.append(sum(times.num_events for times in found) / seconds)
    return max(rates[1:])


class EngineAlone:
    """The engine in this process, without routes; asked for each route as that asks it."""

    def __init__(self) -> None:
        from app.engines.in_process import InProcessEngineClient, engine_config
        from app.models import resolve
        from app.settings import Settings
        from engine import AsyncEngine

        settings = Settings()
        self._engine = AsyncEngine(engine_config(settings, resolve(settings.model, settings)))
        self._client = InProcessEngineClient(self._engine, model_name=settings.model)
        self._runner = asyncio.Runner()
        question = {"role": "user", "content": QUESTION}
        # A turn is asked below the system prompt, with the settings' sampling, and ends where the model ends it.
        sampling = ("temperature", "top_p", "top_k", "repetition_penalty", "frequency_penalty", "seed")
        chosen = {name: value for name in sampling if (value := getattr(settings, name)) is not None}
        self._requests: dict[str, tuple[list[dict[str, str]], dict[str, Any]]] = {
            "/v1": ([question], {"temperature": 0.0, "ignore_eos": True}),
            "/chat/stream": ([{"role": "system", "content": settings.system_prompt}, question], chosen),
        }

    def __enter__(self) -> "EngineAlone":
        self._engine.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()
        self._engine.shutdown()

    def first_token_s(self, route: str) -> float:
        """Seconds to a first token where nobody else asks."""
        return self._runner.run(self._answer(route))[0]

    def tokens_per_s(self, route: str) -> float:
        """Of STREAMS at once."""

        async def together() -> float:
            started = time.perf_counter()
            answers = await asyncio.gather(*(self._answer(route) for _ in range(STREAMS)))
            return sum(num_tokens for _, num_tokens in answers) / (time.perf_counter() - started)

        return self._runner.run(together())

    async def _answer(self, route: str) -> tuple[float, int]:
        from app.engines.request import EngineRequest

        started, first, num_tokens = time.perf_counter(), 0.0, 0
        messages, params = self._requests[route]
        request = EngineRequest(messages=messages, params={**params, "max_tokens": NUM_TOKENS})
        async for delta in self._client.stream(request):
            num_tokens += len(delta.token_ids)
            if delta.token_ids and not first:
                first = time.perf_counter() - started
        return first, num_tokens


def overhead(mode: str, model: str) -> dict[str, Any]:
    """First token at one client and tokens a second of 32 streams, and the engine's own, in turns; medians of pairs.

    A machine is seldom as fast a minute later, so that what is compared is measured one right after the other.
    """
    figures: dict[str, Any] = {}
    with EngineAlone() as engine, ragstone(mode) as port:
        for route in ROUTES:

            def first_token_s(route: str = route) -> float:
                return run_clients(read_stream(port, *asked(route, model, NUM_TOKENS))).first_text

            def tokens_per_s(route: str = route) -> float:
                requests = [asked(route, model, NUM_TOKENS) for _ in range(STREAMS)]
                answers, took = run_clients(all_at_once(port, requests))
                return sum(times.num_tokens for times in answers) / took

            alone = [(engine.first_token_s(route), first_token_s()) for _ in range(ALONE + 1)][1:]
            rates = [(engine.tokens_per_s(route), tokens_per_s()) for _ in range(ROUNDS + 1)][1:]
            own_first = statistics.median(own for own, _ in alone)
            figures[f"engine, asked as by {route}: first token (ms)"] = 1000 * own_first
            figures[f"engine, asked as by {route}: tokens/s of {STREAMS}"] = statistics.median(own for own, _ in rates)
            figures[f"{route}: first token over the engine's (ms)"] = 1000 * (
                statistics.median(its for _, its in alone) - own_first
            )
            figures[f"{route}: share of the engine's tokens/s"] = statistics.median(its / own for own, its in rates)
    return figures


def clients(port: int, model: str) -> dict[str, Any]:
    """First token, gap between pieces and whole answer by the number of clients, for each route."""
    table: dict[str, Any] = {}
    for route in ROUTES:
        for count, questions in CLIENTS.items():
            requests = [[asked(route, model, CLIENT_TOKENS) for _ in range(questions)] for _ in range(count)]
            found, seconds = run_clients(one_after_another(port, requests))
            done = [times for times in found if times.status == 200]
            table[f"{route}, {count} clients"] = {
                "first token (ms)": percentiles([times.first_text for times in done]),
                "gap (ms)": percentiles([gap for times in done for gap in times.gaps]),
                "total (ms)": percentiles([times.total for times in done]),
                "tokens/s": sum(times.num_tokens for times in done) / seconds,
                "answers": len(done),
                "refused": len(found) - len(done),
            }
    return table


def ramp(mode: str, model: str) -> dict[str, Any]:
    """Answers a second that are completed while requests come at half to four times what the server can do."""
    with ragstone(mode, MAX_QUEUE_SIZE=str(RAMP_QUEUE)) as port:
        for _ in range(2):  # once to warm up
            found, took = run_clients(all_at_once(port, [v1_request(model, CLIENT_TOKENS)] * 40))
        capacity = len([times for times in found if times.status == 200]) / took
        rows = {share: run_clients(_offered(port, model, share * capacity)) for share in (0.5, 1.0, 2.0, 4.0)}
    goodput = {share: row["goodput (1/s)"] for share, row in rows.items()}
    return {
        "capacity (1/s)": capacity,
        "rows": {f"{share:g} x": row for share, row in rows.items()},
        "goodput at 2 x capacity, of that at capacity": goodput[2.0] / goodput[1.0],
        "goodput at 4 x capacity, of that at 2 x": goodput[4.0] / goodput[2.0],
    }


async def _offered(port: int, model: str, rate: float) -> dict[str, Any]:
    """What becomes of requests that come at a rate, whether or not those before them are answered."""
    tasks: list[asyncio.Task[Times]] = []
    started = time.perf_counter()
    while (now := time.perf_counter() - started) < RAMP_S:
        while len(tasks) <= now * rate:
            tasks.append(asyncio.create_task(read_stream(port, *v1_request(model, CLIENT_TOKENS))))
        await asyncio.sleep(0.005)
    answers = await asyncio.gather(*tasks)
    took = time.perf_counter() - started
    done = [times for times in answers if times.status == 200 and times.num_tokens == CLIENT_TOKENS]
    refused = [times for times in answers if times.status in (429, 503)]
    return {
        "offered (1/s)": rate,
        "offered": len(answers),
        "completed": len(done),
        "refused": len(refused),
        "failed": len(answers) - len(done) - len(refused),
        "goodput (1/s)": len(done) / took,
        "first token (ms)": percentiles([times.first_text for times in done]),
        "gap (ms)": percentiles([gap for times in done for gap in times.gaps]),
        "total (ms)": percentiles([times.total for times in done]),
    }


# ── report ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def show(figures: dict[str, Any]) -> None:
    """Prints figures, with what each should reach; of groups of figures, one line a group."""
    for name, value in figures.items():
        if isinstance(value, dict):
            print(f"{name}")
            _show_group(value)
            continue
        bar, said = BARS.get(name), ""
        if bar is not None:
            is_reached = bar[1] * value >= bar[1] * bar[0]
            said = f"   {'at least' if bar[1] > 0 else 'at most'} {bar[0]:,g}{'' if is_reached else ': MISSED'}"
        print(f"{name:<52}{value:>12,.2f}{said}")
    print(flush=True)


def _show_group(group: dict[str, Any]) -> None:
    if all(isinstance(value, dict) for value in group.values()):  # rows of groups
        for name, row in group.items():
            print(f"  {name}")
            _show_group(row)
        return
    plain = {name: value for name, value in group.items() if not isinstance(value, dict)}
    print("    " + "   ".join(f"{name} {value:,.1f}" for name, value in plain.items()))
    for name, shares in group.items():
        if isinstance(shares, dict):
            print(f"    {name:<18} " + "   ".join(f"{share} {value:,.1f}" for share, value in shares.items()))


def measured(parts: Sequence[str], mode: str) -> dict[str, Any]:
    """The figures of the parts that are named, printed as they come."""
    from app.settings import Settings

    model = Settings().model
    figures: dict[str, Any] = {"machine": describe_machine(), "engine_mode": mode, "model": model}

    def clients_of_a_server() -> dict[str, Any]:
        with ragstone(mode) as port:
            run_clients(read_stream(port, *v1_request(model, 8)))
            return clients(port, model)

    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "ceiling": ceiling,
        "overhead": lambda: overhead(mode, model),
        "clients": clients_of_a_server,
        "ramp": lambda: ramp(mode, model),
    }
    for part, make in makers.items():
        if not parts or part in parts:
            figures[part] = make()
            show(figures[part])
    return figures


def main() -> None:
    """Run the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="ceiling, overhead, clients, ramp")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--engine-mode", default="in-process", choices=("in-process", "process"))
    arguments = parser.parse_args()
    figures = measured(arguments.parts, arguments.engine_mode)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
