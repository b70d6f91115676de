"""`tape reactors` and its sisters, as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tape.client import TapeClient
from tape.proto import tape_pb2 as pb
from tests.forked import tape
from tests.reactors.scene import begin, effect_of, fail, owe, send, status_of
from tests.services import ServerProcess, wait_for

BIN = Path(sys.executable).parent
SHOP = """
from tape import register_compensator
from tape.connectors import LocalConnector, register

register(LocalConnector("bank", lambda amount: {"external_ref": f"tx-{amount}"}))
register_compensator("refund", lambda payload: None)

def carry_on(run):
    import os, tape
    with tape.continue_run(run, url=os.environ["TAPE_URL"]):
        pass
"""


@pytest.fixture
def client(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TapeClient]:
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    with ServerProcess(sqlite_url) as server, TapeClient(server.url) as client:
        monkeypatch.setenv("TAPE_URL", server.url)
        yield client


def test_one_pass_prints_the_outcome_of_each_item(client: TapeClient) -> None:
    paid, failed = begin(client), begin(client)
    key = send(client, paid, amount=7)
    owe(client, failed, "refund", "mystery")
    fail(client, failed)
    lost = begin(client, lease_owner="gone", lease_ttl_ms=1)
    wait_for(lambda: client.list_runs_to_recover().runs, "the lease to run out")
    command = ("reactors", "--import", "shop", "--redrive", "shop:carry_on", "--once")
    done = tape(*command, "--output", "json")
    assert done.returncode == 0, done.stderr
    reports = {each["reactor"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert (reports["outbox"]["outcome"], reports["outbox"]["reason"]) == ("confirmed", "tx-7")
    assert reports["compensations"]["outcome"] == "unregistered"
    assert (reports["recover"]["outcome"], reports["recover"]["run_id"]) == ("recovered", lost)
    assert (effect_of(client, paid, key).external_ref, status_of(client, lost)) == ("tx-7", "TERMINAL")
    text = tape(*command).stdout
    assert "connectors: bank" in text
    assert "unregistered" in text
    assert "no compensator 'mystery' in this process" in text


@pytest.mark.parametrize("program", ["tape-reactors", "tape-outbox"])
def test_a_process_runs_until_a_signal_stops_it(client: TapeClient, program: str) -> None:
    process = subprocess.Popen(
        [BIN / program, "-i", "shop", "--interval", "0.05"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    run_id = begin(client)
    key = send(client, run_id, amount=3)
    wait_for(lambda: effect_of(client, run_id, key).status == pb.EFFECT_STATUS_CONFIRMED, "the effect to be sent")
    os.kill(process.pid, signal.SIGTERM)
    reports, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "confirmed" in reports
    assert "tx-3" in reports


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("-i", "no_such_module"), "--import no_such_module: there is no such module"),
        (("--redrive", "shop"), "--redrive 'shop' must look like my_module:my_function"),
        (("--redrive", "shop:nothing"), "shop has no 'nothing'"),
        (("--redrive", "shop:carry_on", "--runner", "shop:carry_on"), "Use one of --redrive and --runner"),
        (("--once", "--url", "tape://127.0.0.1:1"), "cannot be reached"),
    ],
)
def test_a_mistake_is_one_sentence(client: TapeClient, arguments: tuple[str, ...], sentence: str) -> None:
    done = tape("reactors", *arguments)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_module_that_is_broken_shows_where(client: TapeClient, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_dependency\n")
    done = tape("reactors", "-i", "broken", "--once")
    assert "broken.py" in done.stderr
    assert "no_such_dependency" in done.stderr


def test_every_program_explains_itself() -> None:
    for program in ("tape-reactors", "tape-outbox", "tape-pubsub-sub"):
        done = subprocess.run([BIN / program, "--help"], capture_output=True, text=True)
        assert done.returncode == 0
        assert "--url" in done.stdout
