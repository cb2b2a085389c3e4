"""A plain BERT encoder with mean or first-token pooling, as MiniLM, BGE, E5 and GTE models are, in torch alone.

sentence-transformers runs the same models; importing it takes ten seconds of a slow laptop's time, which every start
would pay before its first answer. What this module does not recognise is left to it (`retrieval/embeddings.py`
decides), and tests hold the two to the same vectors. Sources: Devlin et al., "BERT" (2019); Reimers & Gurevych,
"Sentence-BERT" (2019).
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import embedding, gelu, layer_norm, linear, scaled_dot_product_attention

# What a folder may say for this module to take it; anything else is for sentence-transformers.
_PLAIN = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
_MODULES = ("Transformer", "Pooling", "Normalize")

_CPU_BATCH_TOKENS = 1024

Pooled = Callable[[Tensor, Tensor], Tensor]
"""Padded ids [texts, tokens] and lengths [texts] to vectors [texts, hidden]."""


class BertEncoder:
    """Texts to pooled vectors. Not thread-safe by itself; `Embedder` holds a lock."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        config: Mapping[str, Any],
        tokenizer: Tokenizer,
        *,
        window: int,
        pools_first_token: bool,
        device: torch.device,
    ) -> None:
        self._tensors = {name.removeprefix("bert."): tensor.float().to(device) for name, tensor in tensors.items()}
        self._num_layers = int(config["num_hidden_layers"])
        self._num_heads = int(config["num_attention_heads"])
        self._eps = float(config.get("layer_norm_eps", 1e-12))
        self._tokenizer = tokenizer
        self._tokenizer.enable_truncation(window)
        self._pad_id = int(config.get("pad_token_id") or 0)
        self._pools_first_token = pools_first_token
        self._device = device
        self._packed: dict[str, Any] = {}

    @property
    def device(self) -> torch.device:
        return self._device

    @classmethod
    def read(cls, folder: Path, *, window: int, device: str) -> Self | None:
        """The encoder in a sentence-transformers folder, or None where it is not a plain BERT one."""
        config, pooling = _read_json(folder / "config.json"), _read_json(folder / "1_Pooling" / "config.json")
        weights = folder / "model.safetensors"
        plain = (
            all(config.get(key, value) == value for key, value in _PLAIN.items())
            and "model_type" in config
            and _module_kinds(folder) in (_MODULES[:2], _MODULES)
            and weights.is_file()
        )
        modes = [mode for mode, on in pooling.items() if mode.startswith("pooling_mode_") and on is True]
        if not plain or modes not in (["pooling_mode_mean_tokens"], ["pooling_mode_cls_token"]):
            return None
        where = "cuda" if device == "auto" and torch.cuda.is_available() else "cpu" if device == "auto" else device
        return cls(
            load_file(weights),
            config,
            Tokenizer.from_file(str(folder / "tokenizer.json")),
            window=window,
            pools_first_token=modes == ["pooling_mode_cls_token"],
            device=torch.device(where),
        )

    @torch.inference_mode()
    def encode(
        self, texts: Sequence[str], batch_size: int, pooled: Pooled | None = None, at_once: int = 1
    ) -> npt.NDArray[np.float32]:
        """Pooled vectors [len(texts), hidden], not scaled. Texts beyond the window are cut to it.

        `pooled` computes the vectors of one batch in place of the method of that name; it may be called by as many
        threads as `at_once` says.
        """
        pooled = pooled or self.pooled
        self._tokenizer.no_padding()
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        # Texts of like length stand together, so that a batch holds little padding.
        order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
        batches = list(self._batches(order, [len(row) for row in ids], batch_size, at_once))

        def rows_of(chosen: list[int]) -> npt.NDArray[np.float32]:
            rows: npt.NDArray[np.float32] = pooled(*self._padded([ids[index] for index in chosen])).cpu().numpy()
            return rows

        if at_once == 1 or len(batches) == 1:  # a question needs no threads
            found = [rows_of(chosen) for chosen in batches]
        else:
            with ThreadPoolExecutor(at_once) as threads:
                found = list(threads.map(rows_of, batches))
        vectors = np.zeros((len(ids), found[0].shape[1]), dtype=np.float32)
        for chosen, rows in zip(batches, found, strict=True):
            vectors[chosen] = rows
        return vectors

    def _batches(
        self, order: Sequence[int], lengths: Sequence[int], batch_size: int, at_once: int
    ) -> Iterator[list[int]]:
        """Cuts `order` (shortest first) into batches; on a CPU so small that what a layer makes stays in its cache.

        Few texts are cut into as many batches as are computed at once, so that no thread idles.
        """
        most = min(_CPU_BATCH_TOKENS, -(-sum(lengths) // at_once))
        batch: list[int] = []
        for index in order:
            full = self._device.type == "cpu" and lengths[index] * (len(batch) + 1) > most
            if batch and (full or len(batch) == batch_size):
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def _padded(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Token ids [texts, tokens], padded, and their numbers [texts]."""
        width = max(len(row) for row in ids)
        padded = torch.tensor([[*row, *([self._pad_id] * (width - len(row)))] for row in ids], device=self._device)
        return padded, torch.tensor([len(row) for row in ids], device=self._device)

    def pooled(self, ids: Tensor, lengths: Tensor, *, masked: bool | None = None) -> Tensor:
        """The vectors [texts, hidden] of padded ids [texts, tokens] with `lengths` [texts] real tokens.

        `masked` says whether padding has to be hidden; it is looked for where that is not said.
        """
        real = torch.arange(ids.shape[1], device=self._device)[None] < lengths[:, None]
        masked = not bool(real.all()) if masked is None else masked
        hidden = self._hidden(ids, real[:, None, None, :] if masked else None)
        if self._pools_first_token:
            return hidden[:, 0]
        return (hidden * real[..., None]).sum(1) / lengths[:, None]

    def _hidden(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """ids: [texts, tokens]; mask: [texts, 1, 1, tokens] bool, keys to see; returns [texts, tokens, hidden]."""
        weights = self._tensors
        hidden = embedding(ids, weights["embeddings.word_embeddings.weight"])
        hidden = hidden + weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        hidden = self._norm(hidden + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in range(self._num_layers):
            prefix = f"encoder.layer.{layer}."
            q, k, v = (self._heads(hidden, f"{prefix}attention.self.{part}") for part in ("query", "key", "value"))
            attended = scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
            attended = self._linear(attended, prefix + "attention.output.dense")
            hidden = self._norm(attended + hidden, prefix + "attention.output.LayerNorm")
            inner = gelu(self._linear(hidden, prefix + "intermediate.dense"))
            hidden = self._norm(self._linear(inner, prefix + "output.dense") + hidden, prefix + "output.LayerNorm")
        return hidden

    def _heads(self, hidden: Tensor, name: str) -> Tensor:
        texts, tokens, _ = hidden.shape
        return self._linear(hidden, name).view(texts, tokens, self._num_heads, -1).transpose(1, 2)

    def pack_int8(self) -> None:
        """From now on products are of 8-bit weights, one scale a row, and of inputs rounded to 8 bits. CPU only."""
        for key, weight in self._tensors.items():
            if not key.startswith("encoder.layer.") or weight.dim() != 2:
                continue
            scales = weight.abs().amax(1).clamp(min=1e-12) / 127
            zeros = torch.zeros(len(weight), dtype=torch.long)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of an end of these functions that no version has yet
                codes = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
            name = key.removesuffix(".weight")
            self._packed[name] = torch.ops.quantized.linear_prepack(codes, self._tensors[name + ".bias"])

    def _linear(self, x: Tensor, name: str) -> Tensor:
        if self._packed:
            product: Tensor = torch.ops.quantized.linear_dynamic(x, self._packed[name])
            return product
        return linear(x, self._tensors[name + ".weight"], self._tensors[name + ".bias"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight = self._tensors[name + ".weight"]
        return layer_norm(x, weight.shape, weight, self._tensors[name + ".bias"], self._eps)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def _module_kinds(folder: Path) -> tuple[str, ...]:
    path = folder / "modules.json"
    if not path.is_file():
        return ()
    modules = json.loads(path.read_text(encoding="utf-8"))
    return tuple(str(module["type"]).rsplit(".", 1)[-1] for module in sorted(modules, key=lambda each: each["idx"]))
