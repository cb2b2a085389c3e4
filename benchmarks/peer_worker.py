"""One engine in a process of its own, driven by JSON lines: `python benchmarks/peer_worker.py ENGINE MODEL THREADS`.

Started by `benchmarks.peers` with the Python of the environment that has the engine. Every task gets token ids, so that
no tokenizer is measured, answers greedily and goes on past end tokens. A line in is {"task": …, …}, a line out holds
the figure.
"""

import json
import sys
import time
from typing import Any


class Ragstone:
    """This repository's engine."""

    def __init__(self, model: str, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        from engine import Engine, EngineConfig, SamplingParams

        self.params = SamplingParams
        self.engines = {
            mode: Engine(EngineConfig(model=model, speculation=mode, max_num_seqs=16, max_num_batched_tokens=256))
            for mode in ("off", "ngram")
        }

    def answer(self, prompts: list[list[int]], num_tokens: int, mode: str = "off") -> tuple[float, float]:
        """(seconds to the first token of the first, seconds to the end of all)."""
        engine = self.engines[mode]
        params = self.params(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        start, first = time.perf_counter(), 0.0
        for prompt in prompts:
            engine.add(engine.make_requests(prompt, params))
        while engine.has_work:
            deltas = engine.step()
            if deltas and not first:
                first = time.perf_counter() - start
        return first, time.perf_counter() - start

    def decode(self, prompt: list[int], num_tokens: int) -> float:
        first, total = self.answer([prompt], num_tokens)
        return (num_tokens - 1) / (total - first)

    def prefill(self, prompt: list[int]) -> float:
        return len(prompt) / self.answer([prompt], 1)[0]

    def shared(self, prompts: list[list[int]], num_tokens: int) -> float:
        return len(prompts) * num_tokens / self.answer(prompts, num_tokens)[1]

    def lookup(self, prompt: list[int], num_tokens: int) -> float:
        first, total = self.answer([prompt], num_tokens, "ngram")
        return (num_tokens - 1) / (total - first)


class LlamaCpp:
    """llama.cpp through llama-cpp-python; requests at once through its batch interface."""

    def __init__(self, model: str, threads: int) -> None:
        import llama_cpp
        import numpy as np
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        self.np, self.api, self.threads = np, llama_cpp, threads
        self.model = llama_cpp.Llama(
            model, n_ctx=2048, n_threads=threads, n_threads_batch=threads, n_batch=2048, n_ubatch=512, verbose=False
        )
        # Drafts are verified with the logits of every row, which must be asked for when the model is loaded.
        self.drafting = llama_cpp.Llama(
            model,
            n_ctx=2048,
            n_threads=threads,
            n_threads_batch=threads,
            logits_all=True,
            verbose=False,
            draft_model=LlamaPromptLookupDecoding(num_pred_tokens=8),
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_seq_max, params.kv_unified = 4096, 2048, 17, True
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model._model.model, params)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(2048, 0, 1)
        self.vocab = self.model.n_vocab()

    def decode(self, prompt: list[int], num_tokens: int) -> float:
        self.model.reset()
        self.model.eval(prompt)
        token = self._best()
        start = time.perf_counter()
        for _ in range(num_tokens - 1):
            self.model.eval([token])
            token = self._best()
        return (num_tokens - 1) / (time.perf_counter() - start)

    def prefill(self, prompt: list[int]) -> float:
        self.model.reset()
        start = time.perf_counter()
        self.model.eval(prompt)
        self._best()
        return len(prompt) / (time.perf_counter() - start)

    def shared(self, prompts: list[list[int]], num_tokens: int) -> float:
        api, prefix = self.api, self._common(prompts)
        api.llama_memory_clear(self.memory, True)
        start = time.perf_counter()
        self._run([(token, position, 0, False) for position, token in enumerate(prompts[0][:prefix])])
        for sequence in range(1, len(prompts)):
            api.llama_memory_seq_cp(self.memory, 0, sequence, 0, prefix)
        tokens = [0] * len(prompts)
        for sequence, prompt in enumerate(prompts):
            rest = [(token, prefix + i, sequence, False) for i, token in enumerate(prompt[prefix:])]
            rest[-1] = (*rest[-1][:3], True)
            tokens[sequence] = self._run(rest)[0]
        for step in range(num_tokens - 1):
            rows = [(tokens[i], len(prompts[i]) + step, i, True) for i in range(len(prompts))]
            tokens = self._run(rows)
        return len(prompts) * num_tokens / (time.perf_counter() - start)

    def lookup(self, prompt: list[int], num_tokens: int) -> float:
        self.drafting.reset()
        tokens, start = self.drafting.generate(prompt, temp=0.0, repeat_penalty=1.0), 0.0
        for produced, _ in enumerate(tokens, 1):
            if produced == 1:
                start = time.perf_counter()
            if produced == num_tokens:
                break
        return (num_tokens - 1) / (time.perf_counter() - start)

    def _best(self) -> int:
        logits = self.api.llama_get_logits(self.model._ctx.ctx)
        return int(self.np.ctypeslib.as_array(logits, shape=(self.vocab,)).argmax())

    def _common(self, prompts: list[list[int]]) -> int:
        return next(i for i, tokens in enumerate(zip(*prompts, strict=False)) if len(set(tokens)) > 1)

    def _run(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
        if self.api.llama_decode(self.context, batch):
            raise RuntimeError("llama_decode failed")
        best = []
        for i, row in enumerate(rows):
            if row[3]:
                logits = self.api.llama_get_logits_ith(self.context, i)
                best.append(int(self.np.ctypeslib.as_array(logits, shape=(self.vocab,)).argmax()))
        return best


class OpenVINO:
    """OpenVINO GenAI: its plain pipeline, its continuous batching with prefix cache, and its prompt look-up."""

    def __init__(self, model: str, threads: int) -> None:
        import numpy as np
        import openvino
        import openvino_genai

        self.np, self.tensor, self.api = np, openvino.Tensor, openvino_genai
        settings = {"INFERENCE_NUM_THREADS": threads}
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching, scheduler.cache_size = True, 1
        self.plain = openvino_genai.LLMPipeline(model, "CPU", **settings)
        self.batching = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", settings)
        self.looking_up = openvino_genai.LLMPipeline(model, "CPU", prompt_lookup=True, **settings)

    def decode(self, prompt: list[int], num_tokens: int) -> float:
        return self._per_token(self.plain, prompt, self._config(num_tokens))

    def prefill(self, prompt: list[int]) -> float:
        start = time.perf_counter()
        self.plain.generate(self._ids(prompt), self._config(1))
        return len(prompt) / (time.perf_counter() - start)

    def shared(self, prompts: list[list[int]], num_tokens: int) -> float:
        start = time.perf_counter()
        self.batching.generate([self._ids(prompt) for prompt in prompts], [self._config(num_tokens)] * len(prompts))
        return len(prompts) * num_tokens / (time.perf_counter() - start)

    def lookup(self, prompt: list[int], num_tokens: int) -> float:
        config = self._config(num_tokens)
        config.num_assistant_tokens, config.max_ngram_size = 8, 3
        return self._per_token(self.looking_up, prompt, config)

    def _per_token(self, pipeline: Any, prompt: list[int], config: Any) -> float:
        start = time.perf_counter()
        metrics = pipeline.generate(self._ids(prompt), config).perf_metrics
        total = time.perf_counter() - start
        return (config.max_new_tokens - 1) / (total - metrics.get_ttft().mean / 1000)

    def _ids(self, prompt: list[int]) -> Any:
        return self.tensor(self.np.array([prompt], dtype=self.np.int64))

    def _config(self, num_tokens: int) -> Any:
        config = self.api.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.ignore_eos = num_tokens, False, True
        return config


ENGINES = {"ragstone": Ragstone, "llama.cpp": LlamaCpp, "openvino": OpenVINO}


def main() -> None:
    """Load the engine, say so, then run tasks until the input ends."""
    name, model, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    start = time.perf_counter()
    engine = ENGINES[name](model, threads)
    print(json.dumps({"load_s": time.perf_counter() - start}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        method = getattr(engine, task.pop("task"))
        try:
            print(json.dumps({"value": method(**task)}), flush=True)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)


if __name__ == "__main__":
    main()
