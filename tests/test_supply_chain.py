"""What the product is made of: a bill of materials, known vulnerabilities, images by digest."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from tests.services import free_port

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "deploy" / "requirements.lock"
DIGEST = re.compile(r"^[a-z0-9./-]+:[A-Za-z0-9._-]+@sha256:[0-9a-f]{64}$")


def run(script: str, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | env)


@pytest.fixture(scope="module")
def sbom(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("sbom") / "sbom.json"
    done = run("sbom.py", "--output", path)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def test_the_bill_of_materials_has_every_locked_release_with_its_hashes(sbom: dict[str, Any]) -> None:
    locked = dict(re.findall(r"^([a-z0-9._-]+)==([^\s;\\]+)", LOCK.read_text(), re.MULTILINE))
    assert {each["name"]: each["version"] for each in sbom["components"]} == locked
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    hashes = set(re.findall("sha256:([0-9a-f]{64})", LOCK.read_text()))
    assert {each["content"] for component in sbom["components"] for each in component["hashes"]} == hashes
    assert all(component["purl"].startswith("pkg:pypi/") for component in sbom["components"])


def test_the_bill_of_materials_has_the_licenses_of_what_is_installed_here(sbom: dict[str, Any]) -> None:
    licensed = {each["name"] for each in sbom["components"] if each.get("licenses")}
    assert {"grpcio", "msgspec", "cryptography", "starlette"} <= licensed
    assert len(licensed) >= 0.9 * len(sbom["components"])


def test_the_bill_of_materials_says_what_needs_what(sbom: dict[str, Any]) -> None:
    needs = {each["ref"]: each["dependsOn"] for each in sbom["dependencies"]}
    own = sbom["metadata"]["component"]["bom-ref"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert own == f"pkg:pypi/tape@{version}"
    reached, pending = set(), [own]
    while pending:
        if (ref := pending.pop()) not in reached:
            reached.add(ref)
            pending += needs[ref]
    assert reached == needs.keys() == {own, *(each["purl"] for each in sbom["components"])}


def test_the_bill_of_materials_is_the_same_bytes_each_time(sbom: dict[str, Any], tmp_path: Path) -> None:
    for name in ("a", "b"):
        run("sbom.py", "--output", tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert json.loads((tmp_path / "a").read_text()) == sbom
    text = json.dumps(sbom)
    assert "timestamp" not in text
    assert "http" not in text.replace("httpx", "").replace("httptools", "").replace("httpcore", "").replace("-http", "")


@contextmanager
def advisory_source(answer: Callable[[list[dict[str, Any]]], tuple[int, bytes]]) -> Iterator[str]:
    """A server that answers as an OSV server does."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, body = answer(asked["queries"])
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def nothing_known(queries: list[dict[str, Any]]) -> tuple[int, bytes]:
    return 200, json.dumps({"results": [{} for _ in queries]}).encode()


def test_the_audit_succeeds_if_no_vulnerability_is_known() -> None:
    with advisory_source(nothing_known) as source:
        done = run("audit.py", LOCK, TAPE_ADVISORIES=source)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\d+ releases checked, 0 with known vulnerabilities$", done.stdout, re.MULTILINE)


def test_the_audit_fails_and_names_each_known_vulnerability() -> None:
    def answer(queries: list[dict[str, Any]]) -> tuple[int, bytes]:
        results: list[dict[str, Any]] = []
        for query in queries:
            assert query["package"]["ecosystem"] == "PyPI"
            if query["package"]["name"] != "grpcio":
                results.append({})
            elif "page_token" in query:
                results.append({"vulns": [{"id": "GHSA-second-page"}]})
            else:
                results.append({"vulns": [{"id": "PYSEC-2026-1"}], "next_page_token": "more"})
        return 200, json.dumps({"results": results}).encode()

    with advisory_source(answer) as source:
        done = run("audit.py", LOCK, TAPE_ADVISORIES=source)
    assert done.returncode == 1, done.stderr
    assert re.search(r"^grpcio \S+: GHSA-second-page, PYSEC-2026-1$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(("arguments", "status"), [((), 0), (("--required",), 2)])
def test_the_audit_says_plainly_that_it_could_not_check(arguments: tuple[str, ...], status: int) -> None:
    done = run("audit.py", *arguments, LOCK, TAPE_ADVISORIES=f"http://127.0.0.1:{free_port()}")
    assert done.returncode == status, done.stderr
    assert done.stdout.startswith("not checked: no advisory source.")


@pytest.mark.parametrize("answer", [(503, b"{}"), (200, b"no json"), (200, b"{}"), (200, b'{"results": []}')])
def test_an_advisory_source_that_answers_nonsense_counts_as_not_checked(answer: tuple[int, bytes]) -> None:
    with advisory_source(lambda _: answer) as source:
        done = run("audit.py", LOCK, TAPE_ADVISORIES=source)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("not checked: no advisory source.")


def test_images_are_named_by_digest() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    own = {service["image"] for service in services.values() if "build" in service}
    images = {service["image"] for service in services.values()} - own
    bases = set(re.findall(r"^FROM (\S+)", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE))
    assert len(images) == 2
    assert len(bases) == 1
    for image in images | bases:
        assert DIGEST.match(image), f"{image} is not named by digest; write it with `make images ARGS=--write`."


@pytest.mark.parametrize(("digest", "status"), [("", 0), ("sha256:" + "0" * 64, 1)])
def test_images_whose_tag_has_another_digest_are_listed(tmp_path: Path, digest: str, status: int) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\n[ -n '{digest}' ] || exit 1\necho {digest}\n")
    docker.chmod(0o755)
    done = run("images.py", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == status, done.stderr
    assert ("is sha256:000" if digest else "not checked, the registry cannot be reached") in done.stdout
