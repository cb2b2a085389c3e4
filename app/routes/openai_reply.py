"""What the replies of OpenAI's routes share: token counts, error events, and the errors of a request for a model."""

import asyncio
from collections.abc import Collection
from typing import Any

from app.engines.client import EngineClient
from app.errors import RequestError
from app.routes import sse
from app.routes.faults import Fault, dump
from app.settings import Settings
from engine.outputs import OutputDelta

# Text has about 4.3 characters a token, of long words up to three times that; what is longer than this for each token
# of the context cannot be meant to fit, and is refused before the tokenizer works on it.
MAX_CHARS_PER_TOKEN = 16
DONE = sse.event("[DONE]")


class ContextLengthError(RequestError):
    """More characters than the model's context can hold."""

    code = "context_length_exceeded"
    status_code = 400

    def __init__(self, field: str, *, given: int, limit: int, max_model_len: int) -> None:
        super().__init__(
            f"This model's maximum context length is {max_model_len:,} tokens, for which at most {limit:,} characters "
            f"are taken; {field} came with {given:,} characters. Please send less.",
            field=field,
        )


async def check_length(field: str, given: int, client: EngineClient, settings: Settings) -> None:
    """Raises ContextLengthError for so many characters as can never fit."""
    if given <= settings.max_input_chars:
        return
    max_model_len = await asyncio.to_thread(lambda: client.max_model_len)  # its model may have to be loaded
    limit = MAX_CHARS_PER_TOKEN * max_model_len
    if given > limit:
        raise ContextLengthError(field, given=given, limit=limit, max_model_len=max_model_len)


def usage(*answers: Collection[OutputDelta]) -> dict[str, Any]:
    """Token counts from the last deltas of each prompt's answers; a prompt counts once, however many answers it has."""
    prompt = sum(max((delta.num_prompt_tokens for delta in last), default=0) for last in answers)
    cached = sum(max((delta.num_cached_tokens for delta in last), default=0) for last in answers)
    output = sum(delta.num_output_tokens for last in answers for delta in last)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def error_event(fault: Fault) -> str:
    """The last event of a stream that breaks off."""
    return sse.event(dump(fault.openai_body()))
