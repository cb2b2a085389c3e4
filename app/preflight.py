"""What is checked and set before anything heavy is loaded: ports, the data folder, the environment of this process.

Starting the server is `app.serve`; this module starts nothing and imports neither torch nor FastAPI.
"""

import contextlib
import errno
import fcntl
import importlib.metadata
import ipaddress
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import IO, Any

from app.errors import DataFolderError, PortInUseError, StartupError
from app.settings import Settings

# What the servers of other parts listen on, and how a person moves them: (what, setting).
API = ("the API", "port")
CHAT_UI = ("the chat UI", "ui_port")
# Settings by which a running server is found.
ADDRESS = ("host", "port", "ui_port")


def bind_port(settings: Settings, purpose: tuple[str, str]) -> socket.socket:
    """A socket bound to the address that `purpose` (API or CHAT_UI) is to listen on.

    Bound and kept, not only looked at: between a look and the real bind another program could take the port. Raises
    PortInUseError or StartupError.
    """
    what, setting = purpose
    host, port = settings.host, getattr(settings, setting)
    change = f"choose another with --{setting.replace('_', '-')} or RAGSTONE_{setting.upper()}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise StartupError(
            f"host {host!r} is not an address: {error.strerror}: give a name or address of this machine with --host or "
            "RAGSTONE_HOST, such as 127.0.0.1 (this machine only) or 0.0.0.0 (everybody who can reach it)"
        ) from None
    listener = socket.socket(family, kind, protocol)
    # A server that stopped a moment ago leaves connections in TIME_WAIT; they are no reason to refuse. (A socket that
    # still listens is one, in spite of this option.)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port {port} on {host}, which {what} needs, is in use by another program: stop that program, "
                f"or {change}",
                port=port,
            ) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise StartupError(
                f"host {host!r} is not an address of this machine: give another with --host or RAGSTONE_HOST, such as "
                "127.0.0.1"
            ) from None
        raise StartupError(
            f"port {port} on {host}, which {what} needs, cannot be opened ({error.strerror}): {change}; ports below "
            "1024 need rights that this user may lack"
        ) from None
    return listener


def reserve_ports(settings: Settings) -> socket.socket:
    """The bound socket of the API, after checking that the UI's port is free too."""
    if settings.ui and settings.port == settings.ui_port:
        raise PortInUseError(
            f"the API and the chat UI cannot both have port {settings.port}: choose another for one of them with "
            "--port (RAGSTONE_PORT) or --ui-port (RAGSTONE_UI_PORT)",
            port=settings.port,
        )
    listener = bind_port(settings, API)
    if settings.ui:
        try:
            bind_port(settings, CHAT_UI).close()
        except StartupError:
            listener.close()
            raise
    return listener


def bind_socket(path: Path) -> socket.socket:
    """A Unix socket at `path` that only this user can open. What a killed process has left there gives way.

    Raises StartupError.
    """
    with contextlib.ExitStack() as on_error:
        listener = on_error.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            if path.is_socket():
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                    if probe.connect_ex(str(path)) == 0:
                        raise StartupError(f"another program listens at {path}: stop it, or give another --socket")
                path.unlink()
            listener.bind(str(path))
            path.chmod(0o600)
        except OSError as error:  # "AF_UNIX path too long" has no strerror
            raise StartupError(
                f"no socket can be made at {path} ({error.strerror or error}): give with --socket a short path that is "
                "not taken, in a folder that you may write to"
            ) from None
        on_error.pop_all()
    return listener


