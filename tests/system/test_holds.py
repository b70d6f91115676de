"""A configuration error is back-pressure: messages wait for the playbook or the secret, and none is given up."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tape.subscriptions.api_client import Control
from tests.broker_services import NatsServer
from tests.forked import Forked, tape
from tests.services import ServerProcess, difference, wait_for
from tests.system.test_subscriptions import PATH, PLAYBOOK, TOKEN, Stream, rows, runs, verbs

DELIVERIES = 3  # of the consumer: after these NATS gives a message up


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPE_INTERNAL_API_TOKEN", TOKEN)


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


class LimitedStream(Stream):
    """A stream whose consumer delivers a message three times at most."""

    def __init__(self, server: NatsServer) -> None:
        super().__init__(server)

        async def limit(jetstream: Any) -> None:
            await jetstream.delete_consumer(self.name, "readers")
            await jetstream.add_consumer(
                self.name, durable_name="readers", ack_policy="explicit", ack_wait=2, max_deliver=DELIVERIES
            )

        self.do(limit)

    def delivered(self) -> int:
        """Deliveries so far, redeliveries included."""

        async def look(jetstream: Any) -> int:
            return int((await jetstream.consumer_info(self.name, "readers")).delivered.consumer_seq)

        return int(self.do(look))


def document(stream: Stream, **spec: Any) -> str:
    base = {
        "source": "nats",
        "mode": "pull",
        "url": stream.url,
        "stream": stream.name,
        "consumer": "readers",
        "runtime": {"batch": 10, "timeout_ms": 500},
        "dispatch": {"playbook": "domain/ingest"},
    }
    given = {name: value for name, value in (base | spec).items() if value is not None}
    return json.dumps({"kind": "Subscription", "metadata": {"path": PATH}, "spec": given})


def subscriptions(server: ServerProcess, *arguments: str) -> Any:
    return tape("subscriptions", *arguments, "--server", server.http_url)


def is_held(control: Control) -> bool:
    return bool((control.latest(PATH) or {}).get("held"))


@pytest.mark.parametrize("where", ["in the server", "in a remote runtime"])
def test_messages_wait_for_their_playbook_and_none_is_given_up(nats: NatsServer, tmp_path: Path, where: str) -> None:
    store, file, playbook = tmp_path / "tape.db", tmp_path / "orders.yaml", tmp_path / "ingest.yaml"
    stream = LimitedStream(nats)
    stream.publish(range(50))
    target = {"target": "local"} if where == "in the server" else {}
    file.write_text(document(stream, runtime={"batch": 10, "timeout_ms": 500, **target}))
    playbook.write_text(PLAYBOOK)
    with ServerProcess(f"sqlite:{store}") as server, contextlib.ExitStack() as stack:
        control = Control(server.http_url, TOKEN)
        registered = subscriptions(server, "register", str(file))
        assert (registered.returncode, "is REGISTERED" in registered.stdout) == (0, True)
        assert "warning: The catalog has no playbook 'domain/ingest'." in registered.stderr
        refused = subscriptions(server, "activate", PATH)
        assert refused.returncode == 1
        assert "(1) The catalog has no playbook 'domain/ingest'." in refused.stderr
        assert "--force" in refused.stderr
        assert subscriptions(server, "activate", PATH, "--force").stdout == f"{PATH} is ACTIVE.\n"
        if where != "in the server":
            process = Forked(["subscription", "run", PATH, "--server", server.http_url])
            stack.callback(process.kill)
        wait_for(lambda: is_held(control), "the hold")
        shown = subscriptions(server, "show", PATH).stdout
        assert "ACTIVE, held" in shown
        assert "The catalog has no playbook 'domain/ingest'." in shown
        assert "ACTIVE, held" in subscriptions(server, "list").stdout
        assert stream.delivered() == 0
        assert tape("playbooks", "register", str(playbook), "--url", server.url).returncode == 0
        wait_for(lambda: len(runs(store)) == 50 and stream.is_empty(), "all runs")
        wait_for(lambda: not is_held(control), "the end of the hold")
        assert stream.delivered() == 50
        assert not difference(runs(store).elements(), range(50))
        assert {"held", "released"} <= verbs(store)
        assert "message.dead_lettered" not in verbs(store)
        assert len(rows(store, "subject LIKE '/tape/subscription/held/%'")) == 1


def test_a_missing_secret_holds_a_subscription_until_it_is_set(nats: NatsServer, tmp_path: Path) -> None:
    store, file = tmp_path / "tape.db", tmp_path / "orders.yaml"
    stream = LimitedStream(nats)
    stream.publish(range(5))
    file.write_text(document(stream, runtime={"target": "local", "timeout_ms": 500}, auth="broker", url=None))
    with ServerProcess(f"sqlite:{store}") as server:
        control = Control(server.http_url, TOKEN)
        registered = subscriptions(server, "register", str(file))
        assert registered.stderr.count("warning: ") == 2
        refused = subscriptions(server, "activate", PATH)
        assert "(1) The catalog has no playbook 'domain/ingest'." in refused.stderr
        assert "(2) The wallet has no secret 'broker', which auth names." in refused.stderr
        control.register_document(PLAYBOOK)
        assert subscriptions(server, "activate", PATH, "--force").returncode == 0
        wait_for(lambda: is_held(control), "the hold")
        (status,) = control.list(PATH)
        assert [reason.partition(",")[0] for reason in status["held"]["reasons"]] == [
            "The wallet has no secret 'broker'"
        ]
        secret = json.dumps({"url": stream.url})
        done = tape("wallet", "set", "broker", "--json", "--store", f"sqlite:{store}", stdin=secret)
        assert done.returncode == 0, done.stderr
        wait_for(lambda: len(runs(store)) == 5 and not is_held(control), "all runs")
        assert "message.dead_lettered" not in verbs(store)


def test_messages_go_to_the_spool_while_a_subscription_is_held_and_are_replayed_in_order(
    nats: NatsServer, tmp_path: Path
) -> None:
    store = tmp_path / "tape.db"
    stream = LimitedStream(nats)
    stream.publish(range(20))
    spool = {"mode": "buffer_and_ack", "backend": "local_disk", "path": str(tmp_path / "spool"), "ordering": "global"}
    with ServerProcess(f"sqlite:{store}") as server:
        control = Control(server.http_url, TOKEN)
        control.register_document(document(stream, runtime={"target": "local", "timeout_ms": 500}, spool=spool))
        control.act(control.register(PATH)["subscription_id"], "activate", force=True)
        wait_for(lambda: stream.is_empty() and is_held(control), "the spooled messages")
        assert not runs(store)
        control.register_document(PLAYBOOK)
        wait_for(lambda: len(runs(store)) == 20 and not is_held(control), "all runs")
        assert list(runs(store).elements()) == list(range(20))
        assert "message.dead_lettered" not in verbs(store)


def test_a_server_that_is_away_is_asked_not_probed_with_messages(nats: NatsServer, tmp_path: Path) -> None:
    """With the documented defaults a probe is a message, and three deliveries would use it up."""
    store = tmp_path / "tape.db"
    stream = LimitedStream(nats)
    with ServerProcess(f"sqlite:{store}") as server:
        control = Control(server.http_url, TOKEN)
        control.register_document(PLAYBOOK)
        control.register_document(document(stream, dedup={"enabled": True}))
        process = Forked(["subscription", "run", PATH, "--server", server.http_url, "--log-level", "warning"])
        try:
            stream.publish(range(1))
            wait_for(lambda: runs(store).total() == 1, "the first run")
            server.kill()
            stream.publish(range(1, 11))
            wait_for(lambda: stream.delivered() > 1, "a delivery while the server is away")
            server.start(server.url.removeprefix("tape://"), server.http_url.removeprefix("http://"))
            wait_for(lambda: len(runs(store)) == 11 and stream.is_empty(), "all runs")
        finally:
            process.kill()
        assert not difference(runs(store).elements(), range(11))
        assert "message.dropped" not in verbs(store)
