"""Deliveries whose circuit changes: what is durable is accepted, whatever happens to the control state of the spool."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from tests.server.test_ingress import PUSH, Edge, at_server_and_gateway, edge, eventually
from tests.web import call

__all__ = ["edge"]

DELIVERIES = 20
# Nothing listens on port 9: the probe opens the circuit, and each delivery after it is a probe.
DEAD = ", probe_interval_ms: 1, downstream: [{name: shop, type: tcp, target: '127.0.0.1:9'}]"


def spooled(folder: Path, downstream: str = "") -> str:
    circuit = f"{{trip_after: 1, probe_after_ms: 0{downstream}}}"
    spool = f"  spool: {{mode: buffer_and_ack, backend: local_disk, path: {folder}, circuit: {circuit}}}\n"
    return PUSH.replace("dedup: {enabled: true}", "dedup: {enabled: true}\n" + spool.rstrip())


@at_server_and_gateway
async def test_twenty_first_deliveries_at_once_are_accepted_while_circuits_change(edge: Edge, tmp_path: Path) -> None:
    await edge.open(spooled(tmp_path / "spool", DEAD))
    answers = await asyncio.gather(*(edge.signed(b'{"n": %d}' % n, x_message_id=f"m{n}") for n in range(DELIVERIES)))
    assert [(answer.status, answer.json()["status"]) for answer in answers] == [(202, "accepted")] * DELIVERIES
    assert not list((tmp_path / "spool").rglob("*.tmp"))


@at_server_and_gateway
async def test_circuit_states_that_cannot_be_written_are_counted_and_fail_no_delivery(
    edge: Edge, tmp_path: Path
) -> None:
    await edge.open(spooled(tmp_path / "spool", DEAD))
    assert (await edge.signed(b"{}", x_message_id="first")).status == 202
    state = tmp_path / "spool" / "control" / "circuit-state.json"
    await eventually(lambda: exists(state))
    block(state)
    answers = await asyncio.gather(*(edge.signed(b'{"n": %d}' % n, x_message_id=f"m{n}") for n in range(DELIVERIES)))
    assert [answer.status for answer in answers] == [202] * DELIVERIES
    await eventually(lambda: counts(edge, "tape_subscription_control_unwritten_total"))


def block(state: Path) -> None:
    """Put a folder where the file is, so that no write can replace it."""
    (folder := state.with_name("folder")).mkdir()
    (folder / "inside").touch()
    while not state.is_dir():
        state.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rename(state)


async def exists(path: Path) -> bool:
    return path.exists()


async def counts(edge: Edge, metric: str) -> bool:
    shown = (await call(edge.address, "GET", "/metrics")).body.decode()
    return any(line.startswith(metric) and float(line.split()[-1]) > 0 for line in shown.splitlines())
