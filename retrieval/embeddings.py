"""Text to unit vectors: a sentence-transformers model in a local folder, or any LangChain `Embeddings`. No network.

Which folder a model's name stands for is decided elsewhere; this module takes the folder.
"""

import hashlib
import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from langchain_core.embeddings import Embeddings
from tokenizers import Tokenizer

from retrieval.bert_encoder import BertEncoder
from retrieval.errors import EmbedderError, InvalidVectorError

Vectors = npt.NDArray[np.float32]

_log = logging.getLogger(__name__)
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


class PassageEmbedder(Protocol):
    """What the store needs of an embedder. Vectors are float32 and of length one.

    `fingerprint` tells two sets of vectors apart that must not be mixed; `name` is for people. `max_tokens` is how
    much text one vector can stand for, in what `count_tokens` counts.
    """

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def dimension(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    def count_tokens(self, text: str) -> int: ...
    def embed_passages(self, texts: Sequence[str]) -> Vectors: ...
    def embed_query(self, text: str) -> Vectors: ...


class Encoder(Protocol):
    """What runs a model: texts in, vectors [n, dimension] out, of any length."""

    @property
    def device(self) -> Any: ...
    def encode(self, texts: Sequence[str], batch_size: int) -> Vectors: ...


class Embedder:
    """A sentence-transformers model. Thread-safe. The weights are read at the first use, or by `load()`.

    Raises EmbedderError when the folder is not such a model.
    """

    def __init__(self, model_path: Path, *, device: str = "auto", batch_size: int = 32) -> None:
        self._path = Path(model_path)
        self._device = device
        self._batch_size = batch_size
        self._model: Encoder | None = None
        self._lock = threading.Lock()
        config = self._read_json("config.json")
        window = self._read_json("sentence_bert_config.json", {}).get("max_seq_length")
        pooling = self._read_json("1_Pooling/config.json", {})
        self._dimension = int(pooling.get("word_embedding_dimension") or config.get("hidden_size") or 0)
        self._window = int(window or config.get("max_position_embeddings") or 512)
        if self._dimension <= 0 or not self._weight_files():
            raise EmbedderError(
                f"{self._path} is not a sentence-transformers model with weights: give a folder with config.json, "
                "tokenizer.json and model.safetensors"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(self._path / "tokenizer.json"))
        except Exception as error:  # the library raises a bare Exception
            raise EmbedderError(f"cannot read {self._path / 'tokenizer.json'}: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._num_special = len(self._tokenizer.encode("").ids)
        self._fingerprint: str | None = None

    @property
    def name(self) -> str:
        """The folder's name."""
        return self._path.resolve().name

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def max_tokens(self) -> int:
        """How many tokens of a text the model reads, its special tokens not counted."""
        return self._window - self._num_special

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the weights and the pooling: the same for a copy of the folder under another name."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            for path in (*self._weight_files(), self._path / "modules.json", self._path / "1_Pooling" / "config.json"):
                if path.is_file():
                    with path.open("rb") as file:
                        digest.update(hashlib.file_digest(file, "sha256").digest())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def count_tokens(self, text: str) -> int:
        """Tokens of `text`, without the special ones that are added when it is embedded."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def load(self) -> None:
        """Reads the weights now (seconds) rather than at the first use."""
        with self._lock:
            self._loaded()

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Vectors [len(texts), dimension]. Texts longer than the window are cut to it."""
        if not texts:
            return np.zeros((0, self._dimension), dtype=np.float32)
        cleaned = [encodable(text) for text in texts]
        with self._lock:
            vectors = self._loaded().encode(cleaned, self._batch_size)
        return unit_vectors(vectors, self._dimension)

    def embed_query(self, text: str) -> Vectors:
        """The vector [dimension] of one query."""
        vector: Vectors = self.embed_passages([text])[0]
        return vector

    def as_langchain(self) -> Embeddings:
        """The same embedder as a LangChain `Embeddings`."""
        return LangChainView(self)

    def _loaded(self) -> Encoder:
        if self._model is None:
            try:
                model: Encoder | None = BertEncoder.read(self._path, window=self._window, device=self._device)
            except Exception as error:  # broken weights or JSON: each library has its own kind
                raise EmbedderError(f"cannot load the embedding model in {self._path}: {error}") from error
            self._model = model or _SentenceTransformerEncoder(self._path, window=self._window, device=self._device)
            _log.info(
                "embedding model loaded: name=%s device=%s dimension=%d", self.name, self._model.device, self._dimension
            )
        return self._model

    def _weight_files(self) -> list[Path]:
        return sorted(path for pattern in _WEIGHTS for path in self._path.glob(pattern))

    def _read_json(self, name: str, default: dict[str, Any] | None = None) -> dict[str, Any]:
        path = self._path / name
        if default is not None and not path.is_file():
            return default
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise EmbedderError(
                f"{self._path} is not a sentence-transformers model: cannot read {name} ({error})"
            ) from error
        return content


class _SentenceTransformerEncoder:
    """Any sentence-transformers model, through the library."""

    def __init__(self, folder: Path, *, window: int, device: str) -> None:
        # Seconds of imports: paid only where a model needs it.
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging as progress

        shows_progress = progress.is_progress_bar_enabled()
        progress.disable_progress_bar()  # a bar for 100 ms of reading, in the middle of the log
        try:
            model = SentenceTransformer(
                str(folder),
                device=None if device == "auto" else device,
                local_files_only=True,
                model_kwargs={"dtype": "float32"},
            )
        except Exception as error:
            raise EmbedderError(f"cannot load the embedding model in {folder}: {error}") from error
        finally:
            if shows_progress:
                progress.enable_progress_bar()
        model.max_seq_length = window
        self._model = model.eval()

    @property
    def device(self) -> Any:
        return self._model.device

    def encode(self, texts: Sequence[str], batch_size: int) -> Vectors:
        # The library sorts by length itself, so that a batch holds texts of like length and little padding.
        vectors: Vectors = self._model.encode(
            list(texts),
            batch_size=batch_size,
            convert_to_numpy=True,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        return vectors


class LangChainEmbedder:
    """Any LangChain `Embeddings` as an embedder of the store. Its vectors are scaled to length one.

    `name` should say which model it is: it is what the store goes by when it is opened again.
    """

    def __init__(self, embeddings: Embeddings, name: str | None = None) -> None:
        self.embeddings = embeddings
        model = getattr(embeddings, "model", None) or getattr(embeddings, "model_name", None)
        self._name = name or ":".join(
            filter(None, (type(embeddings).__name__, model if isinstance(model, str) else None))
        )
        self._dimension = len(embeddings.embed_query("dimension"))

    @property
    def name(self) -> str:
        return self._name

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(f"langchain:{self._name}:{self._dimension}".encode()).hexdigest()

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def max_tokens(self) -> int:
        """What common models take at the least; LangChain's interface does not tell."""
        return 512

    def count_tokens(self, text: str) -> int:
        """An upper estimate: a token for every three bytes."""
        return len(text.encode("utf-8", "replace")) // 3 + 1

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        return unit_vectors(self.embeddings.embed_documents(list(texts)), self._dimension)

    def embed_query(self, text: str) -> Vectors:
        vector: Vectors = unit_vectors([self.embeddings.embed_query(text)], self._dimension)[0]
        return vector


class LangChainView(Embeddings):
    """An embedder of the store as a LangChain `Embeddings`."""

    def __init__(self, embedder: PassageEmbedder) -> None:
        self._embedder = embedder

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self._embedder.embed_passages(texts).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        vector: list[float] = self._embedder.embed_query(text).tolist()
        return vector


def unit_vectors(vectors: npt.ArrayLike, dimension: int) -> Vectors:
    """`vectors` [n, dimension] as float32 rows of length one (a zero row stays zero).

    Raises InvalidVectorError for another dimension, NaN or infinity.
    """
    rows = np.asarray(vectors, dtype=np.float32)
    rows = rows.reshape(0, dimension) if rows.size == 0 else rows
    check_vectors(rows, dimension)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.ascontiguousarray(rows / np.where(lengths > 0, lengths, 1), dtype=np.float32)


def check_vectors(vectors: Vectors, dimension: int) -> None:
    """Raises InvalidVectorError unless `vectors` is [n, dimension] with finite values only."""
    if vectors.ndim != 2 or vectors.shape[1] != dimension:
        raise InvalidVectorError(
            f"vectors have shape {list(vectors.shape)}; this index takes [n, {dimension}]: "
            "use the embedding model that the store was made with"
        )
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if bad.size:
        raise InvalidVectorError(
            f"vector {int(bad[0])} holds NaN or infinity ({bad.size} of {len(vectors)} do): "
            "the embedding model is broken or its input is not text"
        )


def encodable(text: str) -> str:
    """Lone surrogates would make the tokenizer raise; they mean nothing, so they become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
