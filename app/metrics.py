"""Prometheus metrics of one server, under vLLM's names with the prefix `ragstone:`.

Gauges and counters of the engine are read when scraped; times are observed when a request ends. What the engine counts
is the engine's business (`EngineStats`).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.engines.client import RequestTimes
from engine.outputs import EngineStats

if TYPE_CHECKING:
    from app.answering import Grounding

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

TOKEN_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
PER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)
REQUEST_BUCKETS = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)
RETRIEVAL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

_GAUGES: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("num_requests_running", "Requests that the engine is computing.", lambda stats: stats.num_running),
    ("num_requests_waiting", "Requests that wait for room in the engine.", lambda stats: stats.num_waiting),
    ("kv_cache_usage_perc", "Share of KV blocks that requests hold; 1 is all.", lambda stats: stats.kv_usage),
)
_COUNTERS: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("num_preemptions", "Requests that had to give back their blocks.", lambda stats: stats.num_preemptions),
    ("prompt_tokens", "Prompt tokens computed.", lambda stats: stats.num_prompt_tokens),
    ("generation_tokens", "Tokens generated.", lambda stats: stats.num_generated_tokens),
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", lambda stats: stats.num_prefix_queries),
    ("spec_decode_num_drafts", "Verifications of a request's drafts.", lambda stats: stats.num_drafts),
    ("spec_decode_num_draft_tokens", "Tokens drafted.", lambda stats: stats.num_draft_tokens),
    ("spec_decode_num_accepted_tokens", "Drafted tokens accepted.", lambda stats: stats.num_accepted_tokens),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda stats: stats.num_prefix_hits),
)


class ServerMetrics:
    """All metrics of one server; each server has its own registry, so that two in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._engines: dict[str, Callable[[], EngineStats]] = {}
        self._routed = Counter(
            "ragstone:routed_requests",
            "Requests by the model that was asked, and why: its name, a rule, as default, or for one that failed.",
            ["model", "reason"],
            registry=self.registry,
        )
        self.registry.register(_EngineCollector(self))
        self.retrieval_seconds = Histogram(
            "ragstone:retrieval_time_seconds", "Time of one search.", buckets=RETRIEVAL_BUCKETS, registry=self.registry
        )
        self.refused = Counter(
            "ragstone:tenant_requests_refused",
            "Requests refused for a tenant's limit.",
            ["tenant", "limit"],
            registry=self.registry,
        )
        self._answers = Counter(
            "ragstone:grounded_answers",
            "Answers that were checked against their sources, by mode and by what came of it.",
            ["mode", "state"],
            registry=self.registry,
        )
        self._sentences = Counter(
            "ragstone:grounded_sentences",
            "Sentences of those answers, by whose words they are and whether a source supports them.",
            ["origin", "supported"],
            registry=self.registry,
        )
        self.degraded = Counter(
            "ragstone:degraded_requests", "Requests answered with less.", ["policy"], registry=self.registry
        )
        self._of_tenant = {
            kind: Counter(f"ragstone:tenant_{kind}", text, ["tenant"], registry=self.registry)
            for kind, text in (
                ("requests", "Requests that ended, by tenant."),
                ("prompt_tokens", "Prompt tokens, by tenant."),
                ("generation_tokens", "Tokens of answers, by tenant."),
            )
        }
        self._success = self._counter("request_success", "Requests that ended, by reason.", "finished_reason")
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "From the request to its first token.", FIRST_TOKEN_BUCKETS
        )
        self._per_token = self._histogram(
            "time_per_output_token_seconds", "Mean time between the tokens of a request.", PER_TOKEN_BUCKETS
        )
        self._whole = self._histogram("e2e_request_latency_seconds", "From the request to its end.", REQUEST_BUCKETS)
        self._prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKEN_BUCKETS)
        self._generation = self._histogram("request_generation_tokens", "Tokens of an answer.", TOKEN_BUCKETS)
        self._max_tokens = self._histogram("request_params_max_tokens", "max_tokens of a request.", TOKEN_BUCKETS)
        self._n = self._histogram("request_params_n", "n of a request.", (1, 2, 5, 10, 20))

    @property
    def engine(self) -> tuple[str, Callable[[], EngineStats]] | None:
        """Name and statistics of the default model, which is watched first; None until there is one."""
        return next(iter(self._engines.items()), None)

    @property
    def engines(self) -> Mapping[str, Callable[[], EngineStats]]:
        """Statistics of every model that is watched, by name."""
        return self._engines

    def count_routed(self, model_name: str, reason: str) -> None:
        """A model is asked for an answer."""
        self._routed.labels(model_name, reason).inc()

    def count_grounding(self, grounding: "Grounding") -> None:
        """An answer was checked."""
        self._answers.labels(grounding.mode, grounding.state).inc()
        for sentence in grounding.sentences:
            self._sentences.labels(sentence.origin, "yes" if sentence.supported else "no").inc()

    def watch(self, model_name: str, stats: Callable[[], EngineStats]) -> None:
        """From now on, scrapes show this model too."""
        self._engines[model_name] = stats

    def observe(self, model: str, times: RequestTimes) -> None:
        """Takes a request to a model that has ended into account."""
        self._success.labels(model, times.finish_reason).inc()
        self._of_tenant["requests"].labels(times.tenant).inc()
        self._of_tenant["prompt_tokens"].labels(times.tenant).inc(times.num_prompt_tokens)
        self._of_tenant["generation_tokens"].labels(times.tenant).inc(times.num_output_tokens)
        ended = times.ended or times.started
        self._whole.labels(model).observe(ended - times.started)
        self._n.labels(model).observe(times.n)
        if times.max_tokens is not None:
            self._max_tokens.labels(model).observe(times.max_tokens)
        if times.first_token is None:
            return
        self._first_token.labels(model).observe(times.first_token - times.started)
        self._prompt.labels(model).observe(times.num_prompt_tokens)
        self._generation.labels(model).observe(times.num_output_tokens)
        if times.num_output_tokens > times.n:
            self._per_token.labels(model).observe((ended - times.first_token) / (times.num_output_tokens / times.n - 1))

    def render(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"ragstone:{name}", text, ["model_name"], buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"ragstone:{name}", text, ["model_name", *labels], registry=self.registry)


class _EngineCollector(Collector):
    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        read = {model: stats() for model, stats in self._metrics.engines.items()}
        if not read:
            return
        for name, text, value in _GAUGES:
            gauge = GaugeMetricFamily(f"ragstone:{name}", text, labels=["model_name"])
            for model, stats in read.items():
                gauge.add_metric([model], value(stats))
            yield gauge
        waiting = GaugeMetricFamily(
            "ragstone:num_requests_waiting_by_priority",
            "Requests that wait, by class.",
            labels=["model_name", "priority"],
        )
        for model, stats in read.items():
            for priority, number in stats.num_waiting_by_priority.items():
                waiting.add_metric([model, priority], number)
        yield waiting
        for name, text, value in _COUNTERS:
            counter = CounterMetricFamily(f"ragstone:{name}", text, labels=["model_name"])
            for model, stats in read.items():
                counter.add_metric([model], value(stats))
            yield counter
        by_position = CounterMetricFamily(
            "ragstone:spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens accepted, by their position in the draft.",
            labels=["model_name", "position"],
        )
        for model, stats in read.items():
            for position, count in enumerate(stats.num_accepted_by_position):
                by_position.add_metric([model, str(position)], count)
        yield by_position
