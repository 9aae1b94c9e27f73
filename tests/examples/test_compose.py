"""The fleet of ``examples/compose``: its files agree with each other, and its commands and metrics with the package, without Docker."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from qreward.cli import parser as command_line

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "compose"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
PROMETHEUS = yaml.safe_load((FOLDER / "prometheus.yaml").read_text(encoding="utf-8"))
TOKEN = "not-secret"
SECRET = "/run/secrets/reward_token"
LIMIT = 90.0  # seconds after which a condition that does not come is a failure; it usually comes in five


def mounts(service: str) -> dict[str, str]:
    """Path in the container -> file or named volume."""
    return {parts[1]: parts[0] for parts in (each.split(":") for each in SERVICES[service].get("volumes", []))}


def test_services_use_volumes_secrets_files_and_services_that_there_are() -> None:
    assert set(SERVICES) == {"reward-0", "reward-1", "client", "prometheus", "grafana"}
    for name, service in SERVICES.items():
        assert ("build" in service) != service["image"].startswith(("prom/", "grafana/")), name
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        for source in mounts(name).values():
            assert source in COMPOSE["volumes"] if "/" not in source else (FOLDER / source).exists(), source
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), "open on this machine only"
    assert [mounts("grafana")[path] for path in mounts("grafana") if path.endswith(".json")] == ["../../docs/grafana.json"]


def test_the_image_gets_what_it_installs_and_runs() -> None:
    build = SERVICES["client"]["build"]
    dockerfile = (FOLDER / build["context"] / build["dockerfile"]).read_text(encoding="utf-8")
    kept = re.findall(r"^!(.+)$", (FOLDER / "Dockerfile.dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    assert (FOLDER / build["context"]).resolve() == ROOT
    assert all(list(ROOT.glob(pattern)) for pattern in kept)
    assert {"pyproject.toml", "README.md", "LICENSE", "qreward", "examples/compose/*.py"} == set(kept)
    extras = re.findall(r"/src\[([a-z,]+)\]", dockerfile)[0].split(",")
    assert set(extras) <= tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"].keys()
    assert f"WORKDIR /src/{FOLDER.relative_to(ROOT).as_posix()}" in dockerfile


def test_the_commands_are_those_of_the_command_line() -> None:
    for name in ("reward-0", "reward-1"):
        program, *arguments = shlex.split(SERVICES[name]["command"])
        assert program == "qreward"
        parsed = command_line(arguments[0]).parse_args(arguments)
        assert (parsed.scorer, parsed.port, parsed.token_file) == ("scorer:score", "5000", SECRET)
        assert SERVICES[name]["secrets"] == ["reward_token"]
    assert shlex.split(SERVICES["client"]["command"]) == ["python", "client.py"]
    urls = SERVICES["client"]["environment"]["REWARD_URLS"].split()
    assert [url.split(":5000")[0] for url in urls] == ["http://reward-0", "http://reward-1"]


def test_prometheus_scrapes_all_three_and_grafana_reads_from_it() -> None:
    jobs = {job["job_name"]: job for job in PROMETHEUS["scrape_configs"]}
    targets = [target for job in jobs.values() for group in job["static_configs"] for target in group["targets"]]
    assert targets == ["reward-0:5000", "reward-1:5000", "client:9464"]
    assert jobs["reward-servers"]["authorization"] == {"credentials_file": SECRET}
    (source,) = yaml.safe_load((FOLDER / "grafana/datasources/prometheus.yaml").read_text(encoding="utf-8"))["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    (provider,) = yaml.safe_load((FOLDER / "grafana/dashboards/qreward.yaml").read_text(encoding="utf-8"))["providers"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home in mounts("grafana")
    assert str(Path(home).parent) == provider["options"]["path"]


def test_docker_compose_accepts_the_file_where_it_is_installed() -> None:
    if not shutil.which("docker") or subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("Docker Compose is not installed")
    environ = os.environ | {"REWARD_TOKEN": TOKEN}
    done = subprocess.run(["docker", "compose", "config", "--quiet"], cwd=FOLDER, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def until(found: Callable[[], str]) -> str:
    """What a function returns as soon as that is true, of all connections it makes meanwhile."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        with suppress(urllib.error.URLError, ConnectionError):
            if value := found():
                return value
        time.sleep(0.05)
    raise AssertionError("the condition did not come")


def scraped(url: str, token: str = "") -> str:
    """A page of metrics, as Prometheus is told to fetch it."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=LIMIT) as page:
        return str(page.read().decode())


@contextmanager
def process(*command: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=FOLDER, env=os.environ | environ, stdout=pipe, stderr=pipe, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """What Prometheus sees of a server and of the client, both run by the commands of the services."""
    token = tmp_path_factory.mktemp("secrets") / "reward_token"
    token.write_text(TOKEN, encoding="utf-8")
    command = SERVICES["reward-0"]["command"].replace("0.0.0.0", "127.0.0.1").replace("5000", "0").replace(SECRET, str(token))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    path, client_path = (job["metrics_path"] for job in PROMETHEUS["scrape_configs"])
    with process(sys.executable, "-m", *shlex.split(command)) as server:
        assert server.stderr is not None
        (url,) = re.findall(r"http://[\d.:]+", server.stderr.readline())
        settings = {"REWARD_URLS": f"{url}/v1", "REWARD_TOKEN": TOKEN, "METRICS_ADDRESS": "127.0.0.1", "METRICS_PORT": address[10:]}
        with process(sys.executable, "client.py", **settings) as client:
            assert client.stdout is not None
            assert " ok, " in client.stdout.readline()  # one batch is done
            yield scraped(url + path, TOKEN), until(lambda: scraped(f"http://{address}{client_path}"))
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            scraped(url + path)
        refused.value.close()


def test_the_scraped_paths_have_the_metrics_of_a_server_and_of_the_client(pages: tuple[str, str]) -> None:
    server, client = pages
    assert re.search(r'^qreward_server_completions_total\{outcome="scored"\} [1-9]', server, re.MULTILINE)
    assert re.search(r'^gen_ai_client_operation_duration_seconds_count\{.*gen_ai_request_model="reward".*\} [1-9]', client, re.MULTILINE)
    assert re.search(r"^qreward_client_batch_size_count\{.*\} [1-9]", client, re.MULTILINE)


def test_the_dashboard_asks_for_metrics_and_labels_that_servers_have(pages: tuple[str, str]) -> None:
    panels = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", []) if "qreward_serve" in target["expr"]]
    assert len(asked) >= 4
    labels = set(re.findall(r'([a-z_]+)="', pages[0])) | {"instance"}  # which Prometheus adds
    for query in asked:
        assert set(re.findall(r"qreward_serve\w+", query)) <= set(re.findall(r"^(\w+)", pages[0], re.MULTILINE)), query
        assert {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")} <= labels, query
