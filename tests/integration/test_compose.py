"""What can be known of docker-compose.yml without a Docker engine."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import __version__
from pipeline.config import load_settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return (ROOT / "docker" / "worker.Dockerfile").read_text()


def interpolate(text: str, variables: dict[str, str]) -> str:
    """What compose makes of ``${NAME}``, ``${NAME:-default}``, ``${NAME:?message}`` and ``$$``."""

    def value(match: re.Match[str]) -> str:
        name, operator, word = match["name"], match["operator"], match["word"]
        if variables.get(name):
            return variables[name]
        assert operator == ":-", f"{name} has no value"
        return str(word)

    text = re.sub(r"(?<!\$)\$\{(?P<name>\w+)(?:(?P<operator>:[-?])(?P<word>[^}]*))?\}", value, text)
    return text.replace("$$", "$")


def test_services_without_a_profile_are_the_database_and_the_broker(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {name for name, service in services.items() if not service.get("profiles")} == {"postgres", "redis"}
    assert services["worker"]["profiles"] == ["worker"]


def test_every_image_is_pinned_to_a_patch_version(compose: dict[str, Any], dockerfile: str) -> None:
    images = [service["image"] for service in compose["services"].values()]
    images += re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    assert len(images) == 5
    for image in images:
        assert re.search(r":\d+\.\d+(\.\d+)?(-[a-z]+)*$", image), image
    assert compose["services"]["worker"]["image"].endswith(f":{__version__}")


def test_no_secret_has_a_value_in_the_file(compose: dict[str, Any]) -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    for name in ("POSTGRES_PASSWORD", "REDIS_PASSWORD"):
        assert compose["services"][name.split("_")[0].lower()]["environment"][name].startswith(f"${{{name}:?")
        assert f"${{{name}:-" not in text
        assert re.search(rf"^{name}=$", (ROOT / "docker" / "env.example").read_text(), re.MULTILINE)
    assert re.search(r"^\.env$", (ROOT / ".gitignore").read_text(), re.MULTILINE)


def test_redis_asks_for_a_password_and_never_evicts(compose: dict[str, Any]) -> None:
    shell, flag, command = compose["services"]["redis"]["command"]
    assert (shell, flag) == ("sh", "-c")
    command = interpolate(command, {})
    assert '--requirepass "$REDIS_PASSWORD"' in command
    assert "--maxmemory-policy noeviction" in command
    assert "\n" not in command


def test_ports_are_published_on_this_machine_alone_unless_asked(compose: dict[str, Any]) -> None:
    for name, port in (("postgres", "5432"), ("redis", "6379")):
        (published,) = compose["services"][name]["ports"]
        assert interpolate(published, {}) == f"127.0.0.1:{port}:{port}"
        assert interpolate(published, {"PUBLISH_ADDRESS": "10.0.0.2"}).startswith("10.0.0.2:")
    assert "ports" not in compose["services"]["worker"]


def test_every_lasting_service_has_a_healthcheck_and_the_worker_waits_for_them(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name in ("postgres", "redis", "worker"):
        assert services[name]["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert services["schema"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert services["worker"]["depends_on"]["redis"]["condition"] == "service_healthy"
    assert services["worker"]["depends_on"]["schema"]["condition"] == "service_completed_successfully"


def test_the_workers_environment_is_one_the_settings_accept(compose: dict[str, Any]) -> None:
    secrets = {"POSTGRES_PASSWORD": "secret1", "REDIS_PASSWORD": "secret2"}
    environment = compose["services"]["worker"]["environment"]
    settings = load_settings(environ={name: interpolate(v, secrets) for name, v in environment.items()}).settings
    assert settings.database_url == "postgresql+psycopg://pipeline:secret1@postgres:5432/pipeline"
    assert settings.broker_url == "redis://:secret2@redis:6379/0"
    mounted = [volume.rsplit("}", 1)[1].split(":")[1] for volume in compose["services"]["worker"]["volumes"]]
    assert settings.store_url == f"file://{mounted[0]}"
    assert str(settings.models_path) == mounted[1]


def test_the_image_holds_every_package_of_the_distribution(dockerfile: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    ignored = (ROOT / ".dockerignore").read_text().split()
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert f"COPY {package} {package}\n" in dockerfile
        assert f"!{package}" in ignored
    assert re.search(r"^USER (?!root)\w+", dockerfile, re.MULTILINE)
