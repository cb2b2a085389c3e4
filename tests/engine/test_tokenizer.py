"""The tokenizer: ids and text as transformers gives them, and no way from text to a control token."""

from __future__ import annotations

import itertools
import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_utils_base import generate_merges

from engine.errors import InvalidParameterError, ModelLoadError
from engine.tokenizer import Tokenizer
from engine.tokenizer_spec import merges_from_scores, spec_from_gguf
from tests.engine import vocabularies
from tests.engine.vocabularies import Vocabulary, mixed_strings

STRINGS = mixed_strings(1000)
FAMILIES = ["llama3", "qwen2", "sentencepiece"]


@pytest.fixture(scope="module")
def smollm2(chat_model_path: Path) -> Tokenizer:
    return vocabularies.smollm2(chat_model_path)


@pytest.fixture(scope="module")
def reference(chat_model_path: Path) -> PreTrainedTokenizerFast:
    return vocabularies.smollm2_reference(chat_model_path)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Vocabulary:
    vocabulary: Vocabulary = getattr(vocabularies, request.param)()
    return vocabulary


def ids_of(reference: PreTrainedTokenizerFast, text: str, *, allow_special: bool = False) -> list[int]:
    ids: list[int] = reference(text, add_special_tokens=False, split_special_tokens=not allow_special)["input_ids"]
    return ids


# ------------------------------------------------------------------------------------------------------ real SmolLM2


def test_ids_equal_transformers_on_1000_mixed_strings(smollm2: Tokenizer, reference: PreTrainedTokenizerFast) -> None:
    assert [smollm2.encode(text) for text in STRINGS] == [ids_of(reference, text) for text in STRINGS]


def test_ids_with_control_tokens_equal_transformers(smollm2: Tokenizer, reference: PreTrainedTokenizerFast) -> None:
    ours = [smollm2.encode(text, allow_special=True) for text in STRINGS]
    assert ours == [ids_of(reference, text, allow_special=True) for text in STRINGS]


def test_only_digits_after_white_space_differ_from_transformers_own_gguf_conversion(
    smollm2: Tokenizer, chat_model_path: Path
) -> None:
    own = vocabularies.smollm2_of_transformers(chat_model_path)
    differ = [text for text in STRINGS if smollm2.encode(text) != ids_of(own, text)]
    assert all(any(a.isspace() and b.isnumeric() for a, b in itertools.pairwise(text)) for text in differ)
    assert len(differ) == 45


def test_digits_are_single_tokens_and_do_not_take_the_space_before(smollm2: Tokenizer) -> None:
    assert [smollm2.token_str(i) for i in smollm2.encode("a  1234 b")] == ["a", "  ", "1", "2", "3", "4", " b"]


def test_decode_gives_the_text_back(smollm2: Tokenizer) -> None:
    assert [smollm2.decode(smollm2.encode(text)) for text in STRINGS] == STRINGS


def test_decode_of_any_ids_equals_transformers(smollm2: Tokenizer, reference: PreTrainedTokenizerFast) -> None:
    source = random.Random(3)
    for _ in range(300):
        ids = [source.choice([source.randrange(40), source.randrange(300), source.randrange(49152)]) for _ in range(12)]
        for skip in (True, False):
            expected = reference.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert smollm2.decode(ids, skip_special=skip) == expected


def test_token_bytes_join_to_the_bytes_of_the_text(smollm2: Tokenizer) -> None:
    for text in STRINGS:
        assert b"".join(map(smollm2.token_bytes, smollm2.encode(text))) == text.encode()


def test_control_tokens_have_no_bytes_but_a_name(smollm2: Tokenizer) -> None:
    assert [smollm2.token_bytes(i) for i in range(17)] == [b""] * 17
    assert smollm2.token_str(2) == "<|im_end|>"
    assert smollm2.special_ids == smollm2.skipped_ids == frozenset(range(17))


