"""When an answer ends: end tokens, stop strings, a constraint that is whole, and its longest length."""

from __future__ import annotations

from collections.abc import Container

from engine.outputs import FINISH_LENGTH, FINISH_STOP
from engine.request import Request


def end_of(request: Request, token_id: int, eos_token_ids: Container[int]) -> tuple[str | None, str | int | None, str]:
    """(finish reason, stop reason, text that is now certain) after the newest token, tested in vLLM's order."""
    params, detokenizer = request.params, request.detokenizer
    may_stop = request.num_output_tokens >= params.min_tokens
    if may_stop and not params.ignore_eos and token_id in eos_token_ids:
        return FINISH_STOP, None, detokenizer.finish()
    if may_stop and token_id in params.stop_token_ids:
        return FINISH_STOP, token_id, detokenizer.finish()
    is_whole = request.grammar is not None and request.grammar.is_complete
    text = "" if is_whole and token_id in eos_token_ids else detokenizer.push(token_id)
    if is_whole and detokenizer.stopped_by is None:
        text += detokenizer.finish()
        return FINISH_STOP, detokenizer.stopped_by, text
    if detokenizer.stopped_by is not None:
        return FINISH_STOP, detokenizer.stopped_by, text
    if request.num_output_tokens >= request.max_tokens:
        text += detokenizer.finish()
        # The flush may complete a stop string that was still held back.
        stopped = detokenizer.stopped_by
        return (FINISH_STOP, stopped, text) if stopped is not None else (FINISH_LENGTH, None, text)
    return None, None, text
