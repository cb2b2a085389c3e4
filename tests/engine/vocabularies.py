"""Small vocabularies trained on the spot, each as a Hugging Face folder and as the GGUF metadata that says the same."""

from __future__ import annotations

import atexit
import copy
import json
import random
import shutil
import struct
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import generate_merges

from engine.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

GGUF_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

# The published cuts, written out here independently of the engine.
LLAMA3_CUT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_CUT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

LLAMA3_CONTROL = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
    "EOT",  # no bracket, and one piece of text for the cut: a look-up of whole pieces would find it
)
QWEN2_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN2_MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
SENTENCEPIECE_CONTROL = ("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]")

PROSE = (
    "The quick brown fox jumps over the lazy dog. Time to first token measures how long a user waits; "
    "it's 12,345.67 ms at most, we're told. def encode(self, text):\n    return [ids[piece] for piece in text]\n\n"
    "user assistant system tool You are a helpful assistant. Answer with the documents below. "
)
FRAGMENTS = (
    *("Hello", " world", "hello  world", "don't", "WE'RE", "I'll", "naïve café", "the", " The", "THE ", "tokens"),
    *("def f(x):\n\treturn x**2\n", "if (a != b) { c += 1; }", "<div class='x'>&amp;</div>", "{{ x }}", "{% raw %}"),
    *("日本語のテキスト", "中文文本", "한국어", "ความ", "Привет, мир", "שלום", "مرحبا بالعالم", "हिन्दी", "ꦗꦮ"),
    *("😀", "👩‍👩‍👧‍👦", "👍🏽", "🇩🇪", "☺️", "e\u0301", "A\u030a", "ﬁ", "Å", "Ω", "\u1100\u1161", "x\u0338"),
    *("1", "12", "1234567890", "3.14159", "1,000,000", "٣٤٥", "½", "Ⅻ", "²", "0x1F", "2024-05-01", "v1.2.3"),
    *(" ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u2028", "\u200b", "\ufeff"),
    *("\x00", "\x01", "\x07", "\x1b[31m", "\x7f", "\x85", "\ufffd", "\ufffe", "\U0010ffff", "\ue000", "\U000f0000"),
    *(
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|im_",
        "end|>",
        "<s>",
        "</s>",
        "<filename>",
        "<think>",
        "[INST]",
    ),
    *("<0x0A>", "▁", "▁the", "Ġthe", "Ċ", "!!!", "...", "?!", "—", "“quoted”", "#$%^&*", "\\n", "`code`", "a" * 40),
)


def mixed_strings(count: int, seed: int = 7) -> list[str]:
    """The same strings every time: joined fragments of many scripts, code, digits, white space and control tokens."""
    source = random.Random(seed)
    return ["".join(source.choices(FRAGMENTS, k=source.randint(1, 12))) for _ in range(count)]


def read_metadata(path: Path) -> dict[str, Any]:
    """The key-value part of a GGUF file (version 3, little-endian), read by the format's description."""
    data = path.open("rb").read(16 << 20)  # tensors follow; only this part is needed
    position = 24

    def take(form: str) -> tuple[Any, ...]:
        nonlocal position
        values = struct.unpack_from("<" + form, data, position)
        position += struct.calcsize("<" + form)
        return values

    def text() -> str:
        return take(f"{take('Q')[0]}s")[0].decode()

    def value(kind: int) -> Any:
        if kind == 8:
            return text()
        if kind == 9:
            item, count = take("IQ")
            return [text() for _ in range(count)] if item == 8 else list(take(f"{count}{GGUF_NUMBERS[item]}"))
        return take(GGUF_NUMBERS[kind])[0]

    return {text(): value(take("I")[0]) for _ in range(struct.unpack_from("<Q", data, 16)[0])}