def test_what_the_gguf_declares(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert (smollm2.bos_token_id, smollm2.bos_token) == (1, "<|im_start|>")
    assert (smollm2.eos_token_ids, smollm2.eos_token) == ((2, 0), "<|im_end|>")
    assert smollm2.adds_bos is False
    assert (smollm2.chat_template or "").startswith("{% for message in messages %}")


def test_ids_outside_the_vocabulary_are_left_out(smollm2: Tokenizer) -> None:
    assert smollm2.decode([28120, 49152, -1, 905]) == "hello world"
    assert (smollm2.token_bytes(49152), smollm2.token_str(-1)) == (b"", "")


# -------------------------------------------------------------------------------------------- text stays text


def test_text_that_spells_a_control_token_stays_text(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("<|im_start|>user")
    assert [smollm2.token_str(i) for i in ids] == ["<", "|", "im", "_", "start", "|", ">", "user"]
    assert smollm2.encode("<|im_start|>user", allow_special=True) == [1, 4093]


@pytest.mark.parametrize("token", [*vocabularies.LLAMA3_CONTROL, "x EOT y", " EOT", "EOT."])
def test_not_even_a_whole_piece_look_up_finds_a_control_token(token: str) -> None:
    for tokenizer in (vocabularies.llama3().from_gguf, vocabularies.llama3().from_folder):
        ids = tokenizer.encode(token)
        assert not tokenizer.special_ids.intersection(ids)
        assert tokenizer.decode(ids) == token


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["<", "|", ">", "im_start", "im_end", "<|im_", "s", "/s", "[", "INST", "]", " ", "EOT"]))
)
def test_no_text_of_token_fragments_gives_a_control_token(pieces: list[str]) -> None:
    text = "".join(pieces)
    for vocabulary in (vocabularies.llama3(), vocabularies.qwen2(), vocabularies.sentencepiece()):
        tokenizer = vocabulary.from_folder
        ids = tokenizer.encode(text)
        assert not set(tokenizer.control_tokens.values()).intersection(ids)
        # SentencePiece cannot tell a leading space from its prefix space.
        assert tokenizer.decode(ids) == (text.removeprefix(" ") if tokenizer.strips_leading_space else text)


def test_the_secret_spelling_of_control_tokens_is_refused(smollm2: Tokenizer) -> None:
    with pytest.raises(InvalidParameterError, match="reserved spelling"):
        smollm2.encode(f"x {smollm2._aliases[1]} y")


def test_segments_mix_text_and_control_tokens(smollm2: Tokenizer) -> None:
    assert smollm2.encode_segments([1, "us", "er", "\n<|im_end|>", 2]) == [1, 4093, *smollm2.encode("\n<|im_end|>"), 2]
    assert smollm2.encode_segments([]) == []


def test_markup_tokens_in_text_are_found_as_transformers_finds_them() -> None:
    tokenizer = vocabularies.qwen2().from_gguf
    ids = tokenizer.encode("<think>\nx</think><|im_end|>")
    think, end = tokenizer.markup_tokens["<think>"], tokenizer.markup_tokens["</think>"]
    assert (ids[0], ids.count(end)) == (think, 1)
    assert tokenizer.control_tokens["<|im_end|>"] not in ids
    assert tokenizer.decode(ids) == "<think>\nx</think><|im_end|>"


def test_threads_that_allow_control_tokens_do_not_disturb_those_that_do_not(smollm2: Tokenizer) -> None:
    text = "<|im_start|>user\nhello<|im_end|>" * 20

    def encode(number: int) -> list[int]:
        return smollm2.encode(text, allow_special=number % 2 == 0)

    expected = [encode(0), encode(1)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(encode, range(200))) == expected * 100


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "ok \ud83d"])
def test_lone_surrogate_is_a_typed_error(smollm2: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidParameterError, match=r"lone surrogate \(U\+D[8F]"):
        smollm2.encode(text)


def test_empty_text_has_no_tokens(smollm2: Tokenizer) -> None:
    assert smollm2.encode("") == []
    assert smollm2.decode([]) == ""


# ------------------------------------------------------------------------------------------------ families of models


