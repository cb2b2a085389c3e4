"""Constraints on an answer (JSON schema, regex, choice, grammar) as masks over the model's own vocabulary.

`llguidance` parses and computes the masks (https://github.com/guidance-ai/llguidance: derivatives of regular
expressions and an Earley parser over bytes, walked along a trie of the vocabulary); it is imported on first use. Where
a mask is put onto logits is the sampler's business, and when an answer ends the engine's.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.errors import InvalidParameterError, UnsupportedParameterError
from engine.lark_check import check_lark
from engine.regex_check import check_regex
from engine.sampling_params import SamplingParams
from engine.schema_check import parse_schema
from engine.tokenizer import Tokenizer

Mask = npt.NDArray[np.bool_]

MAX_GRAMMAR_CHARS = 256 * 1024
MAX_CHOICES = 4096
# Between tokens of JSON: nothing, a space, or a new line with its indentation. Any amount, as the library's default
# allows, is where small models lose themselves.
JSON_WHITESPACE = r"( |\n {0,16})?"
# A constraint is tried out over this many tokens before a request with it is queued.
PROBE_TOKENS = 16
PROBE_S = 1.0
NUM_CACHED = 32
TOO_COMPLEX = "grows too complex to follow: make repetitions and alternatives smaller"
# Of the library's parser; the step limits bound the time of one mask, the others what compiling takes.
LIMITS = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 50_000,
    "max_items_in_row": 5_000,  # for as many optional properties as an object may have
}


class Grammar:
    """One answer's place in its constraint. It follows the answer token by token.

    Masks are exact along drafts too: `valid_drafts` cuts them where the constraint would, and each row is masked as it
    stands behind the drafts before it.

    Belongs to the engine thread, except that a worker computes masks between `prepare` and the next other call.

    Attributes:
        field: the parameter that asked for it.
        failure: why it cannot go on (it became too complex for the limits); None while all is well.
    """

    def __init__(self, compiler: GrammarCompiler, matcher: Any, field: str, *, ignore_eos: bool = False) -> None:
        self.field = field
        self._ignore_eos = ignore_eos
        self.failure: str | None = None
        self._compiler = compiler
        self._matcher = matcher
        self._num_tokens = 0
        self._masks: dict[int, Mask] = {}
        self._drafts: list[int] = []
        self._pending: Future[None] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the answer is whole and nothing may follow."""
        self._settle()
        return self.failure is None and bool(self._matcher.is_stopped())

    def valid_drafts(self, draft_ids: Sequence[int]) -> list[int]:
        """The drafts up to the first that may not stand where it stands; end tokens are never among them."""
        self._settle()
        drafts = list(draft_ids)
        for index, token_id in enumerate(drafts):
            if token_id in self._compiler.end_ids:
                del drafts[index:]
                break
        return drafts[: self._matcher.validate_tokens(drafts)] if drafts else drafts

    def prepare(self, draft_ids: Sequence[int] = ()) -> None:
        """Begin computing the masks of the next token and of those after each draft, on a thread of their own.

        The drafts must be valid. Only a head start: `mask_row` computes what is missing.
        """
        self._settle()
        self._drafts = list(draft_ids)
        self._masks = {at: mask for at, mask in self._masks.items() if at == self._num_tokens}
        self._pending = self._compiler.worker.submit(self._compute_ahead, self._drafts.copy())

    def mask_row(self, row: Tensor, num_output_tokens: int) -> None:
        """Set the logits [vocab] of tokens that may not follow to -inf, in place.

        End tokens are allowed where the answer may be whole, with `ignore_eos` only where nothing else may follow. If
        none of the allowed tokens is left (`min_tokens` excludes the end, the constraint everything else), the
        constraint wins: they become possible again.
        """
        self._settle()
        if num_output_tokens != self._num_tokens:
            raise AssertionError(f"the grammar has seen {self._num_tokens} tokens of {num_output_tokens}")
        if self._num_tokens not in self._masks:
            self._masks[self._num_tokens] = self._mask()
        allowed = torch.from_numpy(self._masks[self._num_tokens]).to(row.device)
        row.masked_fill_(~allowed, float("-inf"))
        if not bool(torch.isfinite(row).any()):
            row.masked_fill_(allowed, 0.0)

    def advance(self, token_id: int) -> None:
        """Take the token that was chosen."""
        self._settle()
        self._masks.pop(self._num_tokens, None)
        if self._drafts[:1] == [token_id]:
            self._drafts.pop(0)
        else:  # what was computed ahead holds along the drafts only
            self._drafts, self._masks = [], {}
        self._num_tokens += 1
        if self.failure is None and not self._matcher.consume_token(token_id):
            # The mask allowed it, so that only a limit can stand in its way, whatever the library calls it.
            self.failure = TOO_COMPLEX

    def _compute_ahead(self, draft_ids: list[int]) -> None:
        """The masks along the drafts; leaves the matcher where it was."""
        start, taken = self._num_tokens, 0
        if start not in self._masks:
            self._masks[start] = self._mask()
        for token_id in draft_ids:
            if self.failure is not None or not self._matcher.consume_token(token_id):
                break
            taken += 1
            self._masks[start + taken] = self._mask()
        if taken and self.failure is None:
            self._matcher.rollback(taken)

    def _mask(self) -> Mask:
        words = np.zeros(self._compiler.num_mask_words, dtype=np.uint32)
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._matcher.is_error():
            self._fail()
        bits = np.unpackbits(words.view(np.uint8), count=self._compiler.vocab_size, bitorder="little")
        mask = bits.view(np.bool_)
        if self._ignore_eos and not self._matcher.is_stopped():
            without_ends = mask.copy()
            without_ends[self._compiler.end_id_list] = False
            return without_ends if without_ends.any() else mask
        return mask

    def _settle(self) -> None:
        """Wait for the worker."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _fail(self) -> None:
        self.failure = self.failure or _reason(self._matcher.get_error())


class GrammarCompiler:
    """Turns the constraint of `SamplingParams` into a `Grammar` over one tokenizer. Safe to share between threads.

    Args:
        vocab_size: width of the model's logits, which may exceed the tokenizer's vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.num_mask_words = -(-vocab_size // 32)
        self.end_ids = frozenset(token_id for token_id in tokenizer.eos_token_ids if token_id < vocab_size)
        self.end_id_list = sorted(self.end_ids)
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    @cached_property
    def worker(self) -> ThreadPoolExecutor:
        """The thread that computes masks while the model's forward runs."""
        return ThreadPoolExecutor(max_workers=1, thread_name_prefix="ragstone-grammar")

    def compile(self, params: SamplingParams) -> Grammar | None:
        """The constraint of `params` at its beginning; None where there is none.

        The same constraint again costs nothing: the last few are kept.

        Raises:
            InvalidParameterError: it cannot be served; says which field and why.
            UnsupportedParameterError: `llguidance` is not installed.
        """
        field = params.constraint_field
        if field is None:
            return None
        if not self.end_ids:
            raise UnsupportedParameterError(field, f"{field} needs a model with an end token; this one has none")
        value = getattr(params, field)
        source = _source(field, value, self._tokenizer.strips_leading_space)
        with self._lock:
            matcher = self._compiled.get(source)
        if matcher is None:
            if field == "grammar":
                check_lark(field, value)
            matcher = self._matcher(field, source)  # nobody with another constraint waits for it
        with self._lock:
            self._compiled[source] = matcher
            self._compiled.move_to_end(source)
            if len(self._compiled) > NUM_CACHED:
                self._compiled.popitem(last=False)
            return Grammar(self, matcher.deep_copy(), field, ignore_eos=params.ignore_eos)

    def _matcher(self, field: str, source: str) -> Any:
        library = _library(field)
        limits = library.LLParserLimits(**LIMITS, precompute_large_lexemes=False, verbose_errors=False)
        matcher = library.LLMatcher(self._vocabulary, source, log_level=0, limits=limits)
        if matcher.is_error():
            raise InvalidParameterError(field, _reason(matcher.get_error()))
        self._probe(field, matcher.deep_copy())
        return matcher

    def _probe(self, field: str, matcher: Any) -> None:
        """Walk a little way, so that what cannot be served is refused now and not in the middle of an answer."""
        grammar = Grammar(self, matcher, field)
        draw, began = random.Random(0), time.monotonic()
        for _ in range(PROBE_TOKENS):
            allowed = np.flatnonzero(grammar._mask())
            if grammar.failure is None:
                allowed = allowed[~np.isin(allowed, self.end_id_list)]
                if not allowed.size:
                    return
                grammar.advance(int(allowed[draw.randrange(allowed.size)]))
            if grammar.failure is not None:
                raise InvalidParameterError(field, grammar.failure)
            if time.monotonic() - began > PROBE_S:
                raise InvalidParameterError(
                    field, "takes too long to follow: make repetitions and alternatives smaller"
                )

    @cached_property
    def _vocabulary(self) -> Any:
        library = _library("structured output")
        return library.LLTokenizer(
            _Vocabulary(self._tokenizer, self.vocab_size), n_vocab=self.vocab_size, eos_token=self.end_id_list
        )


class _Vocabulary:
    """A tokenizer as llguidance wants to see it: the bytes of each token; special ones match no text."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos_token_ids[0]
        self.bos_token_id = tokenizer.bos_token_id
        # Ids that only the padded embedding has are special too: they stand for nothing.
        hidden = tokenizer.skipped_ids | set(range(tokenizer.vocab_size, vocab_size))
        self.special_token_ids = sorted(token_id for token_id in hidden if token_id < vocab_size)
        self.tokens = [
            f"<special {token_id}>".encode() if token_id in hidden else tokenizer.token_bytes(token_id)
            for token_id in range(vocab_size)
        ]

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode("utf-8", errors="replace"))


def is_available() -> bool:
    """Whether constraints can be compiled here."""
    return importlib.util.find_spec("llguidance") is not None


def _library(field: str) -> Any:
    try:
        import llguidance
    except ImportError:
        raise UnsupportedParameterError(
            field, f"{field} needs the package llguidance, which is not installed: install it, or leave {field} out"
        ) from None
    return llguidance


def _source(field: str, value: Any, num_leading_spaces: int) -> str:
    """The constraint in llguidance's own form, JSON text that describes a list of grammars."""
    if field in ("json_schema", "json_object"):
        schema = parse_schema(value) if field == "json_schema" else {"type": "object"}
        options = {"whitespace_flexible": True, "whitespace_pattern": JSON_WHITESPACE}
        given = schema.get("x-guidance")
        lenient = isinstance(given, dict) and given.get("lenient") is True
        body: dict[str, Any] = {"json_schema": {**schema, "x-guidance": {**options, "lenient": lenient}}}
    elif field == "regex":
        check_regex("regex", value)
        body = json.loads(_library(field).LLMatcher.grammar_from_regex(with_ascii_digits(value)))["grammars"][0]
    elif field == "choice":
        body = {"lark_grammar": _choice(value)}
    else:
        body = {"lark_grammar": value}
    if len(body.get("lark_grammar") or "") > MAX_GRAMMAR_CHARS:
        raise InvalidParameterError(
            field, f"comes to {len(body['lark_grammar']):,} characters; at most {MAX_GRAMMAR_CHARS:,} are allowed"
        )
    # The spaces that decoding takes off the head of an answer (SentencePiece's prefix) come before what is asked for.
    grammars = [{**body, "name": "body"}]
    if num_leading_spaces:
        grammars.insert(0, {"name": "start", "lark_grammar": f'start: "{" " * num_leading_spaces}" @body'})
    return json.dumps({"grammars": grammars}, sort_keys=False)


def with_ascii_digits(regex: str) -> str:
    r"""The expression with `\d` meaning 0 to 9, as in JSON schemas, and not the digits of all scripts."""
    return re.sub(r"\\(.)", lambda match: "[0-9]" if match[1] == "d" else match[0], regex, flags=re.DOTALL)


def _choice(choices: Sequence[str]) -> str:
    if len(choices) > MAX_CHOICES:
        raise InvalidParameterError("choice", f"has {len(choices):,} texts; at most {MAX_CHOICES:,} are allowed")
    return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in choices)


def _reason(message: str) -> str:
    """The library's message in one line, without its picture of the grammar."""
    if "NoExtension" in message:
        return "matches no text at all"
    if "too many" in message or ("limit" in message.lower() and "recursion" not in message):
        return TOO_COMPLEX
    lines = [line.strip() for line in message.splitlines()]
    kept = [line for line in lines if line and not line.startswith(("<", "|", "^")) and "| " not in line[:8]]
    return " ".join(kept)[:300] or "cannot be followed"
