"""What a model's files say about its tokenizer, in one form: a `tokenizer.json` structure and the ids that matter.

Two sources: the metadata of a GGUF file (llama.cpp's `tokenizer.ggml.*` keys) and a Hugging Face folder. Building the
tokenizer and using it is left to `engine.tokenizer`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError

Json = dict[str, Any]

# Names under which model families end a turn or a text. A GGUF file declares at most three end ids, while models often
# end on another one, so a control token of one of these names ends generation too (llama.cpp does the same).
END_TOKENS = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|eot|>",
        "<|end|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|end_of_turn|>",
        "<end_of_turn>",
        "<|return|>",
        "<EOT>",
    }
)

# Far more than any vocabulary has: a larger id is a broken file, and no list is made up to it.
MAX_TOKENS = 1 << 24

# Token types of `tokenizer.ggml.token_type`.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4


@dataclass(frozen=True)
class TokenizerSpec:
    """A tokenizer as its model declares it.

    Attributes:
        structure: the content of a `tokenizer.json` (BPE).
        tokens: spelling of each id; None where the vocabulary has a hole.
        eos_token_ids: every id that ends an answer, the principal one first.
        adds_bos: whether plain prompts begin with the BOS token.
        chat_template: Jinja source, or None where the model declares none.
    """

    structure: Json
    tokens: list[str | None]
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    unk_token_id: int | None
    pad_token_id: int | None
    adds_bos: bool
    chat_template: str | None


# ------------------------------------------------------------------------------------------------------------- GGUF

_LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_REGEX = _LLAMA3_REGEX.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_REGEX = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(use_regex: bool) -> Json:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split_by(regex: str) -> Json:
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(use_regex=False)]}


_SINGLE_DIGITS: Json = {
    "type": "Sequence",
    "pretokenizers": [{"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True)],
}


@dataclass(frozen=True)
class _PreTokenizer:
    """How text is cut before merging, and what goes with that cut: `tokenizer.ggml.pre` names it, no more."""

    pre_tokenizer: Json
    normalizer: Json | None = None
    ignore_merges: bool = False
    adds_bos: bool = False


_GPT2 = _PreTokenizer(_byte_level(use_regex=True))
_DIGITS = _PreTokenizer(_SINGLE_DIGITS)
_LLAMA3 = _PreTokenizer(_split_by(_LLAMA3_REGEX), ignore_merges=True, adds_bos=True)
_QWEN2 = _PreTokenizer(_split_by(_QWEN2_REGEX), normalizer={"type": "NFC"})
_TEKKEN = _PreTokenizer(_split_by(_TEKKEN_REGEX), ignore_merges=True, adds_bos=True)

_PRE_TOKENIZERS = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "smaug-bpe": _PreTokenizer(_split_by(_LLAMA3_REGEX)),
    "qwen2": _QWEN2,
    # The distilled Qwens kept the cut but not the Unicode normalisation.
    "deepseek-r1-qwen": _PreTokenizer(_split_by(_QWEN2_REGEX)),
    "tekken": _TEKKEN,
}


def spec_from_gguf(metadata: Mapping[str, Any]) -> TokenizerSpec:
    """The tokenizer that a GGUF file's metadata (key -> python value) describes.

    Raises:
        ModelLoadError: keys are missing, or name a tokenizer or a pre-tokenizer that this engine does not know.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise ModelLoadError(
            f"the GGUF file names tokenizer {kind!r} (tokenizer.ggml.model); this engine knows 'gpt2' (byte-level BPE) "
            f"and 'llama' (SentencePiece BPE): convert the model with a current convert_hf_to_gguf"
        )
    tokens = [str(token) for token in _required(metadata, "tokenizer.ggml.tokens")]
    types = [int(number) for number in metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)]
    if len(types) != len(tokens):
        raise ModelLoadError(f"the GGUF file lists {len(tokens):,} tokens but {len(types):,} token types")
    unk_token_id = _token_id(metadata, "unknown", len(tokens))
    adds_bos = kind == "llama"
    if kind == "gpt2":
        pre = _pre_tokenizer(str(metadata.get("tokenizer.ggml.pre", "default")))
        adds_bos = pre.adds_bos
        structure = _byte_level_structure(tokens, [str(m) for m in _required(metadata, "tokenizer.ggml.merges")], pre)
    else:
        structure = _sentencepiece_structure(metadata, tokens, types, unk_token_id)
    structure["added_tokens"] = [
        _added_token(token_id, token, special=types[token_id] != _USER_DEFINED)
        for token_id, token in enumerate(tokens)
        if types[token_id] in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]
    bos_token_id = _token_id(metadata, "bos", len(tokens))
    declared = [_token_id(metadata, name, len(tokens)) for name in ("eos", "eot", "eom")]
    named = [i for i, token in enumerate(tokens) if types[i] == _CONTROL and token in END_TOKENS]
    return TokenizerSpec(
        structure=structure,
        tokens=list(tokens),
        bos_token_id=bos_token_id,
        eos_token_ids=_unique([*declared, *named]),
        unk_token_id=unk_token_id,
        pad_token_id=_token_id(metadata, "padding", len(tokens)),
        adds_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", adds_bos)) and bos_token_id is not None,
        chat_template=metadata.get("tokenizer.chat_template") or None,
    )


