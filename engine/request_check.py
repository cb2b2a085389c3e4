"""What a request may not ask, as far as the model's vocabulary, the engine's room and its clock decide it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.errors import InvalidParameterError, PromptTooLongError
from engine.parameter_check import check_number, shown
from engine.request import PRIORITIES
from engine.sampling_params import SamplingParams

MAX_DEADLINE_S = 1e9


def check_ids(token_ids: Sequence[Any], params: SamplingParams, vocab_size: int) -> None:
    """Raises InvalidParameterError for an empty prompt, and for an id anywhere outside the vocabulary."""
    if not token_ids:
        raise InvalidParameterError("prompt", "is empty; give at least one token")
    for field, ids in (
        ("prompt", token_ids),
        ("logit_bias", params.logit_bias),
        ("stop_token_ids", params.stop_token_ids),
    ):
        for token_id in ids:
            if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < vocab_size:
                raise InvalidParameterError(
                    field, f"token id {shown(token_id)} is outside the vocabulary; ids are 0 to {vocab_size - 1}"
                )


def check_urgency(priority: Any, deadline_s: Any) -> None:
    """Raises InvalidParameterError for an unknown class of priority, or a deadline that is no time."""
    if priority not in PRIORITIES:
        allowed = ", ".join(f'"{name}"' for name in PRIORITIES)
        raise InvalidParameterError("priority", f"must be one of {allowed}, got {shown(priority)}")
    if deadline_s is not None:
        check_number("deadline_s", deadline_s, 0, MAX_DEADLINE_S, above_low=True)


def longest_answer(
    num_prompt_tokens: int, params: SamplingParams, max_model_len: int, capacity: int, default: int | None
) -> int:
    """Tokens that an answer may have: what is asked for, else `default`, as far as there is room.

    Raises PromptTooLongError for what can never fit the model's context, or the whole of the pool (`capacity` tokens).
    """
    reserved = params.max_tokens or 1
    if num_prompt_tokens + reserved > max_model_len:
        raise PromptTooLongError(num_prompt_tokens, max_model_len, reserved)
    if num_prompt_tokens + reserved > capacity:
        raise PromptTooLongError(num_prompt_tokens, capacity, reserved, limited_by="cache")
    left = min(max_model_len, capacity) - num_prompt_tokens
    return params.max_tokens or min(left, default or left)
