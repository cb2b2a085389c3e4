"""What the settings say of models and of the way to them: `[[models]]`, `[[routes]]`, and whether they go together.

Nothing is loaded and nobody is asked here.
"""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

Use = Literal["generate", "answer"]
BOTH_USES: tuple[Use, ...] = ("generate", "answer")

# Fields of an entry that say something of a model that runs here, or of one behind a URL, only. The first are settings
# too, and an entry's hold for its model.
ENGINE_FIELDS = ("device", "dtype", "max_model_len", "kv_memory_bytes", "num_kv_blocks", "max_num_seqs")
LOCAL_FIELDS = (*(name for name in ENGINE_FIELDS if name != "max_model_len"), "load", "idle_s", "overloaded_at")
REMOTE_FIELDS = ("key_env", "timeout_s", "extra_fields", "num_parameters", "private")


class ModelEntry(BaseModel):
    """A chat model: one that runs in the engine here or, with `url`, one of an OpenAI-compatible server."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    name: str = Field(min_length=1, description="Its name on /v1.")
    model: str = Field("", description="What it is: as the setting `model`, or its name at `url` (default: `name`).")
    uses: tuple[Use, ...] = Field(BOTH_USES, min_length=1)
    fallback: tuple[str, ...] = Field((), description="Models that are asked, in order, where it cannot answer.")
    max_model_len: int | None = Field(None, ge=16)
    price_per_million_prompt_tokens: float | None = Field(None, ge=0.0)
    price_per_million_output_tokens: float | None = Field(None, ge=0.0)

    load: Literal["always", "on_demand"] = "always"
    idle_s: float = Field(600.0, gt=0)
    overloaded_at: int | None = Field(None, ge=1)
    device: str | None = Field(None, pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8", "int4"] | None = None
    kv_memory_bytes: int | None = Field(None, ge=1 << 20)
    num_kv_blocks: int | None = Field(None, ge=2)
    max_num_seqs: int | None = Field(None, ge=1, le=1024)

    url: str | None = Field(None, pattern=r"^https?://[^/]")
    key_env: str | None = Field(None, min_length=1)
    timeout_s: float = Field(60.0, gt=0)
    extra_fields: tuple[str, ...] = ()
    num_parameters: int | None = Field(None, ge=1)
    private: bool | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> "ModelEntry":
        foreign, kind = (LOCAL_FIELDS, "run here") if self.url else (REMOTE_FIELDS, "have a url")
        for name in foreign:
            if name in self.model_fields_set:
                raise ValueError(f"{name} is for models that {kind}: leave it out of {self.name!r}")
        return self

    @property
    def source(self) -> str:
        """What is loaded, or asked for at `url`."""
        return self.model or self.name

    @property
    def takes_private(self) -> bool:
        """Whether it may be shown what must not leave this machine."""
        return self.url is None or (is_here(self.url) if self.private is None else self.private)

    @property
    def engine_settings(self) -> dict[str, Any]:
        """Settings of the engine that hold for this model only."""
        given = {name: getattr(self, name) for name in ENGINE_FIELDS}
        return {name: value for name, value in given.items() if value is not None}


class RouteRule(BaseModel):
    """Requests that go to `model`: those for which all conditions that are given hold."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: str = Field(min_length=1)
    min_prompt_tokens: int | None = Field(None, ge=0)
    max_prompt_tokens: int | None = Field(None, ge=0)
    min_complexity: float | None = Field(None, ge=0.0, le=1.0)
    max_complexity: float | None = Field(None, ge=0.0, le=1.0)
    collections: tuple[str, ...] | None = Field(None, min_length=1)
    private: bool | None = None


def is_here(url: str) -> bool:
    """Whether a URL is of this machine, by its host's name alone."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def faults_of(entries: Mapping[str, ModelEntry], rules: Sequence[RouteRule], reserved: Sequence[str]) -> Iterator[str]:
    """Why these cannot be served, one sentence each; nothing where they can. `reserved` are names of other models."""
    names = ", ".join(entries)
    for entry in entries.values():
        if entry.name in reserved:
            yield f"models: the name {entry.name!r} is taken by another model of this server: choose another"
        for other in entry.fallback:
            if other not in entries or other == entry.name:
                yield f"models: {entry.name!r} falls back to {other!r}; it may to the others of {names}"
    for number, rule in enumerate(rules, 1):
        if rule.model not in entries:
            yield f"routes: rule {number} names the model {rule.model!r}; there are {names}"
        elif rule.private:
            yield from _leaks(f"routes: rule {number} is for private requests", entries, rule.model)
    for use in BOTH_USES:
        if not any(use in entry.uses for entry in entries.values()):
            yield f"models: none of {names} may {use}: put {use!r} into the uses of one"


def _leaks(what: str, entries: Mapping[str, ModelEntry], name: str) -> Iterator[str]:
    for reached in (name, *entries[name].fallback):
        entry = entries.get(reached)
        if entry is not None and not entry.takes_private:
            way = "" if reached == name else f", by falling back from {name!r}"
            yield (
                f"{what}, and can reach {reached!r} at {entry.url}{way}, which is not on this machine: name a model "
                f"that runs here, or say private = true in the entry of {reached!r} if that server is yours"
            )
