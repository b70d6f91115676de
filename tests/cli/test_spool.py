"""`tape spool`: what waits is listed, shown, replayed, put back and removed; what is wrong is said with its remedy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tape.base.clock import now_ms
from tape.subscriptions.api_client import Control
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef
from tape.subscriptions.routing import Plan
from tape.subscriptions.spool.backend import Area
from tape.subscriptions.spool.disk import DiskBackend
from tape.subscriptions.spool.item import SpoolItem
from tape.subscriptions.spool.spool import Arrival, Spool, SpoolRules
from tests.forked import tape
from tests.services import ServerProcess

TOKEN = "int3rnal"
NAMES = [f"m{number}" for number in range(4)]
KEYS = [f"{number + 1:020}-m{number}" for number in range(4)]


def document(folder: Path, **spool: Any) -> str:
    spec = {
        "source": "nats",
        "mode": "pull",
        "url": "nats://127.0.0.1:9",
        "stream": "S",
        "consumer": "c",
        "dispatch": {"playbook": "domain/order"},
        "spool": {"mode": "buffer_and_ack", "backend": "local_disk", "path": str(folder), "ordering": "global"} | spool,
    }
    return json.dumps({"kind": "Subscription", "metadata": {"path": "subscriptions/orders"}, "spec": spec})


def fill(folder: Path, *, dead: Sequence[str] = (), broken: Sequence[str] = ()) -> None:
    """Four messages in a folder, of which some are dead letters and some are damaged."""

    async def emit(events: Sequence[SubscriptionEvent]) -> None:
        pass

    def arrival(name: str) -> Arrival:
        plan = Plan(
            subscription="subscriptions/orders",
            source="nats",
            message_id=name,
            playbook="domain/order",
            payload={"message": None},
        )
        return Arrival(name, {"id": name, "data": {"n": name}}, msgspec_of(plan), "default", "circuit_open")

    async def work() -> None:
        backend = DiskBackend(folder)
        spool = Spool(
            SubscriptionRef("orders", "subscriptions/orders"), "nats", backend, SpoolRules(), emit=emit, now_ms=now_ms
        )
        for item in await spool.append([arrival(name) for name in NAMES]):
            assert isinstance(item, SpoolItem)
            if item.message_id in dead:
                await spool.dead_letter([(item, 0)], "max_replay_attempts")
            if item.message_id in broken:
                await backend.put(Area.LIVE, [(item.key, b"{torn")])

    asyncio.run(work())


def msgspec_of(plan: Plan) -> dict[str, Any]:
    import msgspec

    return dict(msgspec.to_builtins(plan))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    fill(tmp_path / "spool", dead=["m1", "m3"])
    (tmp_path / "orders.yaml").write_text(document(tmp_path / "spool"))
    return tmp_path / "orders.yaml"


def said(*arguments: str, stdin: str | None = None, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    done = tape("spool", *arguments, stdin=stdin, env=env, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*arguments: str, env: dict[str, str] | None = None) -> str:
    done = tape("spool", *arguments, env=env)
    assert done.returncode == 1, done.stdout
    return done.stderr


def listed(file: Path, part: str = "waiting") -> dict[str, Any]:
    return dict(json.loads(said("ls", str(file), "--part", part, "-o", "json")))


def test_ls_shows_count_bytes_and_age_of_waiting_messages(file: Path) -> None:
    found = listed(file)
    assert [each["message_id"] for each in found["messages"]] == ["m0", "m2"]
    size = sum(each.stat().st_size for each in (file.parent / "spool").glob("*.json"))
    assert (found["items"], found["bytes"]) == (2, size)
    assert found["oldest_age_seconds"] >= 0
    text = said("ls", str(file), "--limit", "1")
    assert KEYS[0] in text
    assert KEYS[2] not in text
    assert f"2 messages (… 1 more), {size:,} bytes, oldest " in text
    assert said("ls", str(file), "--part", "quarantine") == "No messages.\n"


def test_one_message_is_shown_whole(file: Path) -> None:
    shown = json.loads(said("show", str(file), KEYS[0]))
    assert (shown["message"]["data"], shown["plan"]["playbook"]) == ({"n": "m0"}, "domain/order")
    assert json.loads(said("show", str(file), KEYS[1], "--part", "dead"))["reason"] == "max_replay_attempts"


def test_a_damaged_message_is_shown_with_the_reason(tmp_path: Path) -> None:
    fill(tmp_path / "spool", broken=["m0"])
    (tmp_path / "orders.yaml").write_text(document(tmp_path / "spool"))
    done = tape("spool", "show", str(tmp_path / "orders.yaml"), KEYS[0])
    assert (done.returncode, done.stdout) == (1, "{torn\n")
    assert f"{KEYS[0]} is torn" in done.stderr


def test_dead_letters_are_requeued_by_key_or_all(file: Path) -> None:
    assert said("requeue", str(file), KEYS[1]) == "1 requeued.\n"
    assert [each["message_id"] for each in listed(file)["messages"]] == ["m0", "m1", "m2"]
    assert said("requeue", str(file), "--all") == "1 requeued.\n"
    assert (listed(file)["items"], listed(file, "dead")["items"]) == (4, 0)


def test_purge_asks_for_confirmation_and_removes_messages(file: Path) -> None:
    done = tape("spool", "purge", str(file), "--all", stdin="n\n")
    assert done.returncode == 1
    assert "Remove 2 messages (dead) permanently?" in done.stdout + done.stderr
    assert listed(file, "dead")["items"] == 2
    assert said("purge", str(file), KEYS[1], "--yes") == "1 removed.\n"
    assert said("purge", str(file), KEYS[0], "--part", "waiting", stdin="y\n").endswith("1 removed.\n")
    assert [listed(file, part)["items"] for part in ("waiting", "dead")] == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["show", "FILE", "nonsense"], "KEY 'nonsense' is not in this part of the spool; see `tape spool ls FILE"),
        (["requeue", "FILE", KEYS[0]], f"KEY '{KEYS[0]}' is not in this part of the spool; see `tape spool ls FILE"),
        (["purge", "FILE", KEYS[1], "gone", "--yes"], "KEY 'gone' is not in this part of the spool"),
        (["requeue", "FILE"], "name the keys, or use --all"),
        (["purge", "FILE", KEYS[1], "--all", "--yes"], "name the keys, or use --all"),
        (["drain", "FILE"], "is a file; `tape subscribe FILE` drains its spool at start"),
    ],
)
def test_an_unknown_key_is_named_with_the_command_that_lists_keys(
    file: Path, arguments: list[str], reason: str
) -> None:
    before = sorted(file.parent.rglob("*.json"))
    message = refused(*(each.replace("FILE", str(file)) for each in arguments))
    assert reason.replace("FILE", str(file)) in message.replace("\n", " ")
    assert sorted(file.parent.rglob("*.json")) == before


def test_an_unusable_document_or_folder_is_reported(file: Path, tmp_path: Path) -> None:
    file.write_text(document(tmp_path / "spool", mode="off"))
    assert "has no spool: its spool.mode is off" in refused("ls", str(file))
    file.write_text(document(tmp_path / "spool", mode="of"))
    assert "spec.spool.mode" in refused("ls", str(file))
    (tmp_path / "taken").write_text("")
    file.write_text(document(tmp_path / "taken"))
    assert f"The spool folder {tmp_path / 'taken'} cannot be used" in refused("requeue", str(file), "--all")


def test_the_folder_is_that_of_tape_subscribe(file: Path, tmp_path: Path) -> None:
    bucket = json.loads(document(tmp_path))
    bucket["spec"]["spool"] = {"mode": "buffer_and_ack", "backend": "gcs", "bucket": "gs://b", "credential": "c"}
    file.write_text(json.dumps(bucket))
    assert listed_in(file, "--spool-dir", str(tmp_path / "spool")) == 2
    (tmp_path / ".tape-spool").mkdir()
    (tmp_path / "spool").rename(tmp_path / ".tape-spool/orders")
    assert listed_in(file) == 2


def listed_in(file: Path, *arguments: str) -> int:
    return int(json.loads(said("ls", str(file), "-o", "json", *arguments, cwd=file.parent))["items"])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a playbook, and a token that it wants to see."""
    folder = tmp_path_factory.mktemp("shop")
    playbook = "kind: Playbook\nmetadata: {path: domain/order}\nworkflow: [{step: s, tool: {kind: value, value: 1}}]\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAPE_INTERNAL_API_TOKEN", TOKEN)
        patch.setenv("TAPE_WALLET_KEY", str(folder / "wallet.key"))
        with ServerProcess(f"sqlite:{folder}/tape.db") as server:
            Control(server.http_url, TOKEN).register_document(playbook)
            yield server


