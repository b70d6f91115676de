"""Outages with real processes: whatever dies, every message becomes one run, in order, and the journal records it."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tape import TapeClient
from tape.cli.outages import read_outages
from tape.subscriptions.api_client import Control
from tests.forked import Forked, tape
from tests.services import ServerProcess, wait_for

pytestmark = pytest.mark.usefixtures("loopback_allowed")

TOKEN = "int3rnal"
SECRET = "whsec-very-s3cret"
SPEC = """\
kind: Subscription
metadata: {{path: subscriptions/orders}}
spec:
  source: webhook
  mode: push
  ingress:
    gateway_path: /ingress/orders
    verify: {{type: hmac_sha256, header: X-Signature, secret: orders_secret}}
  dispatch: {{playbook: domain/order}}
  spool:
    mode: buffer_and_ack
    backend: local_disk
    path: {folder}
    ordering: global
    circuit: {{trip_after: 2, probe_after_ms: 50}}
"""
PLAYBOOK = (
    "kind: Playbook\nmetadata: {path: domain/order}\nworkflow: [{step: keep, tool: {kind: value, value: done}}]\n"
)


def command(*arguments: str, stdin: str | None = None) -> str:
    """What `tape …` prints."""
    done = tape(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


http = urllib3.PoolManager(retries=False, timeout=120)


class GatewayProcess:
    """`tape gateway` in a process of its own."""

    def __init__(self, server_url: str) -> None:
        self._process = Forked(["gateway", "--server", server_url, "--listen", "127.0.0.1:0", "--log-level", "error"])
        assert self._process.stdout is not None
        greeting = self._process.stdout.readline()
        self.url = re.findall(r"http://[^/]+", greeting)[0]

    def kill(self) -> None:
        self._process.kill()

    def deliver(self, number: int) -> tuple[int, dict[str, Any]]:
        body = json.dumps({"n": number}).encode()
        digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        headers = {"x-signature": f"sha256={digest}", "x-message-id": f"m{number}"}
        answer = http.request("POST", f"{self.url}/ingress/orders", body=body, headers=headers)
        return answer.status, json.loads(answer.data)


@pytest.fixture
def server(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    monkeypatch.setenv("TAPE_INTERNAL_API_TOKEN", TOKEN)
    monkeypatch.setenv("TAPE_WALLET_KEY", str(tmp_path / "wallet.key"))
    command("wallet", "set", "orders_secret", "--store", store_url, stdin=SECRET)
    with ServerProcess(store_url) as running:
        control = Control(running.http_url, TOKEN)
        control.register_document(PLAYBOOK)
        control.register_document(SPEC.format(folder=tmp_path / "spool"))
        control.act(control.register("subscriptions/orders")["subscription_id"], "activate")
        yield running


def commands(server: ServerProcess) -> list[int]:
    """The numbers of the messages that became runs, in the order of the journal."""
    with TapeClient(server.url) as client:
        head = client.head().global_seq
        found: list[int] = []
        for batch in client.follow_batches(subject_pattern="/tape/command/**"):
            found += [json.loads(entry.payload_json)["payload"]["n"] for entry in batch.entries]
            if batch.position >= head:
                return found
    raise AssertionError("the journal ended before its head")


def test_a_gateway_keeps_what_its_server_cannot_take_and_another_process_replays_it_in_order(
    server: ServerProcess, tmp_path: Path
) -> None:
    address, http_address = server.url.removeprefix("tape://"), server.http_url.removeprefix("http://")
    first = GatewayProcess(server.http_url)
    try:
        for number in range(3):
            status, said = first.deliver(number)
            assert (status, said["status"], "execution_id" in said) == (202, "accepted", True)
        server.kill()
        for number in range(3, 20):
            status, said = first.deliver(number)
            assert (status, said["spooled"]) == (202, True)
        page = http.request("GET", f"{first.url}/metrics").data.decode()
        where = '{source="webhook",subscription="subscriptions/orders"}'
        assert f"tape_subscription_spool_items{where} 17.0" in page
        (age,) = re.findall(rf"tape_subscription_spool_oldest_age_seconds{re.escape(where)} (\S+)", page)
        assert float(age) > 0
    finally:
        first.kill()
    assert len(list((tmp_path / "spool").glob("*.json"))) == 17
    server.start(address, http_address)
    second = GatewayProcess(server.http_url)
    try:
        wait_for(lambda: len(commands(server)) >= 20, "the spool to be drained")
        wait_for(lambda: not list((tmp_path / "spool").glob("*.json")), "the spool to be empty")
        assert commands(server) == list(range(20))
        assert second.deliver(20)[0] == 202
        wait_for(lambda: commands(server) == list(range(21)), "messages to go on")

        def is_recorded() -> bool:
            with TapeClient(server.url) as client:
                found = read_outages(client, "subscriptions/orders")
            return bool(found) and all(each.ended_ms for each in found)

        wait_for(is_recorded, "the end of the outage in the journal")
        options = ("--all", "--url", server.url, "--server", server.http_url, "-o", "json")
        outages = json.loads(command("subscriptions", "outage", "subscriptions/orders", *options))
        assert sum(each["spooled"] for each in outages) == sum(each["replayed"] for each in outages) >= 17
    finally:
        second.kill()