def take_data_folder(settings: Settings) -> IO[str]:
    """Make the data folder, prove that it can be written and has space, and lock it against a second server.

    The lock is held as long as the returned file is open, and the kernel frees it if this process is killed. Raises
    DataFolderError saying where and what is wrong.
    """
    check_data_folder(settings)
    lock = (settings.data_dir / "server.lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = _written(lock).get("process", "unknown")
        lock.close()
        raise DataFolderError(
            f"the data folder {settings.data_dir} is in use by another server (process {holder}): stop that one, or "
            "choose another folder with --data or RAGSTONE_DATA",
            folder=settings.data_dir,
        ) from None
    lock.truncate(0)
    address = {name: getattr(settings, name) for name in ADDRESS}
    lock.write(json.dumps({"process": os.getpid(), **address}))
    lock.flush()
    return lock


def running_address(data_dir: Path) -> dict[str, Any]:
    """`host`, `port` and `ui_port` of the server that uses this data folder; empty where none does."""
    try:
        lock = (data_dir / "server.lock").open("r", encoding="utf-8")
    except OSError:
        return {}
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            found = _written(lock)
            return {name: found[name] for name in ADDRESS if name in found}
    return {}  # nobody holds it: what it says is of a server that has ended


def _written(lock: IO[str]) -> dict[str, Any]:
    """What the holder of a lock says of itself; empty while it has not said it yet."""
    lock.seek(0)
    with contextlib.suppress(ValueError):
        found = json.loads(lock.read())
        if isinstance(found, dict):
            return found
    return {}


def check_data_folder(settings: Settings) -> None:
    """Make the data folder and prove that it can be written and has space. Raises DataFolderError saying where."""
    folder = settings.data_dir
    change = "or choose another folder with --data or RAGSTONE_DATA"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0" * 4096)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.ENOSPC:
            raise DataFolderError(
                f"no space is left in the data folder {folder}: free some space on its disk, {change}", folder=folder
            ) from None
        raise DataFolderError(
            f"the data folder {folder} cannot be written ({reason}): give this user the right to write there, {change}",
            folder=folder,
        ) from None
    if free < settings.min_free_bytes:
        raise DataFolderError(
            f"the data folder {folder} has {free >> 20:,} MiB of disk space left, and it wants "
            f"{settings.min_free_bytes >> 20:,} MiB: free some space, {change} (the limit is the setting "
            "min_free_bytes)",
            folder=folder,
        )


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach what listens there."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(entry[4][0]).is_loopback for entry in found)


def keys_required(settings: Settings) -> bool:
    """Whether requests need a key: as the setting says, else wherever more than this machine can reach the server."""
    if settings.api_keys == "auto":
        return not is_loopback(settings.publish or settings.host)
    return settings.api_keys == "on"


def check_keys(settings: Settings) -> str | None:
    """Raises StartupError where keys are asked for and there is none; a warning where they are off for everybody."""
    if not keys_required(settings):
        if is_loopback(settings.publish or settings.host):
            return None
        where = settings.publish or settings.host
        return f"api_keys is off: whoever can reach {where} can read and change everything here"
    from app.api_keys import KeyStore

    with contextlib.closing(KeyStore(settings.keys_path)) as keys:
        if keys.has_active():
            return None
    where = settings.publish or settings.host
    raise StartupError(
        f"others can reach {where}, and there is no API key yet: make one with `ragstone keys create NAME --data "
        f"{settings.data_dir}`, or listen on this machine only with --host 127.0.0.1 (RAGSTONE_HOST). "
        "In a container whose port only its host can reach, set RAGSTONE_PUBLISH=127.0.0.1; behind something that "
        "checks who asks, set RAGSTONE_API_KEYS=off"
        if settings.api_keys == "auto"
        else "api_keys is on, and there is no API key yet: make one with `ragstone keys create NAME --data "
        f"{settings.data_dir}`"
    )


def shadowing_distribution() -> str | None:
    """A warning if the Hugging Face distribution `kernels` is installed here: its module has the same name as ours.

    Whichever of the two comes first on the path hides the other, so transformers would find our `kernels` or we its.
    """
    try:
        version = importlib.metadata.version("kernels")
    except importlib.metadata.PackageNotFoundError:
        return None
    return (
        f"the distribution `kernels` {version} is installed in this environment; this project's own folder `kernels` "
        f"has the same name, and one hides the other. Remove it with: {sys.executable} -m pip uninstall -y kernels"
    )


def usable_cpus() -> int:
    """CPUs that this process may use: its affinity, cut to the quota of its control group (a container's limit)."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        if quota != "max":
            cpus = min(cpus, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no control groups of the second kind here
    return cpus


def set_process_environment(settings: Settings, environment: MutableMapping[str, str] = os.environ) -> None:
    """Defaults for the libraries of this process and its children; what a person has set stays as it is.

    Must run before torch is imported: its OpenMP runtime reads its variables once, when it is loaded.
    """
    data = settings.data_dir
    # A login by `hf auth login` lies in the user's own folder, which HF_HOME would hide.
    token = Path(environment.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "token"
    defaults = {
        # torch counts the machine's cores and does not see a container's quota; threads beyond it wait for each other.
        "OMP_NUM_THREADS": str(usable_cpus()),
        # The engine's thread and the embedder's each have a pool. By default an idle pool spins between two products
        # and takes the CPU from the other: on 2 cores, 210 products of a 576 x 1536 layer took 177 to 208 ms beside
        # another busy pool, with PASSIVE 110 to 127 ms; alone both took 112 to 153 ms.
        "OMP_WAIT_POLICY": "PASSIVE",
        # Everything that is written goes below the data folder ...
        "TMPDIR": str(data / "tmp"),
        "HF_HOME": str(data / "cache" / "huggingface"),
        "HF_TOKEN_PATH": str(token),
        "TRITON_CACHE_DIR": str(data / "cache" / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(data / "cache" / "torchinductor"),
        "GRADIO_TEMP_DIR": str(settings.ui_dir / "tmp"),
        # ... and nothing is told to anybody.
        "GRADIO_ANALYTICS_ENABLED": "False",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    for name, value in defaults.items():
        if not environment.get(name):
            environment[name] = value
    for name in ("TMPDIR", "GRADIO_TEMP_DIR"):
        Path(environment[name]).mkdir(parents=True, exist_ok=True)
