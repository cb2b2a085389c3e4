"""What an engine is told once, when it is made."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from engine.errors import InvalidParameterError
from engine.parameter_check import check_bool, check_integer, check_number, shown

# Of anything that is counted; more can not be meant, and memory and time are computed from it.
MOST = 2**60
DTYPES = ("auto", "float32", "bfloat16", "float16", "int8", "fp8", "int4")
KV_DTYPES = ("auto", "fp8")


@dataclass(frozen=True)
class EngineConfig:
    """Settings of one engine.

    Attributes:
        model: a `.gguf` file, or a folder with Hugging Face safetensors, `config.json` and `tokenizer.json`.
        dtype: "float32", "bfloat16", "float16", "int8" (CPU only: weights packed in 4 to 8 bits, activations in 8),
            "fp8" and "int4" (GPU only: weights rounded when they are loaded, which needs room for them in bfloat16), or
            "auto": a quantised model on a CPU stays packed; otherwise bfloat16 where the device computes in it, else
            float32, with bfloat16 weights for steps of few rows.
        device: "cpu", "cuda", "cuda:N", or "auto" (a GPU where there is one).
        max_model_len: most tokens of prompt and answer together; None takes the model's own limit.
        block_size: tokens in one block of the KV pool.
        kv_cache_dtype: of keys and values: "auto" (the model's) or "fp8" (e4m3 with a scale for each head, found out
            when the model is loaded: half the memory of bfloat16, less precise; not with weights packed for CPUs).
        num_kv_blocks: blocks in the pool; None derives it from `kv_memory_bytes`.
        kv_memory_bytes: memory for keys and values; None takes a share of what is free.
        max_num_seqs: sequences that run at once; None is 16 on a CPU and up to 256 on a GPU, by its memory
            (`engine.memory_plan.step_size`).
        max_num_batched_tokens: tokens computed in one step; longer prompts are chunked. A step cannot be interrupted,
            so an abort waits for it: 256 tokens of a small model are about half a second of two CPU cores. None is 256
            on a CPU and up to 8,192 on a GPU.
        max_prefill_tokens_while_decoding: prompt tokens in a step in which another sequence decodes, so that a long
            prompt does not stall running answers: an upper bound, below which the share follows measured step times;
            None is a quarter of `max_num_batched_tokens`.
        max_queue_size: sequences that may wait; `AsyncEngine` refuses more with QueueFullError.
        stall_timeout_s: silence of the engine thread, with work at hand, after which it is taken to hang. It is heard
            from before every layer of a step, so that long prompts are no silence.
        default_max_tokens: longest answer to a request that names no `max_tokens`; None is what is left of the context,
            which a small model that goes in circles will fill.
        speculation: where proposals for the next tokens come from: "ngram" (the text itself: answers that quote their
            passages), "draft" (a smaller model, `draft_model`), or "off". Tokens are the same either way; proposals are
            made only where they are likely to pay.
        draft_model: the smaller model of speculation="draft", as `model`; it must have the same tokenizer.
        num_draft_tokens: most proposals for one sequence in a step.
        max_speculative_rows: tokens of a step, proposals included, up to which any are made.
        enable_prefix_caching: reuse the blocks of prompts that begin alike.
        overlap_scheduling: plan and launch a step while the one before it runs, so that a GPU does not wait for the
            host in between; tokens are the same. A request's end is seen one step late. On a CPU, where planning and
            computing take the same cores, it gains nothing. Steps that hold constrained answers, a logit bias, answers
            that are still shorter than `min_tokens` or drafts are not overlapped, nor any while speculation may draft
            (fewer than `max_speculative_rows` sequences).
        deterministic: make every token's logits independent of what else is computed in the step: the same bits alone
            and in a batch, in chunks of any size, from a warm cache, after a preemption, with speculation. Slower; for
            tests and for comparing runs.
        check_integrity: verify the block pool after every step (tests); it is always verified when the engine goes
        idle.
    """

    model: str | Path
    dtype: str = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    block_size: int = 16
    kv_cache_dtype: str = "auto"
    num_kv_blocks: int | None = None
    kv_memory_bytes: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_prefill_tokens_while_decoding: int | None = None
    max_queue_size: int = 1024
    stall_timeout_s: float = 4.0
    default_max_tokens: int | None = None
    speculation: str = "ngram"
    draft_model: str | Path | None = None
    num_draft_tokens: int = 8
    max_speculative_rows: int = 32
    enable_prefix_caching: bool = True
    overlap_scheduling: bool = False
    deterministic: bool = False
    check_integrity: bool = False

    def __post_init__(self) -> None:
        for field in (
            "block_size",
            "max_queue_size",
            "num_draft_tokens",
            "max_speculative_rows",
        ):
            check_integer(field, getattr(self, field), 1, MOST)
        for field in (
            "max_model_len",
            "num_kv_blocks",
            "kv_memory_bytes",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_prefill_tokens_while_decoding",
            "default_max_tokens",
        ):
            if getattr(self, field) is not None:
                check_integer(field, getattr(self, field), 1, MOST)
        check_number("stall_timeout_s", self.stall_timeout_s, 0, threading.TIMEOUT_MAX, above_low=True)
        for field in ("enable_prefix_caching", "overlap_scheduling", "deterministic", "check_integrity"):
            check_bool(field, getattr(self, field))
        for field in ("model", "device") + (("draft_model",) if self.draft_model is not None else ()):
            value = getattr(self, field)
            if not isinstance(value, str | Path) or "\0" in str(value):
                raise InvalidParameterError(field, f"must be text, got {shown(value)}")
        self._check_speculation()
        if self.dtype not in DTYPES:
            raise InvalidParameterError("dtype", f"must be one of {', '.join(DTYPES)}, got {shown(self.dtype)}")
        if self.kv_cache_dtype not in KV_DTYPES:
            raise InvalidParameterError(
                "kv_cache_dtype", f"must be one of {', '.join(KV_DTYPES)}, got {shown(self.kv_cache_dtype)}"
            )

    def _check_speculation(self) -> None:
        if self.speculation not in ("ngram", "draft", "off"):
            raise InvalidParameterError(
                "speculation", f'must be "ngram", "draft" or "off", got {shown(self.speculation)}'
            )
        if (self.speculation == "draft") != (self.draft_model is not None):
            raise InvalidParameterError(
                "draft_model",
                f'goes with speculation="draft", which needs it; got draft_model={self.draft_model!r} with '
                f"speculation={self.speculation!r}",
            )
