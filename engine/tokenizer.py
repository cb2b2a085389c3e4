"""Text to token ids and back, over the `tokenizers` library; no text can spell its way to a control token.

Reading a model's files is `engine.tokenizer_spec`'s part, chat messages are `engine.chat_template`'s, text while it is
being generated is `engine.detokenizer`'s.

Control tokens (`<|im_end|>`, `</s>`, ...) steer the model, so text must never become one. Switching their recognition
off call by call would race between threads, and it does not stop a vocabulary look-up from finding one. Here the
backend does not contain their spellings at all: each is stored under a secret alias made of private-use characters,
and only `encode_segments` with a token id writes that alias. Everything else about the token (its id, whether it
swallows spaces beside it, how text after it is cut) stays as the model defines it, in one pass over the whole text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from engine.errors import InvalidParameterError, ModelLoadError
from engine.tokenizer_spec import TokenizerSpec, spec_from_folder, spec_from_gguf


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte, inverted: character -> byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Models also mark such tokens as plain added tokens; what looks like this is never text.
_CONTROL_SHAPE = re.compile(r"<[|｜].*[|｜]>|<(start|end)_of_turn>")
_MARKUP_SHAPE = re.compile(r"<.+>|\[.+\]", re.DOTALL)


class Tokenizer:
    """A model's BPE tokenizer. Immutable after construction and safe to share between threads.

    Added tokens come in three kinds:
      * control tokens: special ones and whatever has the shape of one; text never becomes one;
      * markup tokens: other added tokens in brackets, such as `<think>` or `<tool_call>`; `encode` finds them in
        text, as transformers does; a chat template finds them only where the template or the assistant wrote them;
      * all other added tokens (runs of spaces, words): part of ordinary text.

    Attributes:
        vocab_size: highest id + 1 (the model's embedding may be padded beyond it).
        eos_token_ids: every id that ends an answer, the principal one first.
        adds_bos: whether plain prompts of this model begin with BOS; see `encode`.
        special_ids: ids of all added tokens.
        skipped_ids: ids of special tokens: those that `decode` leaves out.
        control_tokens, markup_tokens: spelling -> id.
        strips_leading_space: how many leading spaces `decode` takes off a text (SentencePiece's prefix space).
    """

    def __init__(self, spec: TokenizerSpec) -> None:
        self._tokens = spec.tokens
        self.vocab_size = len(spec.tokens)
        self.bos_token_id = spec.bos_token_id
        self.eos_token_ids = spec.eos_token_ids
        self.unk_token_id = spec.unk_token_id
        self.pad_token_id = spec.pad_token_id
        self.adds_bos = spec.adds_bos
        self.chat_template = spec.chat_template

        added = spec.structure["added_tokens"]
        self._added = {token["content"]: token for token in added}
        self.special_ids = frozenset(int(token["id"]) for token in added)
        self.skipped_ids = frozenset(int(token["id"]) for token in added if token["special"])
        self.control_tokens = {t["content"]: int(t["id"]) for t in added if _is_control(t)}
        self.markup_tokens = {
            t["content"]: int(t["id"])
            for t in added
            if t["content"] not in self.control_tokens and _MARKUP_SHAPE.fullmatch(t["content"])
        }
        # Secret, so that no text can spell an alias; of private-use characters, so that no normaliser changes it.
        self._secret = "".join(chr(0xF0000 + byte) for byte in secrets.token_bytes(12))
        self._aliases = {i: self._alias(i) for i in (*self.control_tokens.values(), *self.markup_tokens.values())}
        self._backend = self._build(spec.structure)
        self._decoder = self._backend.decoder
        self.is_byte_level, self.strips_leading_space = _decoder_kind(spec.structure.get("decoder"))
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """From the metadata of a GGUF file (key -> python value). Raises ModelLoadError."""
        return cls(spec_from_gguf(metadata))

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """From a Hugging Face folder with a tokenizer.json. Raises ModelLoadError."""
        return cls(spec_from_folder(Path(path)))

    @property
    def bos_token(self) -> str | None:
        return self._spelling(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        return self._spelling(self.eos_token_ids[0] if self.eos_token_ids else None)

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The variables `bos_token`, `eos_token`, `unk_token` and `pad_token` of chat templates, where they exist."""
        unk, pad = self._spelling(self.unk_token_id), self._spelling(self.pad_token_id)
        named = {"bos_token": self.bos_token, "eos_token": self.eos_token, "unk_token": unk, "pad_token": pad}
        return {name: token for name, token in named.items() if token is not None}

    def token_id(self, spelling: str) -> int | None:
        """The id of a control or markup token by its spelling; None where the vocabulary lacks it."""
        return self.control_tokens.get(spelling, self.markup_tokens.get(spelling))

    # ------------------------------------------------------------------------------------------------------- encode

    def encode(self, text: str, *, allow_special: bool = False, add_bos: bool = False) -> list[int]:
        """Token ids of a text.

        Args:
            allow_special: find control tokens spelled in the text. Only for text that no user or document wrote.
            add_bos: put BOS first where the model's plain prompts begin with it (`adds_bos`), unless it is there.

        Raises:
            InvalidParameterError: the text holds a lone surrogate.
        """
        ids = self.encode_segments(self.split_tokens(text, control=allow_special))
        if add_bos and self.adds_bos and self.bos_token_id is not None and ids[:1] != [self.bos_token_id]:
            ids.insert(0, self.bos_token_id)
        return ids

    def encode_segments(self, segments: Iterable[str | int]) -> list[int]:
        """Token ids of a text in which some control or markup tokens are given by id.

        Strings are text and nothing else: whatever they spell, no control or markup token comes out of them. The ids
        are those of the whole, encoded in one piece: the cut between two segments that are both text leaves no trace.
        """
        parts: list[str] = []
        for segment in segments:
            parts.append(self._checked(segment) if isinstance(segment, str) else self._aliases[segment])
        text = "".join(parts)
        return list(self._backend.encode(text, add_special_tokens=False).ids) if text else []

    def split_tokens(self, text: str, *, control: bool) -> list[str | int]:
        """Cut a text at the markup tokens it spells, with `control` at control tokens too; leftmost, longest."""
        pattern = self._any_token if control else self._markup_token
        if pattern is None:
            return [text]
        segments: list[str | int] = []
        position = 0
        for match in pattern.finditer(text):
            spelling = match.group()
            token_id = self.token_id(spelling)
            if token_id is None or token_id not in self._aliases:
                continue
            segments += [text[position : match.start()], token_id]
            position = match.end()
        return [*segments, text[position:]]

    # ------------------------------------------------------------------------------------------------------- decode

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of token ids; invalid UTF-8 becomes U+FFFD, ids outside the vocabulary are left out.

        Equal to transformers' `decode(..., clean_up_tokenization_spaces=False)`.
        """
        spelled = ((i, self._spelling(i)) for i in ids)
        tokens = [token for i, token in spelled if token is not None and not (skip_special and i in self.skipped_ids)]
        return str(self._decoder.decode(tokens))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token adds to the text; b"" for special tokens and ids outside the vocabulary."""
        cached = self._bytes.get(token_id)
        if cached is None:
            cached = self._bytes[token_id] = self._bytes_of(token_id)
        return cached

    def token_str(self, token_id: int) -> str:
        """One token for people to read: its text (half characters as U+FFFD), or the spelling of a special token."""
        if token_id in self.special_ids:
            return self._spelling(token_id) or ""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def is_byte_fallback(self, token_id: int) -> bool:
        """Whether this is one of SentencePiece's 256 byte tokens, `<0x00>` to `<0xFF>`."""
        token = self._spelling(token_id)
        return not self.is_byte_level and token is not None and _BYTE_TOKEN.fullmatch(token) is not None

    # ------------------------------------------------------------------------------------------------------ private

    def _spelling(self, token_id: int | None) -> str | None:
        return self._tokens[token_id] if token_id is not None and 0 <= token_id < self.vocab_size else None

    def _bytes_of(self, token_id: int) -> bytes:
        token = self._spelling(token_id)
        if token is None or token_id in self.skipped_ids:
            return b""
        if self.is_byte_level:
            stands_for = [_BYTE_OF.get(character) for character in token]
            known = [byte for byte in stands_for if byte is not None]
            # An added token may hold characters outside the alphabet: then it is text as it stands.
            return bytes(known) if len(known) == len(stands_for) else token.encode("utf-8")
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match.group(1), 16)])
        return token.replace("▁", " ").encode("utf-8")

    def _checked(self, text: str) -> str:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidParameterError(
                "text",
                f"character {error.start:,} is a lone surrogate (U+{ord(text[error.start]):04X}), half of a character "
                f"that was cut in two: remove it or send the whole character",
            ) from None
        if self._secret in text:
            raise InvalidParameterError("text", "contains the reserved spelling of a control token")
        return text

    def _alias(self, token_id: int) -> str:
        digits = "".join(chr(0xF0100 + int(digit)) for digit in str(token_id))
        return f"{self._secret}{digits}\U000f0110"

    def _pattern(self, *kinds: Mapping[str, int]) -> re.Pattern[str] | None:
        wanted = {spelling for kind in kinds for spelling in kind}
        # Tokens that are found anyway take part, so that of two overlapping ones the leftmost, longest wins.
        plain = [t for t in self._added if t not in self.control_tokens and t not in self.markup_tokens]
        spellings = sorted({*wanted, *plain}, key=lambda spelling: (-len(spelling), spelling)) if wanted else []
        alternatives = [
            rf"(?<!\w){re.escape(s)}(?!\w)" if self._added[s].get("single_word") else re.escape(s) for s in spellings
        ]
        return re.compile("|".join(alternatives)) if alternatives else None

    @cached_property
    def _markup_token(self) -> re.Pattern[str] | None:
        return self._pattern(self.markup_tokens)

    @cached_property
    def _any_token(self) -> re.Pattern[str] | None:
        return self._pattern(self.control_tokens, self.markup_tokens)

    def _build(self, structure: Mapping[str, Any]) -> tokenizers.Tokenizer:
        """The backend, in which every control and markup token is spelled by its alias."""
        alias_of = {self._tokens[i]: alias for i, alias in self._aliases.items()}
        model = dict(structure["model"])
        vocabulary = {alias_of.get(token, token): token_id for token, token_id in model["vocab"].items()}
        added = []
        for token in structure["added_tokens"]:
            content = alias_of.get(token["content"], token["content"])
            vocabulary[content] = token["id"]  # in the vocabulary it keeps its id, wherever that lies
            # Whether it stands alone as a word is decided in `_pattern`; an alias that is written is always found.
            added.append({**token, "content": content, "single_word": token["single_word"] and content not in alias_of})
        model["vocab"] = vocabulary
        merges = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"])
        model["merges"] = [
            (left, right)
            for left, right in merges
            if left not in alias_of and right not in alias_of and left + right not in alias_of
        ]
        if model.get("unk_token") is not None:
            model["unk_token"] = alias_of.get(model["unk_token"], model["unk_token"])
        whole = {**structure, "model": model, "added_tokens": added}
        whole |= {"post_processor": None, "truncation": None, "padding": None}
        try:
            return tokenizers.Tokenizer.from_str(json.dumps(whole, ensure_ascii=False))
        except Exception as error:  # the library raises the bare class
            raise ModelLoadError(f"the model's tokenizer cannot be built: {error}") from error


def _is_control(token: Mapping[str, Any]) -> bool:
    content = token["content"]
    return not content.isspace() and (token["special"] or _CONTROL_SHAPE.fullmatch(content) is not None)


def _decoder_kind(decoder: Mapping[str, Any] | None) -> tuple[bool, int]:
    """Whether tokens are spelled in GPT-2's byte alphabet, and how many leading spaces decoding strips."""
    steps = (decoder or {}).get("decoders", [decoder])
    kinds = [step["type"] for step in steps if step]
    if kinds == ["ByteLevel"]:
        return True, 0
    if {"Replace", "ByteFallback", "Fuse"} <= set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        return False, next((int(step["start"]) for step in steps if step["type"] == "Strip"), 0)
    raise ModelLoadError(
        f"the tokenizer's decoder is {', '.join(kinds) or 'missing'}; this engine knows ByteLevel and SentencePiece's "
        f"(Replace, ByteFallback, Fuse, Strip)"
    )
