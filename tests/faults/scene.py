"""The processes of a cell, each at an address that it keeps; any of them can be killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import nats

from tape.errors import TapeError
from tape.subscriptions.api_client import Control
from tape.subscriptions.document.validator import parse_subscription
from tape.subscriptions.spool.backend import Area
from tape.subscriptions.spool.locations import open_backend
from tests.broker_services import KafkaCluster, NatsServer
from tests.faults.cells import PATH, POOL, SECRET_ALIAS, SPOOL_ALIAS, Cell, document
from tests.faults.chaos import Fault
from tests.faults.downstream import Downstream
from tests.faults.feeds import SECRET, Feed, KafkaFeed, NatsFeed, Sender, WebhookFeed
from tests.faults.story import Story, read_story
from tests.forked import Forked, tape
from tests.objects import S3Server
from tests.services import ServerProcess, free_port, wait_for

TOKEN = "int3rnal"
PLAYBOOK = """\
kind: Playbook
metadata: {{path: domain/ingest}}
workflow:
  - step: order
    tool: {{kind: http, method: POST, url: "{url}/orders", body: "{{{{ input.n }}}}"}}
"""
LOG = "error"
# A message that rests after a failure may rest for longer than this; then the next fault meets it resting.
STILL_S = 8.0


class Scene:
    """A server, what feeds it, what it feeds. Enter it to have all of them running."""

    pool = POOL

    def __init__(
        self,
        cell: Cell,
        store_url: str,
        folder: Path,
        *,
        nats: NatsServer | None = None,
        kafka: KafkaCluster | None = None,
        bucket: S3Server | None = None,
        **spool: Any,
    ) -> None:
        self.cell = cell
        self.folder = folder
        self.server = ServerProcess(store_url)
        self.downstream = Downstream(folder)
        self.has_died: set[str] = set()
        self._begun = 0
        self._store_url = store_url
        self._nats = nats
        self._kafka = kafka
        self._bucket = bucket
        self._spool = spool
        self._listen, self._http_listen = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self._gateway_port = free_port()
        self._reader: Forked | None = None
        self._worker: Forked | None = None
        self._log = (folder / "stderr").open("wb")

    def __enter__(self) -> Scene:
        with contextlib.ExitStack() as entered:
            entered.callback(self._end)
            self._begin()
            entered.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _begin(self) -> None:
        self.downstream.start()
        self.set_secret(SECRET_ALIAS, SECRET)
        location: dict[str, Any] = {"path": str(self.folder / "spool")}
        self.credential: dict[str, str] = {}
        if self.cell.backend == "nats_object":
            assert self._nats is not None
            self.credential = {"url": f"nats://{self._nats.address}"}
            location = {"bucket": f"spool{self._gateway_port}", "credential": SPOOL_ALIAS}
        elif self.cell.backend == "s3":
            assert self._bucket is not None
            self.credential = dict(self._bucket.credential)
            location = {"bucket": f"spool/{self._gateway_port}", "credential": SPOOL_ALIAS}
        if self.credential:
            self.set_secret(SPOOL_ALIAS, self.credential)
        self.feed = self._open_feed()
        self.start("server")
        self.control = Control(self.server.http_url, TOKEN)
        self.control.register_document(self.playbook())
        self._document = self.document(location)
        self.control.register_document(self._document)
        self.control.act(self.control.register(PATH)["subscription_id"], "activate")
        self.start("reader")
        self.start("worker")

    def playbook(self) -> str:
        """The playbook that its messages run."""
        return PLAYBOOK.format(url=self.downstream.url)

    def document(self, location: dict[str, Any]) -> str:
        """Its subscription, with a spool at a location."""
        target = f"127.0.0.1:{self.downstream.port}"
        return document(self.cell, self.feed.connection, location, target, **self._spool)

    def _open_feed(self) -> Feed:
        match self.cell.source:
            case "nats":
                assert self._nats is not None
                return NatsFeed(self._nats)
            case "kafka":
                assert self._kafka is not None
                return KafkaFeed(self._kafka, self.cell)
            case "webhook":
                return WebhookFeed(self._gateway_port)

    def _end(self) -> None:
        for process in (self._reader, self._worker, self.server.process):
            if process is not None:
                process.kill()
        self.downstream.kill()
        if hasattr(self, "feed"):
            self.feed.close()
        self._log.close()

    def set_secret(self, alias: str, value: str | dict[str, str]) -> None:
        """Put a secret into the wallet of the server."""
        text, flags = (value, []) if isinstance(value, str) else (json.dumps(value), ["--json"])
        done = tape("wallet", "set", alias, *flags, "--store", self._store_url, stdin=text)
        assert done.returncode == 0, done.stderr

    # -- hurting and healing -------------------------------------------------------------------

    def start(self, who: str) -> None:
        """Start somebody who is not there; nothing for one who is."""
        match who:
            case "server":
                if self.server.process is None or self.server.process.poll() is not None:
                    self.server.start(self._listen, self._http_listen)
            case "reader":
                if self._reader is None or self._reader.poll() is not None:
                    self._reader = self._started_reader()
            case "worker":
                if self._worker is None or self._worker.poll() is not None:
                    arguments = ["worker", "--pool", self.pool, "--url", self.server.url]
                    self._worker = Forked([*arguments, "--log-level", LOG], stdout=self._log, stderr=self._log)

    def _started_reader(self) -> Forked:
        http = f"http://{self._http_listen}"
        if self.cell.source != "webhook":
            arguments = ["subscription", "run", PATH, "--server", http, "--log-level", LOG]
            return Forked(arguments, stdout=self._log, stderr=self._log)
        listen = f"127.0.0.1:{self._gateway_port}"
        gateway = Forked(["gateway", "--server", http, "--listen", listen, "--log-level", LOG], stderr=self._log)
        assert gateway.stdout is not None
        assert gateway.stdout.readline(), "the gateway ended at once"
        return gateway

    def hurt(self, what: str) -> None:
        """Let something happen."""
        who, how = what.split()
        self.has_died.add(who)
        match who:
            case "server":
                assert self.server.process is not None
                if how == "paused":
                    self.server.process.send_signal(signal.SIGSTOP)
                else:
                    self.server.kill()
            case "runtime" | "gateway":
                assert self._reader is not None
                self._reader.kill()
            case "worker":
                assert self._worker is not None
                self._worker.kill()
            case "broker":
                assert self._nats is not None
                self._nats.kill()
            case "bucket":
                assert self._bucket is not None
                self._bucket.kill()
            case "downstream" if how == "killed":
                self.downstream.kill()
            case "downstream":
                self.downstream.become(how)

    def heal(self) -> None:
        """Start every process that was killed, the downstream included, and end what slows it."""
        self.revive()
        self.downstream.start()

    def revive(self) -> None:
        """Start every process that was killed but the downstream."""
        if self.server.process is not None:
            self.server.process.send_signal(signal.SIGCONT)
        self.start("server")
        if "broker" in self.has_died:
            assert self._nats is not None
            self._nats.start()
        if "bucket" in self.has_died:
            assert self._bucket is not None
            self._bucket.start()
        self.start("reader")
        self.start("worker")

    def suffer(self, faults: list[Fault], messages: int, rest_s: float = 0.008) -> Sender:
        """Send messages while all of this happens; who sent them, when all are sent and everybody is well."""
        sender = Sender(self.feed, messages, rest_s)
        sender.start()
        try:
            for fault in faults:
                wait_for(lambda after=fault.after: len(sender.sent) >= after, f"{fault.after} messages to be sent")  # type: ignore[misc]
                self._until_at_work(sender)
                for what in fault.what:
                    self.hurt(what)
                time.sleep(fault.lasts_s)  # how long it lasts, not how long we hope that something takes
                self.heal()
            sender.join(300)
            assert not sender.is_alive(), f"only {len(sender.sent)} of {messages} messages could be sent"
        finally:
            sender.stop()
        return sender

    def _until_at_work(self, sender: Sender) -> None:
        """Wait until a message has become a run since the last fault: nobody is interrupted who does nothing."""
        deadline = time.monotonic() + STILL_S
        while time.monotonic() < deadline:
            begun = len(set(self._story_or_none().runs))
            if begun > self._begun or begun >= len(sender.sent):
                self._begun = begun
                return
            time.sleep(0.02)

    def _story_or_none(self) -> Story:
        try:
            return self.story
        except TapeError:
            return Story()

    # -- looking -------------------------------------------------------------------------------

    @property
    def story(self) -> Story:
        """What the journal tells by now."""
        return read_story(self.server.url)

    def command(self, *arguments: str) -> Any:
        """What a command of `tape` about the subscription says, as JSON."""
        done = tape(*arguments, "--server", self.server.http_url, "--output", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def parts(self) -> dict[str, list[int]]:
        """What lies in the spool, by part: the numbers of the messages."""
        if self.cell.mode == "off":
            return {}
        return asyncio.run(self._look())

    async def _look(self) -> dict[str, list[int]]:
        spool = parse_subscription(self._document).spec.spool
        location = open_backend(spool, PATH, self.credential)
        try:
            found = {}
            for area in (Area.LIVE, Area.DEAD, Area.QUARANTINE):
                keys = [stored.key for stored in await location.page(area, "", 10_000)]
                found[area.value] = [number_in(key, await location.get(area, key) or b"") for key in keys]
            return found
        finally:
            await location.close()

    def totals(self) -> dict[str, int]:
        """What `tape subscriptions outage` counts, all outages together."""
        stories = self.command("subscriptions", "outage", PATH, "--all", "--url", self.server.url)
        names = ("spooled", "replayed", "dead_lettered", "quarantined", "dropped", "waiting")
        return {name: sum(each[name] for each in stories) for name in names}

    def settled(self, sender: Sender, besides: Collection[int] = ()) -> bool:
        """Whether nothing is on its way any more: every message is somewhere for good, and told."""
        try:
            return self._is_settled(sender, besides)
        except (TapeError, nats.errors.Error, OSError):
            return False  # whoever was asked has only just been started

    def _is_settled(self, sender: Sender, besides: Collection[int]) -> bool:
        received = {each.number for each in self.downstream.received}
        if not {each.number for each in sender.sent} <= received | {*besides} or not self.feed.is_empty():
            return False
        story = self.story
        came = story.refs("message.spooled")
        gone = story.refs("message.replayed", "message.dead_lettered", "spool.quarantined")
        return came <= gone and not any(self.parts().get("spool", ()))


def number_in(key: str, data: bytes) -> int:
    """The number of a message in the spool: in its name where it was sent with one, which nobody can have altered."""
    if key.partition("-m")[2].isdigit():
        return int(key.partition("-m")[2])
    return int(json.loads(data)["message"]["data"]["n"])
