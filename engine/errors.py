"""Every error the engine raises: one small tree. Each class has a `code` that survives the trip over HTTP."""

from __future__ import annotations


class EngineError(Exception):
    """Base of all engine errors.

    Attributes:
        code: a stable, machine-readable name; clients of the HTTP API rebuild the class from it.
    """

    code = "engine_error"


class InvalidParameterError(EngineError, ValueError):
    """A parameter has a value that is not allowed."""

    code = "invalid_parameter"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class UnsupportedParameterError(EngineError, ValueError):
    """A parameter exists elsewhere, but this engine does not honour it; it is refused rather than ignored."""

    code = "unsupported_parameter"

    def __init__(self, field: str, message: str | None = None) -> None:
        super().__init__(message or f"{field} is not supported by this engine; leave it out")
        self.field = field


class PromptTooLongError(EngineError, ValueError):
    """A prompt that can never be served, whatever else runs.

    Attributes:
        num_prompt_tokens: tokens of the prompt as given.
        max_model_len: most tokens of prompt and answer together.
        max_tokens: tokens reserved for the answer.
    """

    code = "context_length_exceeded"

    def __init__(self, num_prompt_tokens: int, max_model_len: int, max_tokens: int, limited_by: str = "model") -> None:
        where = "this model takes" if limited_by == "model" else "the KV cache of this engine holds"
        super().__init__(
            f"prompt is {num_prompt_tokens:,} tokens; {where} {max_model_len:,} in all, {max_tokens:,} of them "
            f"reserved for the answer (max_tokens): shorten the prompt or lower max_tokens"
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.max_model_len = max_model_len
        self.max_tokens = max_tokens


class ModelLoadError(EngineError):
    """The model's files are missing, broken, or of a kind this engine does not know."""

    code = "model_load_failed"


class ChatTemplateError(EngineError, ValueError):
    """The model's chat template refuses these messages."""

    code = "chat_template_error"


class StepFailedError(EngineError):
    """The step that a request was part of raised; other requests go on."""

    code = "step_failed"


class StepAbandonedError(EngineError):
    """Nobody waits any more for what the step at hand computes. Never leaves the engine."""

    code = "step_abandoned"


class EngineDeadError(EngineError):
    """The engine thread is not running: not started yet, or stopped."""

    code = "engine_dead"