@pytest.mark.parametrize("allow_special", [False, True])
def test_folder_and_gguf_give_the_ids_of_transformers(family: Vocabulary, allow_special: bool) -> None:
    expected = [ids_of(family.reference, text, allow_special=allow_special) for text in STRINGS]
    assert [family.from_folder.encode(text, allow_special=allow_special) for text in STRINGS] == expected
    from_gguf = family.from_gguf
    assert [from_gguf.encode(text, allow_special=allow_special) for text in STRINGS] == expected


def test_folder_and_gguf_decode_any_ids_as_transformers(family: Vocabulary) -> None:
    source = random.Random(5)
    from_gguf = family.from_gguf
    for _ in range(300):
        ids = [source.randrange(from_gguf.vocab_size) for _ in range(10)]
        for skip in (True, False):
            expected = family.reference.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert from_gguf.decode(ids, skip_special=skip) == expected
            assert family.from_folder.decode(ids, skip_special=skip) == expected


def test_folder_and_gguf_agree_on_everything_else(family: Vocabulary) -> None:
    one, other = family.from_folder, family.from_gguf
    for name in ("vocab_size", "bos_token_id", "eos_token", "adds_bos", "special_ids", "skipped_ids", "control_tokens"):
        assert getattr(one, name) == getattr(other, name), name
    assert set(one.eos_token_ids) == set(other.eos_token_ids)
    assert [one.token_bytes(i) for i in range(one.vocab_size)] == [other.token_bytes(i) for i in range(one.vocab_size)]


def test_bos_is_added_once_where_the_model_wants_it() -> None:
    llama, qwen = vocabularies.llama3().from_gguf, vocabularies.qwen2().from_gguf
    bos = llama.bos_token_id
    assert llama.encode("the", add_bos=True) == [bos, *llama.encode("the")]
    assert llama.encode("<|begin_of_text|>the", allow_special=True, add_bos=True) == [bos, *llama.encode("the")]
    assert qwen.encode("the", add_bos=True) == qwen.encode("the")


@pytest.mark.parametrize("name", ["default", "gpt-2", "smollm", "llama3", "smaug-bpe", "deepseek-r1-qwen", "tekken"])
def test_every_known_pre_tokenizer_gives_the_text_back(name: str) -> None:
    tokenizer = Tokenizer.from_gguf(metadata_with(pre=name))
    assert [tokenizer.decode(tokenizer.encode(text)) for text in STRINGS[:100]] == STRINGS[:100]


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("gpt-2", ["It", "'s", " 1234", ",", "  ", " HelloWORLD"]),
        ("smollm", ["It", "'s", " ", "1", "2", "3", "4", ",", "  ", " HelloWORLD"]),
        ("llama-bpe", ["It", "'s", " ", "123", "4", ",", "  ", " HelloWORLD"]),
        ("qwen2", ["It", "'s", " ", "1", "2", "3", "4", ",", "  ", " HelloWORLD"]),
        ("tekken", ["It", "'s", " ", "1", "2", "3", "4", ",", "  ", " Hello", "WORLD"]),
    ],
)
def test_pre_tokenizers_cut_as_published(name: str, pieces: list[str]) -> None:
    spec = spec_from_gguf(metadata_with(pre=name))
    cut = tokenizers.Tokenizer.from_str(json.dumps({**spec.structure, "added_tokens": []})).pre_tokenizer
    spelled = [piece.replace("Ġ", " ") for piece, _ in cut.pre_tokenize_str("It's 1234,   HelloWORLD")]
    assert spelled == pieces


def test_eos_ids_of_generation_config_are_all_kept() -> None:
    tokenizer = vocabularies.llama3().from_folder
    names = [tokenizer.token_str(i) for i in tokenizer.eos_token_ids]
    assert names == ["<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"]


def test_sentencepiece_byte_tokens_and_spaces() -> None:
    tokenizer = vocabularies.sentencepiece().from_gguf
    ids = tokenizer.encode("fox 😀")
    assert b"".join(map(tokenizer.token_bytes, ids)) == b" fox \xf0\x9f\x98\x80"
    assert [tokenizer.token_bytes(i) for i in ids[-4:]] == [b"\xf0", b"\x9f", b"\x98", b"\x80"]
    assert tokenizer.decode(ids) == "fox 😀"
    assert (tokenizer.is_byte_level, tokenizer.strips_leading_space) == (False, 1)


