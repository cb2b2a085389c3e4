"""Text to unit vectors: a sentence-transformers model in a local folder, or any LangChain `Embeddings`. No network.

Which folder a model's name stands for is decided elsewhere; this module takes the folder.
"""

import hashlib
import json
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import yaml
from langchain_core.embeddings import Embeddings
from tokenizers import Tokenizer

from retrieval.bert_encoder import BertEncoder
from retrieval.errors import EmbedderError, InvalidVectorError
from retrieval.openvino_encoder import OpenVinoEncoder

Vectors = npt.NDArray[np.float32]
INT8 = ":int8"
"""Behind the name of an embedding model: computed in 8 bits."""

_log = logging.getLogger(__name__)
# Of bert-base-uncased, which most English embedding models are made from.
_ENGLISH_BERT_VOCABULARY = 30522
_E5 = re.compile(r"(?<![a-z0-9])e5-")
_BGE_ENGLISH = re.compile(r"bge-(?:small|base|large)-en")
# Whoever has embedded so many texts will embed more, and seconds of compiling the model pay.
_MANY = 512
_EVERY_LANGUAGE = frozenset({"multilingual", "mul", "multi"})
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


class PassageEmbedder(Protocol):
    """What the store needs of an embedder. Vectors are float32 and of length one.

    `fingerprint` tells two sets of vectors apart that must not be mixed; `name` is for people. `max_tokens` is how
    much text one vector can stand for, in what `count_tokens` counts. `languages` are the ISO 639 codes of those that
    the model was trained on, None where that is every one, or unknown: in others its vectors say little.
    """

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def dimension(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def languages(self) -> frozenset[str] | None: ...
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

    With `int8`, a plain BERT encoder computes in 8 bits, on a CPU: sooner, with vectors that are a little different (so
    it is another model to a store). benchmarks/embedding.py prints what that loses.

    Raises EmbedderError when the folder is not such a model.
    """

    def __init__(self, model_path: Path, *, device: str = "auto", batch_size: int = 32, int8: bool = False) -> None:
        self._path = Path(model_path)
        self._device = "cpu" if int8 else device
        self._int8 = int8
        self._batch_size = batch_size
        self._model: Encoder | None = None
        self._compiled: Encoder | None = None
        self._num_embedded = 0
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
        self._query_prefix, self._passage_prefix = _prefixes(
            self._read_json("config_sentence_transformers.json", {}).get("prompts") or {},
            f"{self._path.resolve().name} {config.get('_name_or_path', '')}".lower(),
        )
        self._num_added = len(self._tokenizer.encode(self._passage_prefix).ids)
        self._queries = _Gathered(lambda texts: self._embed(texts, self._query_prefix))
        self._fingerprint: str | None = None

    @property
    def name(self) -> str:
        """The folder's name, with `INT8` behind it where it computes in 8 bits."""
        return self._path.resolve().name + (INT8 if self._int8 else "")

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def max_tokens(self) -> int:
        """How many tokens of a text the model reads, its prefix and special tokens not counted."""
        return self._window - self._num_added

    @cached_property
    def languages(self) -> frozenset[str] | None:
        """The languages that the model's card names, or English where its vocabulary is that of the English BERT."""
        named = _languages_of_card(self._path / "README.md")
        if not named and self._tokenizer.get_vocab_size() == _ENGLISH_BERT_VOCABULARY:
            return frozenset({"en"})
        return named if named and not named & _EVERY_LANGUAGE else None

    @property
    def fingerprint(self) -> str:
        """SHA-256 over weights, pooling and prefixes: the same for a copy of the folder under another name."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            for path in (*self._weight_files(), self._path / "modules.json", self._path / "1_Pooling" / "config.json"):
                if path.is_file():
                    with path.open("rb") as file:
                        digest.update(hashlib.file_digest(file, "sha256").digest())
            if self._query_prefix or self._passage_prefix:
                digest.update(json.dumps([self._query_prefix, self._passage_prefix]).encode())
            if self._int8:
                digest.update(INT8.encode())
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
        return self._embed(texts, self._passage_prefix)

    def embed_query(self, text: str) -> Vectors:
        """The vector [dimension] of one query. Queries that come while the model is at work are embedded together."""
        return self._queries.embed(text)

    def _embed(self, texts: Sequence[str], prefix: str) -> Vectors:
        if not texts:
            return np.zeros((0, self._dimension), dtype=np.float32)
        cleaned = [prefix + encodable(text) for text in texts]
        with self._lock:
            model = self._loaded()
            self._num_embedded += len(texts)
            if self._num_embedded >= _MANY and len(texts) > 1:
                model = self._for_many(model)
            vectors = model.encode(cleaned, self._batch_size)
        return unit_vectors(vectors, self._dimension)

    def as_langchain(self) -> Embeddings:
        """The same embedder as a LangChain `Embeddings`."""
        return LangChainView(self)

    def _loaded(self) -> Encoder:
        if self._model is None:
            try:
                model = BertEncoder.read(self._path, window=self._window, device=self._device)
            except Exception as error:  # broken weights or JSON: each library has its own kind
                raise EmbedderError(f"cannot load the embedding model in {self._path}: {error}") from error
            if self._int8:
                if model is None:
                    raise EmbedderError(
                        f"{self._path} is no plain BERT model, which 8 bits are for: leave out {INT8!r}"
                    )
                model.pack_int8()
            self._model = model or _SentenceTransformerEncoder(self._path, window=self._window, device=self._device)
            _log.info(
                "embedding model loaded: name=%s device=%s dimension=%d", self.name, self._model.device, self._dimension
            )
        return self._model

    def _for_many(self, model: Encoder) -> Encoder:
        """What embeds many texts soonest: the model compiled by OpenVINO, where that is installed, on a CPU."""
        if self._compiled is None:
            self._compiled = model
            if isinstance(model, BertEncoder) and model.device.type == "cpu" and not self._int8:
                try:
                    self._compiled = OpenVinoEncoder(model)
                    _log.info("embedding model compiled by OpenVINO: name=%s", self.name)
                except ImportError:
                    pass  # optional
                except RuntimeError as error:  # an operation or a CPU that it does not know
                    _log.warning("OpenVINO cannot compile the embedding model %s: %s", self.name, error)
        return self._compiled

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


class _Gathered:
    """Embeds single texts of many threads in batches: who gets the lock embeds all that wait, its own among them."""

    def __init__(self, embed: Callable[[Sequence[str]], Vectors]) -> None:
        self._embed = embed
        self._waiting: deque[tuple[str, Future[Vectors]]] = deque()
        self._at_work = threading.Lock()

    def embed(self, text: str) -> Vectors:
        own: Future[Vectors] = Future()
        self._waiting.append((text, own))
        with self._at_work:
            if not own.done():
                # Only the thread at work takes from the queue, so it can see how many there are.
                self._answer([self._waiting.popleft() for _ in range(len(self._waiting))])
        return own.result()

    def _answer(self, batch: Sequence[tuple[str, "Future[Vectors]"]]) -> None:
        try:
            vectors = self._embed([text for text, _ in batch])
        except BaseException as error:
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), vector in zip(batch, vectors, strict=True):
            future.set_result(vector)


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
            prompt="",  # the prefix stands in the text already
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
    def languages(self) -> frozenset[str] | None:
        """Unknown: LangChain's interface does not tell."""
        return None

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


def _languages_of_card(path: Path) -> frozenset[str]:
    """What the header of a model card names as its languages; empty where it names none."""
    try:
        header = path.read_text(encoding="utf-8", errors="replace").split("---", 2)
        named = yaml.safe_load(header[1]).get("language") if len(header) == 3 and not header[0].strip() else None
    except (OSError, yaml.YAMLError, AttributeError):
        return frozenset()
    codes = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    return frozenset(str(code).split("-")[0].lower() for code in codes)


def _prefixes(prompts: Mapping[str, str], names: str) -> tuple[str, str]:
    """What stands before a query and before a passage: as the model's folder says, else as its family is known to ask.

    Sources: the model cards of intfloat/e5 and BAAI/bge (the English v1.5 ones).
    """
    query = prompts.get("query", "")
    passage = prompts.get("passage") or prompts.get("document") or ""
    if query or passage:
        return query, passage
    if _E5.search(names) and "instruct" not in names:
        return "query: ", "passage: "
    if _BGE_ENGLISH.search(names):
        return "Represent this sentence for searching relevant passages: ", ""
    return "", ""


def encodable(text: str) -> str:
    """Lone surrogates would make the tokenizer raise; they mean nothing, so they become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
