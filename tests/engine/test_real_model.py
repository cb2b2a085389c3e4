"""The default model against Hugging Face transformers in float32, loaded by transformers' own GGUF reader."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine import Engine, SamplingParams
from tests.engine.prompts import PROMPTS


@pytest.fixture(scope="module")
def reference(chat_model_path: Path) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(
        chat_model_path.parent, gguf_file=chat_model_path.name, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def test_greedy_answers_equal_transformers_on_20_prompts(real_engine: Engine, reference: PreTrainedModel) -> None:
    params = SamplingParams(max_tokens=64, temperature=0, ignore_eos=True)
    outputs = real_engine.generate(PROMPTS, params)
    assert len(outputs) == 20
    for output in outputs:
        sequence = output.prompt_token_ids + output.token_ids
        with torch.no_grad():
            logits = reference(torch.tensor([sequence])).logits[0]
        # By induction over positions this is greedy decoding: each token is the best one after those before it.
        expected = logits[len(output.prompt_token_ids) - 1 : -1].argmax(-1).tolist()
        assert output.token_ids == expected, output.text


def test_last_token_logits_are_within_a_thousandth(real_engine: Engine, reference: PreTrainedModel) -> None:
    for prompt in PROMPTS[:8]:
        request = real_engine.make_requests(prompt, SamplingParams(max_tokens=1))[0]
        real_engine.add([request])
        _, logits = real_engine.runner.run(real_engine.scheduler.schedule())
        real_engine.abort(request.request_id)
        with torch.no_grad():
            expected = reference(torch.tensor([request.token_ids])).logits[0, -1]
        torch.testing.assert_close(logits[0], expected, atol=1e-3, rtol=0)