def sentencepiece_ids(text: str, tokens: list[str], scores: list[float], normal: set[str]) -> list[int]:
    """SentencePiece's own algorithm, naively: join the neighbours whose union scores highest, leftmost first."""
    ids = {token: i for i, token in enumerate(tokens)}
    pieces = list("▁" + text.replace(" ", "▁"))
    while True:
        unions = [(scores[ids[a + b]], -at) for at, (a, b) in enumerate(itertools.pairwise(pieces)) if a + b in normal]
        if not unions:
            break
        at = -max(unions)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    per_piece = [[ids[p]] if p in normal else [ids[f"<0x{byte:02X}>"] for byte in p.encode()] for p in pieces]
    return [i for piece in per_piece for i in piece]


def test_sentencepiece_merges_from_scores_equal_sentencepieces_algorithm() -> None:
    vocabulary = vocabularies.sentencepiece()
    tokens, scores = vocabulary.metadata["tokenizer.ggml.tokens"], vocabulary.metadata["tokenizer.ggml.scores"]
    types = vocabulary.metadata["tokenizer.ggml.token_type"]
    normal = {t for t, kind in zip(tokens, types, strict=True) if kind == vocabularies.NORMAL}
    tokenizer = vocabulary.from_gguf
    texts = ["the quick brown fox", "assistant answers", "user  user", vocabularies.PROSE, "the日the", "tthhee tokens"]
    for text in texts:
        assert tokenizer.encode(text) == sentencepiece_ids(text, tokens, scores, normal)


def test_merges_from_scores_are_ordered_as_transformers_orders_them() -> None:
    metadata = vocabularies.sentencepiece().metadata
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    normal = [kind == vocabularies.NORMAL for kind in metadata["tokenizer.ggml.token_type"]]
    ids = {token: i for i, token in enumerate(tokens) if normal[i]}
    assert merges_from_scores(tokens, scores, normal) == generate_merges(ids, {t: scores[i] for t, i in ids.items()})


def test_no_prefix_space_where_the_gguf_says_so() -> None:
    metadata = {**vocabularies.sentencepiece().metadata, "tokenizer.ggml.add_space_prefix": False}
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.strips_leading_space == 0
    assert tokenizer.decode(tokenizer.encode(" fox")) == " fox"
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode("fox"))) == b"fox"


def test_added_tokens_that_swallow_spaces_or_need_word_borders_act_as_in_transformers(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator([vocabularies.PROSE], tokenizers.trainers.BpeTrainer(initial_alphabet=alphabet))
    flags: list[tuple[str, dict[str, Any]]] = [
        ("<|end|>", {"rstrip": True}),
        ("<mask>", {"lstrip": True}),
        ("stop", {"single_word": True}),
        ("<|norm|>", {"normalized": True}),
        ("<|end|>>", {}),
    ]
    backend.add_special_tokens([AddedToken(content, special=True, **kind) for content, kind in flags])
    backend.add_tokens([AddedToken("Ragstone", special=False, normalized=True), AddedToken("    ", normalized=False)])
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(tmp_path)
    reference, tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path), Tokenizer.from_folder(tmp_path)
    source = random.Random(9)
    parts = ["<|end|>", "<|end|>>", "<mask>", "stop", "<|norm|>", "Ragstone", " ", "    ", "fox", "_", "\n", ">"]
    for _ in range(500):
        text = "".join(source.choices(parts, k=7))
        assert tokenizer.encode(text, allow_special=True) == ids_of(reference, text, allow_special=True)
        assert tokenizer.encode(text) == ids_of(reference, text)


# ---------------------------------------------------------------------------------------------------- what is refused


