"""Tokens in, tokens out: requests, scheduling, paged KV memory, models and sampling.

Follow one request through `request`, `scheduler`, `kv_cache`, `model_runner`, `sampler` and `engine`. Knows no
LangChain and no web framework, and imports where only torch, numpy, safetensors, tokenizers and jinja2 are installed.
"""

from engine.collector import paused_collector

with paused_collector(modules=True):
    from engine import errors
    from engine.async_engine import AsyncEngine
    from engine.chat_template import ChatTemplate
    from engine.config import EngineConfig
    from engine.engine import Engine
    from engine.outputs import Completion, EngineStats, OutputDelta, RequestOutput, TokenLogprob
    from engine.sampling_params import SamplingParams

__all__ = [
    "AsyncEngine",
    "ChatTemplate",
    "Completion",
    "Engine",
    "EngineConfig",
    "EngineStats",
    "OutputDelta",
    "RequestOutput",
    "SamplingParams",
    "TokenLogprob",
    "errors",
]
