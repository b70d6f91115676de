"""The document of docs/how-to/survive-an-outage.md, as it is printed there, with the downstream killed for 30 s."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.broker_services import NatsServer
from tests.faults.cells import Cell
from tests.faults.feeds import Sender
from tests.faults.proving import REST_S, judge
from tests.faults.scene import Scene
from tests.services import wait_for

PAGE = Path(__file__).parents[2] / "docs/how-to/survive-an-outage.md"
OUTAGE_S = 30.0


def printed(file: str) -> str:
    """A document of the page, by the name in its first line."""
    (found,) = re.findall(rf"```yaml\n# {re.escape(file)}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    return str(found)


class HowTo(Scene):
    """The processes of the page. Addresses, stream and folder are those of the test; nothing else is changed."""

    pool = "orders"

    def playbook(self) -> str:
        text = printed("ingest_order.yaml")
        assert "http://127.0.0.1:8080/orders" in text
        return text.replace("http://127.0.0.1:8080", self.downstream.url)

    def document(self, location: dict[str, Any]) -> str:
        document = yaml.safe_load(printed("orders.yaml"))
        spec = document["spec"]
        (downstream,) = spec["spool"]["circuit"]["downstream"]
        assert downstream["target"] == "127.0.0.1:8080"
        downstream["target"] = f"127.0.0.1:{self.downstream.port}"
        assert {"url", "stream", "consumer"} <= spec.keys()
        spec |= self.feed.connection
        spec["spool"]["path"] = location["path"]
        return yaml.safe_dump(document)


@pytest.fixture
def how_to(nats_server: NatsServer, migrated_file: Path, tmp_path: Path, faults_environment: None) -> Iterator[HowTo]:
    store = tmp_path / "tape.db"
    store.write_bytes(migrated_file.read_bytes())
    cell = Cell("nats", "buffer_and_ack", "per_key", probed=True)
    with HowTo(cell, f"sqlite:{store}", tmp_path, nats=nats_server) as scene:
        yield scene


@pytest.mark.proof
@pytest.mark.parametrize(
    "restarted", [(), ("server", "runtime", "worker")], ids=["alone", "with restarts of everything"]
)
def test_every_message_sent_while_the_downstream_is_killed_for_30_s_reaches_it_once_and_in_order(
    how_to: HowTo, restarted: tuple[str, ...]
) -> None:
    sender = Sender(how_to.feed, 10_000, REST_S)
    sender.start()
    wait_for(lambda: len(how_to.downstream.received) >= 20, "messages to reach the downstream")
    how_to.hurt("downstream killed")
    killed_at, sent_before = time.monotonic(), len(sender.sent)
    for each in restarted:
        time.sleep(OUTAGE_S / 5)
        how_to.hurt(f"{each} killed")
        how_to.revive()
    time.sleep(max(0.0, OUTAGE_S - (time.monotonic() - killed_at)))  # how long the outage lasts
    sent_during = len(sender.sent) - sent_before
    how_to.heal()
    wait_for(lambda: len(sender.sent) >= sent_before + sent_during + 20, "messages to be sent afterwards")
    sender.finish()
    assert sent_during >= 100, "traffic was not steady"
    judge(how_to, sender)