def metadata_with(**changes: Any) -> dict[str, Any]:
    changed = {**vocabularies.llama3().metadata, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}
    return {key: value for key, value in changed.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "weird-bpe"}, r"names pre-tokenizer 'weird-bpe' .* knows .*llama-bpe.*qwen2.*smollm"),
        ({"model": "bert"}, r"names tokenizer 'bert' .* knows 'gpt2' .* and 'llama'"),
        ({"model": None}, r"names tokenizer None"),
        ({"tokens": None}, r"has no tokenizer\.ggml\.tokens"),
        ({"merges": None}, r"has no tokenizer\.ggml\.merges"),
        ({"model": "llama", "merges": None, "scores": None}, r"has no tokenizer\.ggml\.scores"),
        ({"token_type": [1, 2, 3]}, r"lists 708 tokens but 3 token types"),
        ({"merges": ["no such", "tokens here"]}, r"tokenizer cannot be built"),
    ],
)
def test_broken_gguf_metadata_is_a_typed_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        Tokenizer.from_gguf(metadata_with(**changes))


def test_folder_without_tokenizer_json_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"sentencepiece")
    with pytest.raises(ModelLoadError, match=r"has no tokenizer\.json.*save_pretrained"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"tokenizer\.json is not valid JSON"),
        ("[]", r"holds a list where an object is expected"),
        (
            json.dumps({"model": {"type": "WordPiece", "vocab": {}}}),
            r"holds a WordPiece tokenizer; this engine knows BPE",
        ),
    ],
)
def test_broken_tokenizer_json_is_a_typed_error(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelLoadError, match=message):
        Tokenizer.from_folder(tmp_path)


def test_unknown_decoder_is_a_typed_error(tmp_path: Path) -> None:
    structure = json.loads((vocabularies.qwen2().folder / "tokenizer.json").read_text())
    structure["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(structure))
    with pytest.raises(ModelLoadError, match="decoder is WordPiece"):
        Tokenizer.from_folder(tmp_path)


# ------------------------------------------------------------------------------------------------- files of a folder


def folder_with(tmp_path: Path, **files: Any) -> Tokenizer:
    (tmp_path / "tokenizer.json").write_text((vocabularies.qwen2().folder / "tokenizer.json").read_text())
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return Tokenizer.from_folder(tmp_path)


def test_chat_template_file_wins_over_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert folder_with(tmp_path, tokenizer_config={"chat_template": "x"}).chat_template == "from the file"


def test_of_named_templates_the_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert folder_with(tmp_path, tokenizer_config={"chat_template": named}).chat_template == "d"


def test_roles_may_come_from_the_special_tokens_map(tmp_path: Path) -> None:
    tokenizer = folder_with(tmp_path, special_tokens_map={"eos_token": {"content": "<|im_end|>"}})
    assert tokenizer.eos_token == "<|im_end|>"


def test_a_token_that_has_a_role_is_special_whatever_the_vocabulary_says(tmp_path: Path) -> None:
    tokenizer = folder_with(tmp_path, tokenizer_config={"eos_token": "</think>", "extra_special_tokens": ["<think>"]})
    assert {"<think>", "</think>"} <= tokenizer.control_tokens.keys()
    assert tokenizer.decode(tokenizer.encode("<think></think>", allow_special=True)) == ""


def test_without_generation_config_the_model_configuration_names_the_end(tmp_path: Path) -> None:
    end = vocabularies.qwen2().from_folder.control_tokens["<|endoftext|>"]
    assert folder_with(tmp_path, config={"eos_token_id": end}).eos_token_ids == (end,)


def test_without_any_declared_end_tokens_of_known_names_end_generation(tmp_path: Path) -> None:
    tokenizer = folder_with(tmp_path)
    assert {tokenizer.token_str(i) for i in tokenizer.eos_token_ids} == {"<|im_end|>", "<|endoftext|>"}


def test_tokens_that_only_the_configuration_adds_are_known(tmp_path: Path) -> None:
    size = vocabularies.qwen2().from_folder.vocab_size
    added = {str(size): {"content": "<|extra|>", "special": True, "normalized": False}}
    tokenizer = folder_with(tmp_path, tokenizer_config={"added_tokens_decoder": added})
    assert tokenizer.encode("a<|extra|>", allow_special=True)[-1] == size
    assert tokenizer.vocab_size == size + 1
