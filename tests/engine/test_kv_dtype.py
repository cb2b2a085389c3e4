"""Keys and values in float8 on the torch path: what they take, how little they change, and who is refused them."""

from pathlib import Path

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams, errors
from engine.decoder import Decoder
from tests.engine.conftest import make_tiny_engine
from tests.engine.test_architectures import all_logits
from tests.engine.test_packed import save_wide_model
from tests.engine.tiny_models import VOCAB_SIZE, save_tiny_model

PROMPT = torch.randint(2, VOCAB_SIZE, (40,), generator=torch.Generator().manual_seed(1)).tolist()


def decoder_of(engine: Engine) -> Decoder:
    assert isinstance(engine.runner.decoder, Decoder)
    return engine.runner.decoder


def test_they_take_a_byte_a_number_and_the_plan_knows(tiny_folder: Path) -> None:
    whole, half = (make_tiny_engine(tiny_folder, kv_cache_dtype=kind).runner for kind in ("auto", "fp8"))
    assert 4 * half.kv_bytes_per_token == whole.kv_bytes_per_token == 256
    assert half.memory_plan.kv_bytes_per_token == half.kv_bytes_per_token
    assert isinstance(half.decoder, Decoder)
    assert {pool.k.dtype for pool in half.decoder.pools} == {torch.float8_e4m3fn}
    memory = {
        kind: Engine(
            EngineConfig(model=tiny_folder, dtype="float32", device="cpu", kv_memory_bytes=1 << 17, kv_cache_dtype=kind)
        ).runner.num_blocks
        for kind in ("auto", "fp8")
    }
    assert memory == {"auto": 32, "fp8": 128}


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral-window", "qwen2"])
def test_logits_stay_close_to_those_of_whole_numbers(name: str, tmp_path: Path) -> None:
    save_tiny_model(name, tmp_path)
    whole, rounded = (all_logits(make_tiny_engine(tmp_path, kv_cache_dtype=kind), PROMPT) for kind in ("auto", "fp8"))
    # Three bits behind the leading one err by a sixteenth at most; weights this random average little of it out.
    error = (rounded - whole).norm(dim=-1) / whole.norm(dim=-1)
    assert float(error.mean()) < 0.07
    assert float(error.max()) < 0.15
    assert float((rounded - whole).abs().max()) > 0


def test_what_is_larger_than_anything_seen_before_still_fits(tiny_folder: Path) -> None:
    engine = make_tiny_engine(tiny_folder, kv_cache_dtype="fp8", num_kv_blocks=64)
    decoder = decoder_of(engine)
    engine.generate(PROMPT, SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
    for pool in decoder.pools:
        for codes in (pool.k, pool.v):
            largest = codes.float().abs().amax((0, 2, 3))
            assert bool((largest > 100).all()), "the scale wastes no more than two powers of two"
            assert bool((largest < 448).all()), "nothing is cut off"


def test_tokens_are_the_same_in_chunks_and_from_a_warm_cache(tiny_folder: Path) -> None:
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    settings = {"kv_cache_dtype": "fp8", "deterministic": True, "num_kv_blocks": 64, "speculation": "off"}
    whole = make_tiny_engine(tiny_folder, **settings, max_num_batched_tokens=64)
    expected = whole.generate(PROMPT, params).token_ids
    chunked = make_tiny_engine(tiny_folder, **settings, max_num_batched_tokens=7)
    assert chunked.generate(PROMPT, params).token_ids == expected
    again = chunked.generate(PROMPT, params)
    assert again.token_ids == expected
    assert again.num_cached_tokens == 36
    together = make_tiny_engine(tiny_folder, **settings, max_num_batched_tokens=16)
    outputs = together.generate([PROMPT, PROMPT[7:], PROMPT[:9], PROMPT], params)
    assert outputs[0].token_ids == outputs[3].token_ids == expected


def test_weights_packed_for_cpus_are_refused_it_by_name(tmp_path: Path) -> None:
    save_wide_model("llama", tmp_path)
    with pytest.raises(errors.InvalidParameterError, match=r'kv_cache_dtype.*"fp8" does not go with weights packed'):
        Engine(EngineConfig(model=tmp_path, device="cpu", dtype="int8", kv_cache_dtype="fp8"))
