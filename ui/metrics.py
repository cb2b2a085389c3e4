"""The server's Prometheus page as the few numbers that the status page draws. Knows no HTTP."""

from prometheus_client.parser import text_string_to_metric_families

_GAUGES = {
    "ragstone:num_requests_running": "num_running",
    "ragstone:num_requests_waiting": "num_waiting",
    "ragstone:kv_cache_usage_perc": "kv_usage",
    "ragstone:generation_tokens_total": "num_output_tokens",
    "ragstone:prompt_tokens_total": "num_prompt_tokens",
    "ragstone:prefix_cache_queries_total": "num_prefix_queries",
    "ragstone:prefix_cache_hits_total": "num_prefix_hits",
    "ragstone:spec_decode_num_draft_tokens_total": "num_draft_tokens",
    "ragstone:spec_decode_num_accepted_tokens_total": "num_accepted_tokens",
    "ragstone:num_preemptions_total": "num_preemptions",
}
_HISTOGRAMS = {
    "ragstone:time_to_first_token_seconds": "first_token_s",
    "ragstone:e2e_request_latency_seconds": "whole_s",
}


def readings(text: str) -> dict[str, object]:
    """Gauges and counters by the names above, and each histogram as `[[upper limit or null, count], …]`.

    A name that the page does not hold is missing; of several models the sum is given.
    """
    values: dict[str, float] = {}
    counts: dict[str, dict[float, float]] = {}
    model = ""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in _GAUGES:
                name = _GAUGES[sample.name]
                values[name] = values.get(name, 0.0) + sample.value
                model = model or sample.labels.get("model_name", "")
            base = sample.name.removesuffix("_bucket")
            if base != sample.name and base in _HISTOGRAMS:
                of_name = counts.setdefault(_HISTOGRAMS[base], {})
                limit = float(sample.labels["le"])
                of_name[limit] = of_name.get(limit, 0.0) + sample.value
    histograms = {name: _buckets(cumulated) for name, cumulated in counts.items()}
    return {**values, **histograms, "model": model}


def _buckets(cumulated: dict[float, float]) -> list[tuple[float | None, float]]:
    """Counts for each bucket by itself; the last one has no upper limit."""
    below, buckets = 0.0, []
    for limit in sorted(cumulated):
        buckets.append((None if limit == float("inf") else limit, cumulated[limit] - below))
        below = cumulated[limit]
    return buckets