def _required(metadata: Mapping[str, Any], key: str) -> Any:
    value = metadata.get(key)
    if value is None:
        raise ModelLoadError(
            f"the GGUF file has no {key}: it is no complete language model; download or convert it again"
        )
    return value


def _token_id(metadata: Mapping[str, Any], name: str, num_tokens: int) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{name}_token_id")
    # Converters write 2**32 - 1 for "none".
    return int(value) if value is not None and 0 <= int(value) < num_tokens else None


def _unique(ids: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(token_id for token_id in ids if token_id is not None))


def _pre_tokenizer(name: str) -> _PreTokenizer:
    if name not in _PRE_TOKENIZERS:
        raise ModelLoadError(
            f"the GGUF file names pre-tokenizer {name!r} (tokenizer.ggml.pre); this engine knows "
            f"{', '.join(sorted(_PRE_TOKENIZERS))}: use the model's Hugging Face folder instead"
        )
    return _PRE_TOKENIZERS[name]


def _added_token(token_id: int, content: str, *, special: bool) -> Json:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": content, **flags, "special": special}


def _bpe(vocabulary: Json, merges: Sequence[tuple[str, str]], **options: Any) -> Json:
    return {"type": "BPE", "vocab": vocabulary, "merges": merges, **options}


def _vocabulary(tokens: Sequence[str]) -> dict[str, int]:
    vocabulary: dict[str, int] = {}
    for token_id, token in enumerate(tokens):
        vocabulary.setdefault(token, token_id)  # of two equal spellings the first is the one that text gives
    return vocabulary


def _byte_level_structure(tokens: Sequence[str], merges: Sequence[str], pre: _PreTokenizer) -> Json:
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    return {
        "version": "1.0",
        "normalizer": pre.normalizer,
        "pre_tokenizer": pre.pre_tokenizer,
        "decoder": _byte_level(use_regex=True),
        "model": _bpe(_vocabulary(tokens), pairs, ignore_merges=pre.ignore_merges),
    }


def _sentencepiece_structure(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int], unk_token_id: int | None
) -> Json:
    if metadata.get("tokenizer.ggml.merges"):
        pairs = [(left, right) for left, _, right in (m.partition(" ") for m in metadata["tokenizer.ggml.merges"])]
    else:
        scores = [float(score) for score in _required(metadata, "tokenizer.ggml.scores")]
        pairs = merges_from_scores(tokens, scores, [kind == _NORMAL for kind in types])
    prefix_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    scheme = "first" if prefix_space else "never"
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix_space:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unk_token = tokens[unk_token_id] if unk_token_id is not None else None
    return {
        "version": "1.0",
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(_vocabulary(tokens), pairs, unk_token=unk_token, fuse_unk=True, byte_fallback=True),
    }


def merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float], mergeable: Sequence[bool]
) -> list[tuple[str, str]]:
    """The merge list that a SentencePiece BPE vocabulary implies, best first.

    SentencePiece has no merge list: it joins the neighbours whose union has the highest score. So every way to cut a
    token into two tokens is a merge, ranked by the token's score; ties are ordered as transformers orders them. Only
    `mergeable` (normal) tokens take part: control and byte tokens are never the result of joining text.
    """
    ids = {token: i for i, token in enumerate(tokens) if mergeable[i]}
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, token_id in ids.items():
        cuts = [(token[:at], token[at:]) for at in range(1, len(token))]
        pairs = [(left, right) for left, right in cuts if left in ids and right in ids]
        pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        ranked += [(scores[token_id], len(left), len(right), left, right) for left, right in pairs]
    ranked.sort(key=lambda entry: entry[:3], reverse=True)
    return [(left, right) for *_, left, right in ranked]


# ----------------------------------------------------------------------------------------------- Hugging Face folder

_SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def spec_from_folder(path: Path) -> TokenizerSpec:
    """The tokenizer that a Hugging Face folder describes: tokenizer.json with what its sister files add.

    Raises:
        ModelLoadError: no tokenizer.json, a file that is no JSON, or a tokenizer that is not BPE.
    """
    if not (path / "tokenizer.json").is_file():
        raise ModelLoadError(
            f"{path} has no tokenizer.json, the only tokenizer file this engine reads from a folder: make it with "
            f"transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...), or use a GGUF file of the model"
        )
    structure = _read_json(path / "tokenizer.json")
    model = structure.get("model") or {}
    if model.get("type") != "BPE":
        raise ModelLoadError(
            f"{path / 'tokenizer.json'} holds a {model.get('type')} tokenizer; this engine knows BPE only"
        )
    config = _read_json(path / "tokenizer_config.json")
    special_map = _read_json(path / "special_tokens_map.json")
    roles = {role: _content(config.get(role)) or _content(special_map.get(role)) for role in _SPECIAL_ROLES}
    added = _added_tokens(structure, config, special_map, roles)
    structure["added_tokens"] = added

    ids: dict[str, int] = {**model["vocab"], **{token["content"]: token["id"] for token in added}}
    for token, token_id in ids.items():
        if not isinstance(token_id, int) or not 0 <= token_id < MAX_TOKENS:
            raise ModelLoadError(
                f"{path / 'tokenizer.json'} gives the token {token[:40]!r} the id {str(token_id)[:40]}; ids are "
                f"integers from 0 to {MAX_TOKENS - 1:,}"
            )
    tokens: list[str | None] = [None] * (max(ids.values(), default=-1) + 1)
    for token, token_id in ids.items():
        tokens[token_id] = token
    bos, eos, unk, pad = (ids.get(roles[role] or "") for role in _SPECIAL_ROLES[:4])
    declared = _declared_eos(path)
    if not declared:
        declared = [token["id"] for token in added if token["special"] and token["content"] in END_TOKENS]
    adds_bos = config.get("add_bos_token")
    if not isinstance(adds_bos, bool):
        adds_bos = roles["bos_token"] is not None and _first_special(structure) == roles["bos_token"]
    return TokenizerSpec(
        structure=structure,
        tokens=tokens,
        bos_token_id=bos,
        eos_token_ids=_unique([eos, *declared]),
        unk_token_id=unk,
        pad_token_id=pad,
        adds_bos=adds_bos and bos is not None,
        chat_template=_folder_template(path, config),
    )


def _read_json(path: Path) -> Json:
    """The JSON object in a file; an absent file is an empty object."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{path} is not valid JSON ({error}): download the model again") from error
    if not isinstance(value, dict):
        raise ModelLoadError(
            f"{path} holds a {type(value).__name__} where an object is expected: download the model again"
        )
    return value


def _content(token: Any) -> str | None:
    """A special token is written as a string or as an object with `content`."""
    return token.get("content") if isinstance(token, dict) else token


def _added_tokens(structure: Json, config: Json, special_map: Json, roles: Mapping[str, str | None]) -> list[Json]:
    """The added tokens of tokenizer.json and tokenizer_config.json; those that have a role are special."""
    added = {token["content"]: dict(token) for token in structure.get("added_tokens") or []}
    for token_id, token in (config.get("added_tokens_decoder") or {}).items():
        plain = _added_token(int(token_id), token["content"], special=False)
        added.setdefault(token["content"], {**plain, **token, "id": int(token_id)})
    special = {token for token in roles.values() if token}
    for files in (config, special_map):
        for key in ("additional_special_tokens", "extra_special_tokens"):
            extra = files.get(key) or []
            special.update(filter(None, map(_content, extra.values() if isinstance(extra, dict) else extra)))
    vocabulary = structure["model"]["vocab"]
    for token in sorted(special):
        if token in added:
            added[token]["special"] = True
        elif token in vocabulary:
            added[token] = _added_token(vocabulary[token], token, special=True)
    return sorted(added.values(), key=lambda token: int(token["id"]))


def _declared_eos(path: Path) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        declared = _read_json(path / name).get("eos_token_id")
        if declared is not None:
            return [int(token_id) for token_id in (declared if isinstance(declared, list) else [declared])]
    return []


def _first_special(structure: Json) -> str | None:
    """The special token that the post-processor puts before a single text."""
    processor = structure.get("post_processor") or {}
    steps = processor.get("processors", []) if processor.get("type") == "Sequence" else [processor]
    for step in steps:
        first = next(iter(step.get("single") or []), None) if step.get("type") == "TemplateProcessing" else None
        if first and "SpecialToken" in first:
            return str(first["SpecialToken"]["id"])
    return None


def _folder_template(path: Path, config: Json) -> str | None:
    if (path / "chat_template.jinja").is_file():
        return (path / "chat_template.jinja").read_text(encoding="utf-8")
    template = config.get("chat_template") or _read_json(path / "chat_template.json").get("chat_template")
    if isinstance(template, list):  # several, by name
        by_name = {entry["name"]: entry["template"] for entry in template}
        template = by_name.get("default") or next(iter(by_name.values()), None)
    return template or None
