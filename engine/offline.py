"""Answers to a list of prompts, for callers who wait until all are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.outputs import Completion, RequestOutput
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from engine.engine import Engine, Prompt


def generate_all(engine: Engine, prompts: Sequence[Prompt], params: SamplingParams) -> list[RequestOutput]:
    """Queue the prompts together and step the engine until nothing runs. Raises the first error of one of them."""
    outputs: dict[str, RequestOutput] = {}
    # All are checked before any is queued: a bad one must not leave its neighbours running.
    for requests in [engine.make_requests(prompt, params) for prompt in prompts]:
        engine.add(requests)
        first = requests[0]
        outputs[first.request_id] = RequestOutput(
            first.request_id, list(first.token_ids), [Completion(r.index) for r in requests]
        )
    while engine.has_work:
        for delta in engine.step():
            output = outputs.get(delta.request_id)
            if output is None:
                continue
            if delta.error is not None:
                raise delta.error
            output.completions[delta.index].add(delta)
            output.num_cached_tokens = delta.num_cached_tokens
    return list(outputs.values())