@pytest.fixture
def known(shop: ServerProcess, tmp_path: Path) -> list[str]:
    """A subscription of that server; the arguments of `tape spool` for it."""
    Control(shop.http_url, TOKEN).register_document(document(tmp_path / "spool"))
    return ["subscriptions/orders", "--server", shop.http_url]


OURS = {"TAPE_INTERNAL_API_TOKEN": TOKEN}


def test_a_drain_replays_waiting_messages_and_a_second_drain_finds_none(known: list[str], tmp_path: Path) -> None:
    fill(tmp_path / "spool", broken=["m2"])
    message = said("drain", *known, env=OURS)
    assert (message.startswith("3 replayed, 0 duplicates, 0 dead-lettered"), message.endswith("0 remaining.\n")) == (
        True,
        True,
    )
    damaged = json.loads(said("ls", *known, "--part", "quarantine", "-o", "json", env=OURS))
    assert [each["key"] for each in damaged["messages"]] == [KEYS[2]]
    report = json.loads(said("drain", *known, "-o", "json", env=OURS))
    assert (report["replayed"], report["remaining"]) == (0, 0)
    assert not list((tmp_path / "spool").glob("*.json"))


def test_a_drain_reports_remaining_messages_and_exits_with_1(known: list[str], tmp_path: Path) -> None:
    fill(tmp_path / "spool")
    state = {"default": {"phase": "open", "consecutive_failures": 5, "opened_at_ms": now_ms(), "trips": 1}}
    (tmp_path / "spool/control").mkdir(exist_ok=True)
    (tmp_path / "spool/control/circuit-state.json").write_text(json.dumps(state))
    done = tape("spool", "drain", *known, env=OURS)
    assert (done.returncode, done.stdout.endswith("4 remaining.\n")) == (1, True)


