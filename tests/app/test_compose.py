"""compose.yaml, Dockerfile and their health checks, as far as they can be checked without a container engine.

The services that are ours, and Redis, are also run as the file says, as plain processes on this machine.
"""

import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import yaml

from app.settings import OTHER_VARIABLES, Settings
from tests.app.serving import question, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]

TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
DURATION = {"type": "string", "pattern": r"^(\d+(h|m|s|ms))+$"}
SERVICE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["image", "healthcheck", "volumes", "restart"],
    "properties": {
        "image": {"type": "string", "pattern": r"^[a-z0-9._/-]+:[\w.-]+$"},
        "build": {
            "type": "object",
            "additionalProperties": False,
            "required": ["context"],
            "properties": {
                "context": {"type": "string"},
                "args": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        },
        "env_file": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["path"],
                "properties": {"path": {"type": "string"}, "required": {"type": "boolean"}},
            },
        },
        "init": {"type": "boolean"},
        "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
        "cap_drop": TEXTS,
        "security_opt": TEXTS,
        "command": TEXTS,
        # Text only: YAML would make a number or boolean of an unquoted value, and compose refuses booleans.
        "environment": {
            "type": "object",
            "propertyNames": {"pattern": "^[A-Z][A-Z0-9_]*$"},
            "additionalProperties": {"type": "string"},
        },
        "volumes": {
            "type": "array",
            "items": {"type": "string", "pattern": r"^([a-z-]+:/[\w/]+|\./[\w/.-]+:/[\w/.-]+:ro)$"},
        },
        "profiles": TEXTS,
        "networks": {"type": "object"},
        "deploy": {"type": "object", "additionalProperties": False, "properties": {"resources": {"type": "object"}}},
        "ports": {"type": "array", "items": {"type": "string", "pattern": r"^\S+:\S+:\d+$"}},
        "healthcheck": {
            "type": "object",
            "additionalProperties": False,
            "required": ["test", "interval", "timeout", "retries", "start_period"],
            "properties": {
                "test": {"type": "array", "items": {"type": "string"}, "prefixItems": [{"enum": ["CMD", "CMD-SHELL"]}]},
                "interval": DURATION,
                "timeout": DURATION,
                "start_period": DURATION,
                "start_interval": DURATION,
                "retries": {"type": "integer", "minimum": 1},
            },
        },
        "depends_on": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "required": ["condition"],
                "properties": {
                    "condition": {"enum": ["service_started", "service_healthy", "service_completed_successfully"]}
                },
            },
        },
        "stop_grace_period": DURATION,
    },
}
COMPOSE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "services", "volumes"],
    "patternProperties": {"^x-": {}},
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"},
        "services": {"type": "object", "additionalProperties": SERVICE},
        "volumes": {"type": "object", "additionalProperties": {"type": ["object", "null"]}},
    },
}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((REPOSITORY / "compose.yaml").read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")


def test_compose_file_follows_the_schema(compose: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(COMPOSE).validate(compose)
    started = {name for name, service in compose["services"].items() if "profiles" not in service}
    assert started == {"api", "ui"}  # what `docker compose up` starts
    assert set(compose["services"]) - started == {
        "engine", "engine-gpu", "redis", "postgres", "qdrant", "prometheus", "grafana",
    }  # fmt: skip


def test_services_of_ours_run_one_image_and_volumes_are_declared(compose: dict[str, Any]) -> None:
    services = compose["services"].values()
    ours = {service["image"] for service in services if "build" in service}
    assert ours == {"ragstone:0.1.0", "ragstone:0.1.0-gpu"}
    mounted = [volume.split(":")[0] for service in services for volume in service["volumes"]]
    assert {name for name in mounted if not name.startswith(".")} == set(compose["volumes"])
    assert all((REPOSITORY / name).is_dir() for name in mounted if name.startswith("."))
    for service in services:
        assert service.get("cap_drop") == ["ALL"] or "build" not in service
        assert set(service.get("depends_on", {})) <= set(compose["services"])


def test_ui_reaches_the_api_by_the_services_name_and_port(compose: dict[str, Any]) -> None:
    command = compose["services"]["api"]["command"]
    assert command[:2] == ["ragstone", "serve"]
    port = command[command.index("--port") + 1]
    assert command[command.index("--host") + 1] == "0.0.0.0"
    assert compose["services"]["ui"]["environment"]["RAGSTONE_API_URL"] == f"http://api:{port}"
    assert compose["services"]["ui"]["command"] == ["python", "-m", "ui"]
    for name, inside in (("api", port), ("ui", compose["services"]["ui"]["environment"]["RAGSTONE_UI_PORT"])):
        assert [entry.rsplit(":", 1)[1] for entry in compose["services"][name]["ports"]] == [inside]


def test_only_this_machine_can_reach_the_ports_unless_asked_otherwise(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert all(
            entry.startswith(("${RAGSTONE_PUBLISH:-127.0.0.1}:", "127.0.0.1:")) for entry in service.get("ports", ())
        )
    # Whether the API asks for keys follows from the same variable.
    assert compose["services"]["api"]["environment"]["RAGSTONE_PUBLISH"] == "${RAGSTONE_PUBLISH:-127.0.0.1}"


def test_every_variable_is_a_setting_and_its_default_is_ours(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for name, value in service.get("environment", {}).items():
            if not name.startswith("RAGSTONE_") or name in OTHER_VARIABLES:
                continue
            field = name.removeprefix("RAGSTONE_").lower()
            field = {"data": "data_dir"}.get(field, field)
            assert field in Settings.model_fields, name
            default = re.fullmatch(r"\$\{" + name + r":-(.*)\}", value)
            if default and field != "publish":  # a container's own address is no default
                assert default[1] == str(Settings.model_fields[field].default or ""), name


def test_every_setting_of_the_file_of_variables_reaches_what_it_is_for(compose: dict[str, Any]) -> None:
    for name in ("api", "ui", "engine", "engine-gpu"):
        assert compose["services"][name]["env_file"] == [{"path": ".env", "required": False}]
    # What is meant for the API must not change the engine: it asks for no keys, and is itself the engine.
    fixed = compose["services"]["engine"]["environment"]
    assert (fixed["RAGSTONE_API_KEYS"], fixed["RAGSTONE_ENGINE_URL"]) == ("off", "")


@contextmanager
def answering(port: int, status: int, path: str) -> Iterator[None]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == path else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("service", "port", "path"),
    [("api", "8080", "/v1/health/ready"), ("ui", "7860", "/"), ("engine", "8000", "/v1/health/ready")],
)
def test_health_check_runs_and_tells_ready_from_starting_from_dead(
    compose: dict[str, Any], service: str, port: str, path: str
) -> None:
    kind, program, *arguments = compose["services"][service]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "python")
    elsewhere = free_port()  # 8080 and 7860 may be somebody's
    command = [sys.executable, *(argument.replace(f":{port}/", f":{elsewhere}/") for argument in arguments)]
    assert f":{elsewhere}/" in command[-1]

    def healthy() -> bool:
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0

    assert not healthy()
    with answering(elsewhere, 503, path):
        assert not healthy()
    with answering(elsewhere, 200, path):
        assert healthy()


def test_image_runs_as_an_ordinary_user_on_a_slim_base(dockerfile: str) -> None:
    stages = re.findall(r"^FROM (\S+)", dockerfile, flags=re.MULTILINE)
    assert stages == ["python:3.11-slim", "python:3.11-slim"]
    last_stage = dockerfile[dockerfile.rindex("FROM ") :]
    assert re.findall(r"^USER (\S+)", last_stage, flags=re.MULTILINE) == ["ragstone"]
    assert "apt-get" not in last_stage


def test_everything_the_image_copies_exists_and_reaches_the_build(dockerfile: str) -> None:
    allowed = [
        line.removeprefix("!")
        for line in (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    ]
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile, flags=re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert {"app", "engine", "kernels", "retrieval", "ui", "data", "pyproject.toml"} <= set(copied)
    for source in copied:
        assert (REPOSITORY / source).exists(), source
        assert any(Path(source).match(pattern) or source.startswith(f"{pattern}/") for pattern in allowed), source


def test_version_of_the_image_is_ours(compose: dict[str, Any]) -> None:
    from app import __version__

    assert compose["services"]["api"]["image"] == f"ragstone:{__version__}"


def test_prometheus_asks_the_api_by_its_services_name_and_port(compose: dict[str, Any]) -> None:
    scraped = yaml.safe_load((REPOSITORY / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = scraped["scrape_configs"]
    command = compose["services"]["api"]["command"]
    assert job["static_configs"] == [{"targets": [f"api:{command[command.index('--port') + 1]}"]}]
    sources = yaml.safe_load(
        (REPOSITORY / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text(encoding="utf-8")
    )
    assert sources["datasources"][0]["url"] == "http://prometheus:9090"


# ── the same services as plain processes ─────────────────────────────────────────────────────────────────────────────


class Topology:
    """Services of the compose file as processes: each under a free port, with its data in a folder of its own."""

    def __init__(self, compose: dict[str, Any], folder: Path, chosen: dict[str, str]) -> None:
        self._services, self._folder, self._chosen = compose["services"], folder, chosen
        self._ports = {("engine", "8000"): free_port(), ("api", "8080"): free_port(), ("ui", "7860"): free_port()}
        self._ports["redis", "6379"] = free_port()
        self._stack = ExitStack()

    def __enter__(self) -> "Topology":
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def url(self, service: str) -> str:
        """Where a service of ours answers."""
        (port,) = (mine for (name, _), mine in self._ports.items() if name == service)
        return f"http://127.0.0.1:{port}"

    def start(self, service: str) -> None:
        """Runs a service with its command and environment, and waits until its health check says that it is well."""
        entry = self._services[service]
        (inside,) = (port for name, port in self._ports if name == service)
        command = [self._here(word, service, inside) for word in entry["command"]]
        if service == "redis":
            command += ["--port", str(self._ports["redis", "6379"])]
        programs = {"python": sys.executable, "ragstone": str(Path(sys.executable).parent / "ragstone")}
        command[0] = programs.get(command[0], command[0])
        folder = self._folder / service
        folder.mkdir()
        given = {name: self._here(value, service, inside) for name, value in entry.get("environment", {}).items()}
        environment = {**os.environ, **given, "PYTHONPATH": str(REPOSITORY)} | (
            {"RAGSTONE_SAMPLE_KB": "false"} if service == "api" else {}
        )
        process = subprocess.Popen(command, env=environment, cwd=REPOSITORY if command[1] == "-m" else folder)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        _, *check = (self._here(word, service, inside) for word in entry["healthcheck"]["test"])
        check = [programs.get(check[0], check[0]), *check[1:]]
        if service == "redis":
            check[1:1] = ["-p", str(self._ports["redis", "6379"])]

        def is_well() -> bool:
            assert process.poll() is None, f"{service} ended"
            return subprocess.run(check, capture_output=True, timeout=60, check=False).returncode == 0

        wait_until(is_well, 300)

    def _here(self, text: str, service: str, inside: str) -> str:
        """A word of the file as it is on this machine: variables, names of services, ports and folders."""
        text = re.sub(r"\$\{(\w+):-(.*?)\}", lambda found: self._chosen.get(found[1], found[2]), text)
        for (name, port), mine in self._ports.items():
            text = text.replace(f"://{name}:{port}", f"://127.0.0.1:{mine}")
        text = text.replace(f"127.0.0.1:{inside}/", f"127.0.0.1:{self._ports[service, inside]}/")
        text = str(self._ports[service, inside]) if text == inside else text
        text = "127.0.0.1" if text == "0.0.0.0" else text
        return str(self._folder / service) if text == "/data" else text


@pytest.mark.slow
def test_the_services_run_as_the_file_says_as_plain_processes_and_answer(
    compose: dict[str, Any], chat_model_path: Path, embedding_model_path: Path, tmp_path: Path
) -> None:
    chosen = {"RAGSTONE_ENGINE_URL": "http://engine:8000", "RAGSTONE_MAX_TOKENS": "32"}
    has_redis = shutil.which("redis-server") is not None
    if has_redis:
        chosen["RAGSTONE_HISTORY_URL"] = "redis://redis:6379/0"
    with Topology(compose, tmp_path, chosen) as running:
        for service in (*(["redis"] if has_redis else []), "engine", "api", "ui"):
            running.start(service)
        api = httpx.Client(base_url=running.url("api"), timeout=60)
        document = ("owls.md", b"# Owls\n\nThe owl of the library is called Ottilie.\n")
        assert api.post("/api/v1/documents", files=[("files", document)]).json()["results"][0]["status"] == "added"
        answer = api.post("/chat/invoke", json=question("What is the owl of the library called?", "composed")).json()
        assert "Ottilie" in answer["output"]["answer"]
        said = [turn["answer"] for turn in api.get("/api/v1/conversations/composed").json()["turns"]]
        assert said == [answer["output"]["answer"]]
        assert not has_redis or not list((tmp_path / "api").glob("conversations*"))  # they are where the URL says
        page = httpx.get(running.url("ui"), follow_redirects=True)
        assert (page.status_code, "text/html" in page.headers["content-type"]) == (200, True)
        generated = httpx.get(f"{running.url('engine')}/metrics").text
        assert 'ragstone:request_success_total{finished_reason="' in generated  # the engine there has answered
