"""`tape subscriptions` and `tape schema`, used as a person or a script would."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked import tape
from tests.services import ServerProcess
from tests.subscriptions.documents import EXAMPLES, NATS, WEBHOOK_PUSH

PATH = "subscriptions/orders"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(f"sqlite:{tmp_path_factory.mktemp('cli') / 'tape.db'}") as server:
        yield server


def run(server: ServerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return tape("subscriptions", *arguments, "--server", server.http_url)


def test_valid_documents_are_reported_as_valid(tmp_path: Path) -> None:
    files = []
    for number, text in enumerate(EXAMPLES.values()):
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(text)
    done = tape("subscriptions", "validate", *map(str, files))
    assert done.returncode == 0, done.stderr
    assert (
        "subscriptions/orders-drain is valid: nats, scheduled pull (*/1 * * * *) to domain/process_order" in done.stdout
    )
    assert len(done.stdout.splitlines()) == len(EXAMPLES)


def test_every_problem_is_listed_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(NATS.replace("source: nats", "source: natz").replace("playbook:", "playbok:"))
    done = tape("subscriptions", "validate", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert [line.partition(": ")[2].partition(": ")[0] for line in lines] == [
        "line 4, spec.source",
        "line 9, spec.dispatch.playbok",
        "line 9, spec.dispatch.playbook",
    ]
    assert "did you mean 'playbook'?" in lines[1]
    missing = tape("subscriptions", "validate", str(tmp_path / "nowhere.yaml"))
    assert missing.returncode == 1
    assert "cannot be read" in missing.stderr


def test_a_subscription_is_registered_controlled_and_shown(server: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(NATS + "  limits: {max_dispatch_per_sec: 5}\n")
    assert f"{PATH} version 1 is REGISTERED" in run(server, "register", str(file)).stdout
    assert "version 1 is REGISTERED" in run(server, "register", str(file)).stdout  # the same text is no new version
    assert run(server, "activate", PATH, "--force").stdout == f"{PATH} is ACTIVE.\n"
    for action, state in (("pause", "PAUSED"), ("resume", "ACTIVE"), ("drain", "DRAINING")):
        assert run(server, action, PATH).stdout == f"{PATH} is {state}.\n"
    listed = json.loads(run(server, "list", "-o", "json").stdout)
    assert [(each["path"], each["state"]) for each in listed] == [(PATH, "DRAINING")]
    shown = run(server, "show", listed[0]["subscription_id"]).stdout
    assert "nats, continuous pull" in shown
    assert "5 a second" in shown
    refused = run(server, "activate", PATH)
    assert refused.returncode == 1
    assert "Cannot 'activate' a subscription in state 'DRAINING'" in refused.stderr
    run(server, "deactivate", PATH)
    assert run(server, "list").stdout == "No subscriptions are registered.\n"
    assert PATH in run(server, "list", "--all").stdout
    unknown = run(server, "show", "subscriptions/nothing")
    assert "no subscription 'subscriptions/nothing' is registered" in unknown.stderr


def test_a_push_subscription_is_shown_with_its_endpoint(server: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "stripe.yaml"
    file.write_text(WEBHOOK_PUSH)
    assert run(server, "register", str(file)).returncode == 0
    assert "/ingress/stripe" in run(server, "show", "subscriptions/stripe-webhook").stdout
    run(server, "deactivate", "subscriptions/stripe-webhook")  # the server is shared


def test_an_unreachable_server_is_reported_in_one_sentence() -> None:
    done = tape("subscriptions", "list", "--server", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "TAPE-1602" in done.stderr


def test_the_schema_is_printed_for_editors() -> None:
    made = json.loads(tape("schema", "subscription").stdout)
    assert made["title"] == "Subscription"
    assert "spec" in made["properties"]
