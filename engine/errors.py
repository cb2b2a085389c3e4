"""Every error the engine raises: one small tree. Each class has a `code` that survives the trip over HTTP."""

from __future__ import annotations

from collections.abc import Sequence


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
        field: what must change: "max_tokens" where the prompt alone would fit, else "prompt".
    """

    code = "context_length_exceeded"

    def __init__(self, num_prompt_tokens: int, max_model_len: int, max_tokens: int, limited_by: str = "model") -> None:
        where = "this model takes" if limited_by == "model" else "the KV cache of this engine holds"
        super().__init__(
            f"prompt is {num_prompt_tokens:,} tokens; {where} {max_model_len:,} in all, {max_tokens:,} of them "
            f"reserved for the answer (max_tokens): shorten the prompt or lower max_tokens"
        )
        self.field = "max_tokens" if num_prompt_tokens < max_model_len else "prompt"
        self.num_prompt_tokens = num_prompt_tokens
        self.max_model_len = max_model_len
        self.max_tokens = max_tokens


class ModelLoadError(EngineError):
    """The model's files are missing, broken, or of a kind this engine does not know."""

    code = "model_load_failed"


class InsufficientMemoryError(EngineError):
    """A model, with its context and its KV pool, is more than the machine's memory holds.

    Attributes:
        needed_bytes: what all parts come to.
        available_bytes: what the device has free.
    """

    code = "insufficient_memory"

    def __init__(self, model: str, parts: Sequence[tuple[str, int]], needed_bytes: int, available_bytes: int) -> None:
        entries = [*parts, ("needed", needed_bytes), ("available", available_bytes)]
        arithmetic = "\n".join(f"  {size:>18,} bytes {size / 2**30:>9.2f} GiB  {what}" for what, size in entries)
        super().__init__(
            f"{model} does not fit into the memory of this machine:\n{arithmetic}\n"
            "Lower max_model_len, kv_memory_bytes (or num_kv_blocks), max_num_seqs or max_num_batched_tokens, or take "
            "a smaller model or one quantised to fewer bits"
        )
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class ChatTemplateError(EngineError, ValueError):
    """The model's chat template refuses these messages."""

    code = "chat_template_error"


class StepFailedError(EngineError):
    """The step that a request was part of raised; other requests go on."""

    code = "step_failed"

    @classmethod
    def because(cls, cause: Exception) -> StepFailedError:
        """The error for what a step raised, with advice where memory was too small."""
        message = f"the step that computed this request failed: {cause or type(cause).__name__}"
        if _is_out_of_memory(cause):
            message += (
                "; the machine has too little memory for such a step: lower max_num_batched_tokens, max_num_seqs or "
                "kv_memory_bytes, or take a smaller model"
            )
        return cls(message)


def _is_out_of_memory(error: Exception) -> bool:
    # torch raises a RuntimeError for a CPU, and a class of its own for a GPU, which this file does not import.
    text = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "not enough memory" in text


class QueueFullError(EngineError):
    """As many requests wait as the engine lets wait.

    Attributes:
        num_waiting: sequences that wait or are about to.
        max_queue_size: most that may.
        retry_after_s: seconds after which a place should be free, from how fast the queue moved of late.
    """

    code = "queue_full"

    def __init__(self, num_waiting: int, max_queue_size: int, retry_after_s: float) -> None:
        super().__init__(
            f"{num_waiting:,} requests are waiting, and at most {max_queue_size:,} may (max_queue_size): "
            f"try again in {retry_after_s:.0f} s, or raise the limit"
        )
        self.num_waiting = num_waiting
        self.max_queue_size = max_queue_size
        self.retry_after_s = retry_after_s


class DeadlineExceededError(EngineError):
    """A request was not finished by its deadline.

    Attributes:
        deadline_s: seconds that it was given.
        num_output_tokens: tokens of its answer by then.
    """

    code = "deadline_exceeded"

    def __init__(self, deadline_s: float, num_output_tokens: int, *, was_running: bool) -> None:
        how_far = f"{num_output_tokens:,} tokens of its answer were ready" if was_running else "it was still waiting"
        super().__init__(
            f"the request was not finished within its deadline of {deadline_s:g} s; {how_far}: "
            f"give it more time (deadline_s), fewer tokens (max_tokens) or a higher priority"
        )
        self.deadline_s = deadline_s
        self.num_output_tokens = num_output_tokens


class EngineStalledError(EngineError):
    """The engine thread hangs in a step. It may recover, but requests are not left waiting for that."""

    code = "engine_stalled"

    def __init__(self, silent_s: float) -> None:
        super().__init__(
            f"the engine has made no progress for {silent_s:.1f} s although requests are waiting; its step hangs. "
            "Try again later, and restart the server if it stays so"
        )
        self.silent_s = silent_s


class EngineDrainingError(EngineError):
    """The engine finishes what it has and takes nothing new."""

    code = "engine_draining"

    def __init__(self) -> None:
        super().__init__("the engine is shutting down: it finishes its requests and takes no new ones; try again later")


class EngineStoppedError(EngineError):
    """A request was cut off by the end of the engine, which could not wait for it any longer."""

    code = "engine_stopped"

    def __init__(self) -> None:
        super().__init__("the server was stopped before the answer was complete: ask again when it is back")


class StepAbandonedError(EngineError):
    """Nobody waits any more for what the step at hand computes. Never leaves the engine."""

    code = "step_abandoned"


class EngineDeadError(EngineError):
    """The engine thread is not running: not started yet, or stopped."""

    code = "engine_dead"
