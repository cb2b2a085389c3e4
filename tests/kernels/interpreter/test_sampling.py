"""Penalties and draws in Triton's interpreter: the tokens of the CPU's sampler."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.gpu import sampling as gpu
from kernels.sampling import (
    Draw,
    Penalty,
    apply_penalties,
    keep_candidates,
    penalize_rows,
    sample_row,
    sample_rows,
    token_logprobs,
)


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    """Blocks of 128 tokens, so that a small vocabulary has several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "BLOCK", 128)
        patch.setattr(gpu, "PENALTY_BLOCK", 16)
        yield


DRAWS = st.builds(
    Draw,
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, 150, 10_000]),
    top_p=st.sampled_from([1.0, 0.9, 0.3, 1e-6]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 1.0]),
    seed=st.integers(0, 2**63 - 1),
    position=st.integers(0, 10_000),
)


@given(draws=st.lists(DRAWS, min_size=1, max_size=4), vocab=st.sampled_from([1, 128, 150]), seed=st.integers(0, 99))
def test_tokens_are_those_of_the_cpu(draws: list[Draw], vocab: int, seed: int) -> None:
    torch.manual_seed(seed)
    logits = 3 * torch.randn(len(draws), vocab)
    expected = [
        sample_row(row, d.temperature, d.top_k, d.top_p, d.min_p, d.seed, d.position)
        for row, d in zip(logits, draws, strict=True)
    ]
    assert sample_rows(logits, draws).tolist() == expected
    assert sample_rows(logits, draws).tolist() == expected


def test_ties_at_a_threshold_leave_as_many_tokens_as_were_asked_for() -> None:
    logits = torch.tensor([2.0, 1.0, 1.0, 1.0, 1.0, 0.0, -torch.inf]).repeat(5, 1)
    for top_k, top_p, possible in ((3, 1.0, {0, 1, 2}), (0, 0.5, {0, 1, 2}), (0, 0.05, {0})):
        drawn = sample_rows(logits, [Draw(3.0, top_k, top_p, 0.0, seed, 7) for seed in range(5)]).tolist()
        assert set(drawn) <= possible
        assert len(set(drawn)) > len(possible) // 2
        kept, _ = keep_candidates(logits[0] / 3.0, top_k, top_p, 0.0)
        assert len(kept) == len(possible)


def test_a_row_without_any_possible_token_gives_the_first_and_disturbs_no_neighbour() -> None:
    logits = torch.full((2, 70), -torch.inf)
    logits[1, 66] = 0.5
    assert sample_rows(logits, [Draw(1.0, 3, 0.5, 0.1, 1, 1), Draw(1.0, 0, 0.5, 0.1, 1, 1)])[1] == 66


@given(
    penalties=st.lists(
        st.builds(
            lambda prompt, output, *numbers: Penalty([*prompt, *output], output, *numbers),
            st.lists(st.integers(0, 59), max_size=30),
            st.lists(st.integers(0, 59), max_size=30),
            st.sampled_from([1.0, 1.3]),
            st.sampled_from([0.0, 0.7]),
            st.sampled_from([0.0, -0.25]),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_penalties_are_those_of_the_cpu_to_the_bit(penalties: list[Penalty]) -> None:
    logits = torch.randn(len(penalties), 60)
    expected = logits.clone()
    for row, p in zip(expected, penalties, strict=True):
        apply_penalties(
            row, torch.tensor(p.seen_ids, dtype=torch.int64), torch.tensor(p.output_ids, dtype=torch.int64),
            p.repetition, p.presence, p.frequency,
        )  # fmt: skip
    penalize_rows(logits, penalties)
    assert torch.equal(logits, expected)


@given(
    prompt=st.lists(st.integers(0, 9), max_size=12),
    output=st.lists(st.integers(0, 9), max_size=12),
    newest=st.integers(0, 9),
)
def test_a_token_that_only_the_device_knows_is_penalised_like_the_others(
    prompt: list[int], output: list[int], newest: int
) -> None:
    numbers = (1.3, 0.7, -0.25)
    logits = torch.randn(2, 60)
    expected = logits.clone()
    other = Penalty([3], [], 2.0, 0.0, 0.0)
    penalize_rows(expected, [Penalty([*prompt, *output, newest], [*output, newest], *numbers), other])
    penalize_rows(logits, [Penalty([*prompt, *output], output, *numbers), other], torch.tensor([newest, -1]))
    assert torch.equal(logits, expected)


@given(rows=st.integers(1, 3), vocab=st.sampled_from([1, 128, 150, 300]), seed=st.integers(0, 99))
def test_log_probabilities_are_those_of_float64(rows: int, vocab: int, seed: int) -> None:
    torch.manual_seed(seed)
    logits = 20 * torch.randn(rows, vocab)
    logits[0, vocab // 2 :] = -torch.inf
    logits[0, 0] = 3.0
    token_ids, most = torch.randint(0, vocab, (rows,)), min(vocab, 5)
    expected = logits.double().log_softmax(-1)
    chosen, ids, values = token_logprobs(logits, token_ids, most)
    assert torch.equal(ids, logits.topk(most).indices)
    torch.testing.assert_close(values.double(), expected.gather(1, ids), atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(chosen.double(), expected.gather(1, token_ids[:, None])[:, 0], atol=1e-5, rtol=1e-6)
    again = token_logprobs(logits, token_ids, most)
    assert all(torch.equal(a, b) for a, b in zip(again, (chosen, ids, values), strict=True))
