"""Faults of the spool backend: full, unavailable, locked, damaged."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.cells import SPOOL_ALIAS, Cell
from tests.faults.chaos import Fault
from tests.faults.conftest import Open
from tests.faults.feeds import Sender
from tests.faults.proving import judge
from tests.faults.scene import Scene
from tests.objects import SECRET, S3Server
from tests.services import wait_for

WEBHOOKS = Cell("webhook", "buffer_and_ack", "global")


def sent(scene: Scene, count: int, first: int = 0) -> Sender:
    """Messages that were all taken, while whatever is wrong is wrong."""
    sender = Sender(scene.feed, count, 0, first)
    sender.run()
    return sender


@pytest.mark.proof
def test_damaged_items_are_reported_and_block_no_others(open_scene: Open) -> None:
    scene = open_scene(WEBHOOKS)
    sender = sent(scene, 1)  # a gateway learns from its server whom it may believe
    scene.hurt("server killed")
    sender.sent += sent(scene, 12, first=1).sent
    scene.hurt("gateway killed")
    torn, altered, *_ = files = sorted((scene.folder / "spool").glob("*.json"))
    assert len(files) == 12
    torn.write_bytes(torn.read_bytes()[:100])
    altered.write_text(altered.read_text().replace('"n":2', '"n":7'))
    (scene.folder / "spool" / ".00000000000000000099-m99.tmp").write_bytes(b'{"half')
    scene.heal()
    wait_for(lambda: scene.settled(sender, besides={1, 2}), "all others to leave the spool")
    assert scene.story.runs == [0, *range(3, 13)]
    assert scene.parts()["quarantine"] == [1, 2]
    judge(scene, sender)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with little free space."""
    folder = tmp_path / "spool"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tape-faults", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system can't be mounted here: that needs root and CAP_SYS_ADMIN")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.proof
def test_on_a_full_disk_nothing_is_accepted_that_is_not_there(small_disk: Path, open_scene: Open) -> None:
    scene = open_scene(WEBHOOKS)
    sender = sent(scene, 1)
    scene.hurt("server killed")
    while len(sender.sent) < 200:
        message = sender.message(len(sender.sent))
        if not scene.feed.deliver(message):
            break
        sender.sent.append(message)
    assert 1 < len(sender.sent) < 200, "the disk did not fill up"
    scene.hurt("gateway killed")
    scene.heal()
    sender.sent += sent(scene, 3, first=len(sender.sent)).sent
    judge(scene, sender)


@pytest.mark.proof
def test_a_credential_that_was_changed_at_the_bucket_and_in_the_wallet_needs_no_restart(
    open_scene: Open, bucket_server: S3Server
) -> None:
    scene = open_scene(Cell("webhook", "buffer_and_ack", "per_key", backend="s3", probed=True))
    scene.hurt("downstream killed")
    wait_for(lambda: any(verb == "circuit.opened" for verb, _ in scene.story.events), "the circuit to open")
    sender = sent(scene, 3)
    try:
        bucket_server.change_secret("rotated")
        refused = sender.message(3)
        assert not scene.feed.deliver(refused), "a delivery was accepted that is nowhere"
        scene.credential = dict(bucket_server.credential)
        scene.set_secret(SPOOL_ALIAS, scene.credential)
        sender.sent += sent(scene, 3, first=3).sent
        scene.heal()
        judge(scene, sender)
    finally:
        bucket_server.change_secret(SECRET)


@pytest.mark.proof
def test_a_bucket_that_is_away_accepts_nothing_and_loses_nothing(open_scene: Open) -> None:
    scene = open_scene(Cell("webhook", "buffer_and_ack", "global", backend="s3"))
    sender = sent(scene, 3)
    scene.hurt("server killed")
    sender.sent += sent(scene, 3, first=3).sent
    scene.hurt("bucket killed")
    assert not scene.feed.deliver(sender.message(6)), "a delivery was accepted that is nowhere"
    scene.heal()
    sender.sent += sent(scene, 3, first=6).sent
    judge(scene, sender)


@pytest.mark.proof
def test_the_downstream_gets_every_order_when_any_process_dies(open_scene: Open) -> None:
    scene = open_scene(Cell("nats", "hybrid", "per_key", probed=True))
    what = ["downstream broken", "worker killed", "downstream dying", "server killed", "downstream killed"]
    what += ["downstream slow", "runtime killed", "downstream dying", "broker killed", "worker killed"]
    faults = [Fault(10 * (number + 1), (each,), 0.3) for number, each in enumerate(what)]
    judge(scene, scene.suffer(faults, 150))
