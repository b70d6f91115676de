"""A cell from its first message to its last word: what is promised is checked, and a failure says how to repeat it."""

from __future__ import annotations

import time

from tests.faults.chaos import SEED, Fault, schedule, seed_of
from tests.faults.feeds import Sender
from tests.faults.scene import Scene
from tests.faults.story import Promise, complaints

DEADLINE_S = 300
# Seconds between two messages: traffic is steady, and goes on while the downstream is down.
REST_S = 0.05


def prove(scene: Scene, *, messages: int, faults: int) -> None:
    """Send messages while a schedule of faults runs, and check what became of each."""
    seed = seed_of()
    drawn = schedule(seed, scene.cell, messages, faults)
    try:
        judge(scene, scene.suffer(drawn, messages, REST_S))
    except BaseException as error:
        error.add_note(_described(scene, seed, drawn))
        raise


def judge(scene: Scene, sender: Sender) -> None:
    """Wait until nothing is on its way, then compare the downstream's receipts and the journal with what was sent."""
    deadline = time.monotonic() + DEADLINE_S
    damaged = scene.parts().get("quarantine", ())
    while not scene.settled(sender, damaged) and time.monotonic() < deadline:
        time.sleep(0.1)
    readers = {"runtime", "gateway", "server", "broker"} & scene.has_died
    is_strict = scene.cell.is_strict(scene.has_died)
    promise = Promise(scene.cell.ordering, scene.cell.dedup, is_strict, readers_died=bool(readers))
    story, totals = scene.story, scene.totals()
    # A runtime reports events after the fact: those of the last messages may reach the journal between both readings.
    while totals["spooled"] > len(story.refs("message.spooled")) and time.monotonic() < deadline:
        story, totals = scene.story, scene.totals()
    found = complaints(sender.sent, story, promise, scene.parts(), totals, scene.downstream.received)
    assert not found, "\n".join(found)


def _described(scene: Scene, seed: int, drawn: list[Fault]) -> str:
    log = (scene.folder / "stderr").read_text(errors="replace")[-4_000:]
    return "\n".join([f"{scene.cell}: {SEED}={seed} draws these faults again", *map(str, drawn), log])
