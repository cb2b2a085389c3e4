"""Every sampling field against numpy or its formula, and the noise against its distribution."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Engine, SamplingParams, errors
from kernels.sampling import FAST_CANDIDATES, apply_penalties, gumbel_noise, keep_candidates, sample_row

PROMPT = list(range(20, 30))


def numpy_candidates(scaled: np.ndarray, top_k: int, top_p: float, min_p: float) -> set[int]:
    """The filters by a full sort in float64, in the documented order."""
    order = np.argsort(-scaled, kind="stable")
    if min_p > 0:
        order = np.array([i for i in order if scaled[i] >= scaled.max() + np.log(min_p)])
    if top_k > 0:
        order = order[:top_k]
    if top_p < 1:
        weights = np.exp(scaled[order] - scaled.max())
        cumulative = np.cumsum(weights / weights.sum())
        order = order[: int(np.searchsorted(cumulative, top_p, side="left")) + 1]
    return set(order.tolist())


@given(
    # Sixteenths, so that no two values are so close that rounding decides which of them reaches top_p.
    values=st.lists(st.integers(-128, 128), min_size=2, max_size=40, unique=True).map(lambda v: np.array(v) / 16),
    top_k=st.sampled_from([0, 1, 2, 5, 50]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.1]),
    min_p=st.sampled_from([0.0, 0.02, 0.3]),
)
@settings(max_examples=300, deadline=None)
def test_filters_keep_what_a_full_sort_keeps(values: np.ndarray, top_k: int, top_p: float, min_p: float) -> None:
    ids, kept = keep_candidates(torch.from_numpy(values), top_k, top_p, min_p)
    assert set(ids.tolist()) == numpy_candidates(values, top_k, top_p, min_p)
    assert kept.tolist() == values[ids.numpy()].tolist()


def test_top_p_looks_beyond_the_fast_candidates_when_their_mass_is_too_small() -> None:
    flat = torch.linspace(0, 1e-3, 4 * FAST_CANDIDATES, dtype=torch.float64)
    ids, _ = keep_candidates(flat, 0, 0.9, 0.0)
    assert set(ids.tolist()) == numpy_candidates(flat.numpy(), 0, 0.9, 0.0)
    assert len(ids) > FAST_CANDIDATES


def test_draws_follow_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, -1.0, -3.0])
    expected = (logits / 0.7).softmax(-1)
    draws = 20_000
    counts = torch.zeros(5)
    for position in range(draws):
        counts[sample_row(logits, 0.7, 0, 1.0, 0.0, seed=42, position=position)] += 1
    # Chi-square with 4 degrees of freedom: 23.5 is passed by chance once in 10,000 seeds, and this seed is fixed.
    assert float(((counts - draws * expected) ** 2 / (draws * expected)).sum()) < 23.5


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 4.0, 30.0, 1e5, 3e38])
def test_a_draw_is_the_best_of_all_tokens_with_their_noise(scale: float) -> None:
    token_ids = torch.arange(8 * FAST_CANDIDATES)
    logits = torch.randn(token_ids.shape[0], generator=torch.Generator().manual_seed(1)) * scale
    logits[::7] = -torch.inf
    for seed in range(100):
        best = torch.argmax(logits.double() + gumbel_noise(seed, 9, token_ids))
        assert sample_row(logits, 1.0, 0, 1.0, 0.0, seed, 9) == int(best)


def test_noise_is_standard_gumbel_and_uncorrelated_between_neighbours() -> None:
    noise = gumbel_noise(1, 5, torch.arange(50_000))
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.02)
    assert float(noise.var()) == pytest.approx(np.pi**2 / 6, abs=0.05)
    for other in (gumbel_noise(1, 6, torch.arange(50_000)), gumbel_noise(2, 5, torch.arange(50_000)), noise.roll(1)):
        assert abs(float(torch.corrcoef(torch.stack([noise, other]))[0, 1])) < 0.02


def test_noise_depends_on_all_bits_of_the_seed() -> None:
    ids = torch.arange(4)
    values = {tuple(gumbel_noise(1 << bit, 0, ids).tolist()) for bit in range(62)}
    assert len(values) == 62


def test_penalties_follow_their_formulas() -> None:
    logits = torch.tensor([1.0, -1.0, 2.0, 0.5, 3.0])
    apply_penalties(logits, torch.tensor([0, 1, 2, 2]), torch.tensor([2, 2]), 2.0, 0.25, 0.5)
    torch.testing.assert_close(logits, torch.tensor([0.5, -2.0, 1.0 - 0.25 - 2 * 0.5, 0.5, 3.0]))


def greedy(engine: Engine, **fields: object) -> list[int]:
    params = SamplingParams.from_mapping({"max_tokens": 12, "temperature": 0, "ignore_eos": True, **fields})
    return engine.generate(PROMPT, params).token_ids


@pytest.mark.usefixtures("scheduling")
def test_logit_bias_forces_and_forbids_tokens(tiny_engine: Engine) -> None:
    plain = greedy(tiny_engine)
    assert greedy(tiny_engine, logit_bias={123: 100.0}) == [123] * 12
    assert plain[0] not in greedy(tiny_engine, logit_bias={plain[0]: -100.0})


@pytest.mark.usefixtures("scheduling")
def test_strong_penalties_avoid_repetition(tiny_engine: Engine) -> None:
    assert len(set(greedy(tiny_engine, repetition_penalty=10.0))) == 12
    repeats = [12 - len(set(greedy(tiny_engine, **fields))) for fields in ({}, {"frequency_penalty": 2.0})]
    assert repeats[1] <= repeats[0]


@pytest.mark.usefixtures("scheduling")
def test_max_tokens_stop_token_ids_and_min_tokens(tiny_engine: Engine) -> None:
    plain = greedy(tiny_engine)
    output = tiny_engine.generate(
        PROMPT, SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, stop_token_ids=[plain[2]])
    )
    end = plain.index(plain[2]) + 1
    assert (output.token_ids, output.finish_reason) == (plain[:end], "stop")
    assert output.completions[0].stop_reason == plain[2]
    held = tiny_engine.generate(
        PROMPT,
        SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, stop_token_ids=[plain[0]], min_tokens=5),
    )
    assert plain[0] not in held.token_ids[:5]


@pytest.mark.usefixtures("scheduling")
def test_eos_ends_the_answer_unless_ignored(tiny_engine: Engine) -> None:
    (eos,) = tiny_engine.tokenizer.eos_token_ids
    forced = {"logit_bias": {eos: 100.0}, "temperature": 0, "max_tokens": 4}
    output = tiny_engine.generate(PROMPT, SamplingParams.from_mapping(forced))
    assert (output.token_ids, output.text, output.finish_reason) == ([eos], "", "stop")
    ignored = tiny_engine.generate(PROMPT, SamplingParams.from_mapping({**forced, "ignore_eos": True}))
    assert (ignored.token_ids, ignored.finish_reason) == ([eos] * 4, "length")
    late = tiny_engine.generate(PROMPT, SamplingParams.from_mapping({**forced, "min_tokens": 3}))
    assert (late.token_ids.index(eos), late.finish_reason) == (3, "stop")


@pytest.mark.usefixtures("scheduling")
def test_stop_strings_cut_the_text_and_are_not_part_of_it(tiny_engine: Engine) -> None:
    whole = tiny_engine.generate(PROMPT, SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)).text
    stop = whole[3:5]
    output = tiny_engine.generate(PROMPT, SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, stop=[stop]))
    assert output.text == whole[: whole.index(stop)]
    assert (output.finish_reason, output.completions[0].stop_reason) == ("stop", stop)


def test_logprobs_are_of_the_raw_distribution_and_include_the_chosen_token(tiny_engine: Engine) -> None:
    outputs = [
        tiny_engine.generate(
            PROMPT, SamplingParams(max_tokens=4, ignore_eos=True, logprobs=3, logit_bias={99: 100.0}, **fields)
        )
        for fields in ({"temperature": 0}, {"temperature": 5.0, "seed": 1, "presence_penalty": 1.0})
    ]
    for output in outputs:
        assert output.token_ids == [99] * 4
    first, second = (list(output.completions[0].logprobs or []) for output in outputs)
    assert [e.logprob for e in first] == [e.logprob for e in second]
    assert [e.token_id for e in first] == [99] * 4
    assert all(len(entry.top) == 3 and entry.logprob <= entry.top[0].logprob for entry in first)
    assert [a.logprob for a in first[0].top] == sorted((a.logprob for a in first[0].top), reverse=True)


@pytest.mark.parametrize("name", ["best_of", "use_beam_search", "length_penalty", "prompt_logprobs", "guided_json"])
def test_fields_that_are_not_honoured_are_refused_by_name(name: str) -> None:
    with pytest.raises(errors.UnsupportedParameterError, match=f"{name} is not supported by this engine") as caught:
        SamplingParams.from_mapping({name: 1})
    assert caught.value.field == name