def test_an_unknown_subscription_is_reported_with_the_command_that_lists_them(shop: ServerProcess) -> None:
    for command in (["ls"], ["drain"], ["requeue", "--all"], ["purge", "--all", "--yes"]):
        message = refused(command[0], "subscriptions/missing", *command[1:], "--server", shop.http_url, env=OURS)
        assert "PATH|FILE 'subscriptions/missing' is neither a file nor a subscription at" in message
        assert "`tape subscriptions list`" in message.replace("\n", " ")
    assert "--spool-dir here needs a FILE" in refused(
        "ls", "subscriptions/missing", "--spool-dir", "here", "--server", shop.http_url, env=OURS
    )


def test_an_unreachable_server_and_a_wrong_token_are_reported(known: list[str]) -> None:
    away = refused("ls", "subscriptions/orders", "--server", "http://127.0.0.1:9", env=OURS)
    assert "http://127.0.0.1:9/api/catalog/resource cannot be reached" in away
    assert "Name another server with --server" in away
    wrong = refused("drain", *known, env={"TAPE_INTERNAL_API_TOKEN": "wrong"})
    assert "rejected the request" in wrong
    assert "Set TAPE_INTERNAL_API_TOKEN to the internal token" in wrong
    assert "wrong" not in wrong  # the token is never printed


def test_a_missing_or_wrong_credential_of_a_bucket_is_reported(shop: ServerProcess, known: list[str]) -> None:
    control = Control(shop.http_url, TOKEN)
    spool = {"mode": "buffer_and_ack", "backend": "s3", "bucket": "orders", "credential": "spool_key"}
    spec = json.loads(document(Path("x")))
    spec["spec"]["spool"] = spool
    control.register_document(json.dumps(spec))
    message = refused("ls", *known, env=OURS)
    assert "spool_key" in message
