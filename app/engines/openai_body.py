"""A request to an engine as OpenAI's API has it: fields that every compatible server knows, and no others.

Format: https://platform.openai.com/docs/api-reference/chat/create
"""

from collections.abc import Collection, Mapping
from typing import Any

from app.engines.request import EngineRequest
from app.messages import Message
from engine.errors import UnsupportedParameterError

# Fields of SamplingParams that OpenAI's API has under the same name.
SAME = frozenset(
    {"max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop", "n"}
)
# Values of other fields that ask for nothing.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_k": (0, -1),
    "min_p": (0.0,),
    "repetition_penalty": (1.0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([], ()),
    "json_object": (False,),
}


def chat_body(request: EngineRequest, model: str, extra_fields: Collection[str] = ()) -> dict[str, Any]:
    """The body for /chat/completions, streamed. Raises UnsupportedParameterError for what the server would not know.

    `extra_fields`: fields of SamplingParams beyond OpenAI's that it knows.
    """
    params = dict(request.params)
    body = {"model": model, "messages": _messages(request), **_format(params)}
    if (num_top := params.pop("logprobs", None)) is not None:
        body |= {"logprobs": True, **({"top_logprobs": num_top} if num_top else {})}
    if request.tools:
        choice = {"tool_choice": request.tool_choice, "parallel_tool_calls": request.parallel_tool_calls}
        body |= {"tools": list(request.tools), **{name: value for name, value in choice.items() if value is not None}}
    return body | _sampling(params, extra_fields) | _STREAMED


def text_body(request: EngineRequest, model: str, extra_fields: Collection[str] = ()) -> dict[str, Any]:
    """The body for /completions, streamed. Raises as `chat_body`."""
    params = dict(request.params)
    for name in ("json_schema", "json_object"):
        if params.get(name):
            raise UnsupportedParameterError(name, f"{name} is for chats: the server of {model!r} has it for those only")
    prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt or ())
    return {"model": model, "prompt": prompt} | _logprobs(params) | _sampling(params, extra_fields) | _STREAMED


_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


def _messages(request: EngineRequest) -> list[Message]:
    """The messages; an answer that goes on is begun by the assistant, as servers do it that know such a thing."""
    begun = [{"role": "assistant", "content": request.begins}] if request.begins else []
    return [*request.messages, *begun]


def _format(params: dict[str, Any]) -> dict[str, Any]:
    if (schema := params.pop("json_schema", None)) is not None:
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}
    return {"response_format": {"type": "json_object"}} if params.pop("json_object", None) else {}


def _logprobs(params: dict[str, Any]) -> dict[str, Any]:
    num_top = params.pop("logprobs", None)
    return {} if num_top is None else {"logprobs": num_top}


def _sampling(params: Mapping[str, Any], extra_fields: Collection[str]) -> dict[str, Any]:
    sent = {}
    for name, value in params.items():
        if name in SAME or name in extra_fields:
            sent[name] = list(value) if isinstance(value, tuple) else value
        elif value not in NEUTRAL.get(name, ()):
            raise UnsupportedParameterError(
                name,
                f"{name} is not in OpenAI's API, by which this model is asked: leave it out, or, where its server "
                "takes it, add it to the model's extra_fields",
            )
    return sent
