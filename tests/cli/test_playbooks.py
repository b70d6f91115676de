"""`tape playbooks`, `execute`, `worker` and `schema`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked import tape
from tests.services import ServerProcess

ORDER = """\
kind: Playbook
metadata: {path: domain/order, labels: {team: orders}}
inputs: {n: integer}
workflow:
  - {step: check, when: n > 100, tool: {kind: playbook, path: domain/large, payload: {n: "{{ n }}"}}}
  - {step: publish, tool: {kind: publish, subject: /tape/order/seen, payload: {n: "{{ n }}"}}}
output: "{{ n }}"
"""
MODULE = """
import tape

@tape.playbook("domain/large")
def large(n: int) -> int:
    if n > 1000:
        raise ValueError("too large")
    return n
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("playbooks")
    (folder / "order.yaml").write_text(ORDER)
    (folder / "bad.yaml").write_text(ORDER.replace("inputs", "input").replace("step: publish", "step: check"))
    (folder / "shop.py").write_text(MODULE)
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with ServerProcess(f"sqlite:{folder / 'tape.db'}") as server:
        yield server.url


def test_a_file_is_checked_and_run_without_a_server(folder: Path) -> None:
    checked = tape("playbooks", "validate", "order.yaml", "bad.yaml", cwd=folder)
    assert checked.returncode == 1
    assert checked.stdout.splitlines()[0] == "order.yaml: domain/order is valid (2 steps)."
    assert "bad.yaml: line 3, input: is not a known key; did you mean 'inputs'?" in checked.stdout
    assert "bad.yaml: line 6, workflow[1].step: 'check' names two steps" in checked.stdout
    done = tape("playbooks", "run", "order.yaml", "-i", "shop", "-p", '{"n": 500}', cwd=folder)
    assert (done.stdout, done.stderr) == ("500\n", '/tape/order/seen {"n": 500}\n')
    failed = tape("playbooks", "run", "order.yaml", "-i", "shop", "-p", '{"n": 5000}', cwd=folder)
    assert "ValueError: too large" in failed.stderr
    refused = tape("playbooks", "run", "order.yaml", "-p", '{"n": "x"}', cwd=folder)
    assert 'n is "x"; it must be an integer' in refused.stderr
    assert (
        "Playbook not found: domain/large"
        in tape("playbooks", "run", "order.yaml", "-p", '{"n": 500}', cwd=folder).stderr
    )


def test_playbooks_are_registered_and_executed_by_a_worker(folder: Path, url: str) -> None:
    (folder / "payload.json").write_text('{"n": 5000}')
    for _ in range(2):
        registered = tape("playbooks", "register", "order.yaml", "--url", url, cwd=folder)
        assert registered.stdout == "domain/order is version 1.\n"
    assert tape("worker", "-i", "shop", "--once", "--url", url, cwd=folder).stdout == "0 done, 0 failed, 0 dead.\n"
    listed = json.loads(tape("playbooks", "list", "--output", "json", "--url", url).stdout)
    assert [(each["path"], each["version"], each["labels"]) for each in listed] == [
        ("domain/large", 1, {}),
        ("domain/order", 1, {"team": "orders"}),
    ]
    assert tape("playbooks", "show", "domain/order", "--url", url).stdout == ORDER
    good = tape("execute", "domain/order", "-p", '{"n": 500}', "--dedup-key", "a", "--url", url)
    again = tape("execute", "domain/order", "-p", '{"n": 1}', "--dedup-key", "a", "--output", "json", "--url", url)
    assert json.loads(again.stdout) == {"execution_id": good.stdout.strip(), "status": "duplicate"}
    tape("execute", "domain/order", "-p", "@payload.json", "--dedup-key", "b", "--url", url, cwd=folder)
    assert tape("worker", "-i", "shop", "--once", "--url", url, cwd=folder).stdout == "2 done, 0 failed, 0 dead.\n"
    waited = tape("execute", "domain/order", "-p", '{"n": 1}', "--dedup-key", "a", "--wait", "--url", url)
    assert (waited.returncode, waited.stdout) == (0, "500\n")
    failed = tape("execute", "domain/order", "-p", '{"n": 1}', "--dedup-key", "b", "--wait", "--url", url)
    assert (failed.returncode, "step check: ValueError: domain/large: too large" in failed.stderr) == (1, True)


def test_invalid_input_is_named(folder: Path, url: str) -> None:
    for arguments, reason in (
        (("execute", "no/such"), "Playbook not found: no/such"),
        (("execute", "x", "-p", "[1]"), "--payload '[1]' is not a JSON object"),
        (("execute", "x", "-p", "@nowhere"), "--payload @nowhere: No such file"),
        (("playbooks", "register", "bad.yaml"), "line 3, input: is not a known key"),
        (("playbooks", "register", "nowhere.yaml"), "nowhere.yaml cannot be read"),
        (("playbooks", "show", "nowhere"), "Resource not found: nowhere"),
        (("worker", "--import", "nowhere"), "there is no such module"),
        (("worker", "--pool", "No"), "pool 'No' must be lower-case letters"),
        (("worker", "--http-allow", "http://x"), "http_allow has the entry 'http://x'"),
    ):
        done = tape(*arguments, "--url", url, cwd=folder)
        assert (done.returncode, reason in done.stderr) == (1, True), done.stderr


@pytest.fixture
def asking(folder: Path) -> Iterator[tuple[Path, str]]:
    """A playbook that asks a server on loopback for its health, and the address of that server."""
    with ServerProcess(f"sqlite:{folder / 'asked.db'}") as server:
        address = server.http_url.removeprefix("http://")
        step = f"{{step: ask, tool: {{kind: http, url: '{server.http_url}/healthz'}}}}"
        file = folder / "ask.yaml"
        file.write_text(f"kind: Playbook\nmetadata: {{path: a}}\nworkflow: [{step}]\noutput: '{{{{ ask.status }}}}'\n")
        yield file, address


def test_a_step_reaches_a_private_host_only_if_a_setting_allows_it(asking: tuple[Path, str], tmp_path: Path) -> None:
    file, address = asking
    config = tmp_path / "settings.toml"
    config.write_text(f'http_allow = "{address}"\n')
    refused = tape("playbooks", "run", str(file))
    assert refused.returncode == 1
    assert "127.0.0.1 is 127.0.0.1 (loopback), which is not a public address" in refused.stderr
    assert f"TAPE_HTTP_ALLOW={address}" in refused.stderr
    for option, env in (
        (("--http-allow", address), {}),
        ((), {"TAPE_HTTP_ALLOW": "127.0.0.0/8"}),
        ((), {"TAPE_CONFIG": str(config)}),
    ):
        assert tape("playbooks", "run", str(file), *option, env=env).stdout == "200\n"
    overruled = tape("playbooks", "run", str(file), "--http-allow", "10.0.0.0/8", env={"TAPE_HTTP_ALLOW": "127.0.0.1"})
    assert overruled.returncode == 1


def test_a_worker_reaches_a_private_host_only_if_an_option_allows_it(asking: tuple[Path, str], url: str) -> None:
    file, address = asking
    tape("playbooks", "register", str(file), "--url", url)
    for option, ended in (((), "failed"), (("--http-allow", address), "terminal")):
        begun = json.loads(tape("execute", "a", "--url", url, "-o", "json").stdout)
        tape("worker", "--once", "--url", url, *option)
        shown = tape("runs", "show", begun["execution_id"], "--url", url, "-o", "json").stdout
        assert ended in shown.lower()


def test_the_schema_is_printed() -> None:
    assert json.loads(tape("schema", "playbook").stdout)["properties"]["kind"] == {"const": "Playbook"}