@cache
def smollm2(path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(read_metadata(path))


@cache
def smollm2_of_transformers(path: Path) -> PreTrainedTokenizerFast:
    """transformers' own conversion of the file, as it comes."""
    return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


@cache
def smollm2_reference(path: Path) -> PreTrainedTokenizerFast:
    """transformers' conversion with the cut that SmolLM2 was trained with.

    transformers 5.24 ignores `tokenizer.ggml.pre = smollm` and leaves out the single digits; the model's tokenizer.json
    (and llama.cpp) cut digits off first. It shows where white space of two or more stands before a digit.
    """
    reference = copy.deepcopy(smollm2_of_transformers(path))
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return reference


@dataclass(frozen=True)
class Vocabulary:
    """One tokenizer, three ways."""

    folder: Path
    metadata: dict[str, Any]

    @property
    def reference(self) -> PreTrainedTokenizerFast:
        return _reference(self.folder)

    @property
    def from_folder(self) -> Tokenizer:
        return _from_folder(self.folder)

    @property
    def from_gguf(self) -> Tokenizer:
        return Tokenizer.from_gguf(self.metadata)


@cache
def _reference(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(str(folder))


@cache
def _from_folder(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


def _corpus() -> list[str]:
    return [PROSE] * 20 + mixed_strings(400, seed=11)


def _saved(backend: tokenizers.Tokenizer, config: dict[str, Any], **files: Any) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="vocabulary-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
    for name, content in {"tokenizer_config": config, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def _gguf_tokens(backend: tokenizers.Tokenizer) -> tuple[list[str], list[int]]:
    added = backend.get_added_tokens_decoder()
    tokens = [backend.id_to_token(i) for i in range(backend.get_vocab_size())]
    types = [NORMAL] * len(tokens)
    for token_id, token in added.items():
        types[token_id] = CONTROL if token.special else USER_DEFINED
    return tokens, types


def _byte_level(cut: str, *, ignore_merges: bool, normalizer: Any = None) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(cut), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(_corpus(), trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet))
    return backend


def _merges(backend: tokenizers.Tokenizer) -> list[str]:
    return [" ".join(merge) for merge in json.loads(backend.to_str())["model"]["merges"]]


@cache
def llama3() -> Vocabulary:
    """Llama 3: groups of three digits, whole pieces looked up before merging, control tokens beyond the vocabulary."""
    backend = _byte_level(LLAMA3_CUT, ignore_merges=True)
    backend.add_special_tokens([AddedToken(token, special=True) for token in LLAMA3_CONTROL])
    ids = {token: backend.token_to_id(token) for token in LLAMA3_CONTROL}
    bos = LLAMA3_CONTROL[0]
    backend.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, ids[bos])]),
        ]
    )
    folder = _saved(
        backend,
        {"bos_token": bos, "eos_token": "<|eot_id|>"},
        generation_config={"eos_token_id": [ids["<|end_of_text|>"], ids["<|eom_id|>"], ids["<|eot_id|>"]]},
    )
    tokens, types = _gguf_tokens(backend)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": _merges(backend),
        "tokenizer.ggml.bos_token_id": ids[bos],
        "tokenizer.ggml.eos_token_id": ids["<|eot_id|>"],
    }
    return Vocabulary(folder, metadata)


@cache
def qwen2() -> Vocabulary:
    """Qwen2: single digits, NFC, no BOS, markup tokens that are not special."""
    backend = _byte_level(QWEN2_CUT, ignore_merges=False, normalizer=normalizers.NFC())
    backend.add_special_tokens([AddedToken(token, special=True) for token in QWEN2_CONTROL])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in QWEN2_MARKUP])
    folder = _saved(
        backend,
        {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "add_bos_token": False},
        generation_config={
            "eos_token_id": [backend.token_to_id("<|im_end|>"), backend.token_to_id("<|endoftext|>")],
        },
    )
    tokens, types = _gguf_tokens(backend)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": _merges(backend),
        "tokenizer.ggml.eos_token_id": backend.token_to_id("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": backend.token_to_id("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
    }
    return Vocabulary(folder, metadata)


@cache
def sentencepiece() -> Vocabulary:
    """Llama 2 and Mistral: SentencePiece BPE with byte tokens, a prefix space, merges implied by scores."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=True)
    trained.train_from_iterator([PROSE] * 20, trainers.BpeTrainer(vocab_size=400))
    learned = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    words, letters = [t for t in learned if len(t) > 1], [t for t in learned if len(t) == 1]
    if "▁" not in letters:
        letters.append("▁")
    tokens = ["<unk>", *SENTENCEPIECE_CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *words, *letters]
    num_control = len(SENTENCEPIECE_CONTROL)
    types = [UNKNOWN, *[CONTROL] * num_control, *[BYTE] * 256, *[NORMAL] * (len(words) + len(letters))]
    first = num_control + 257
    scores = [0.0] * first + [-float(rank) for rank in range(len(tokens) - first)]

    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    normal = {token: token_id for token, token_id in vocabulary.items() if types[token_id] == NORMAL}
    merges = generate_merges(normal, {token: scores[token_id] for token, token_id in normal.items()})
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in ("<unk>", *SENTENCEPIECE_CONTROL)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    folder = _saved(
        backend, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, generation_config={"eos_token_id": 2}
    )
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return Vocabulary(folder, metadata)
