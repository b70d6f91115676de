"""The relay: at least once, in the order of each run, with its cursor kept across every failure."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tape import Draft, TapeClient
from tape.errors import (
    CursorFileInUse,
    InvalidCursorFile,
    InvalidInput,
    InvalidPredicate,
    RefusedAddress,
    ServerUnreachable,
    SinkRejected,
    SinkUnavailable,
)
from tape.sinks import AIPlexSink, FnSink, LogSink, WebhookSink
from tape.sinks.metrics import RelayMetrics, RelayStatus
from tape.sinks.relay import outbox_relay_tick, run_event_fanout, run_outbox_relay, shard_of
from tests.forked import tape
from tests.services import ServerProcess, wait_for
from tests.sinks.receivers import HttpReceiver


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[TapeClient]:
    with TapeClient(server.url) as client:
        yield client


def fill(client: TapeClient, count: int, runs: int = 4, kind: str = "order") -> None:
    client.append_many(
        [
            Draft(subject=f"/tape/{kind}/created/{n}", run_id=f"run-{n % runs}", payload_json=f'{{"n":{n}}}')
            for n in range(count)
        ]
    )


def numbers(entries: list[Any]) -> list[int]:
    return [json.loads(entry.payload_json)["n"] for entry in entries]


class Collecting(FnSink):
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        super().__init__(self.entries.append)


class Running:
    """A relay on a thread, stopped at the end."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.stop = threading.Event()
        self.errors: list[BaseException] = []

        def run() -> None:
            try:
                run_outbox_relay(*arguments, stop=self.stop, **options)
            except BaseException as error:
                self.errors.append(error)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()


def is_reachable(client: TapeClient) -> bool:
    try:
        client.head()
    except ServerUnreachable:
        return False
    return True


def cursor_in(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_tick_publishes_what_is_there_and_the_next_goes_on(client: TapeClient, tmp_path: Path) -> None:
    fill(client, 10)
    sink, cursor = Collecting(), str(tmp_path / "cursor.json")
    assert outbox_relay_tick(client.url, sink, cursor_path=cursor, batch_limit=6) == 6
    assert cursor_in(tmp_path / "cursor.json") == {"last_global_seq": 6}
    assert outbox_relay_tick("", sink, cursor_path=cursor, client=client) == 4
    assert outbox_relay_tick(client.url, sink, cursor_path=cursor) == 0
    assert numbers(sink.entries) == list(range(10))
    fill(client, 1)
    assert outbox_relay_tick(client.url, sink, cursor_path=cursor) == 1


def test_only_what_was_asked_for_is_relayed_and_the_cursor_passes_the_rest(client: TapeClient, tmp_path: Path) -> None:
    fill(client, 10)
    fill(client, 10, kind="other")
    sink, cursor = Collecting(), str(tmp_path / "cursor.json")
    selected = {"subject_pattern": "/tape/order/**", "predicate_cel": "payload.n >= 5", "run_id": "run-1"}
    assert outbox_relay_tick(client.url, sink, cursor_path=cursor, **selected) == 2  # type: ignore[arg-type]
    assert numbers(sink.entries) == [5, 9]
    assert cursor_in(tmp_path / "cursor.json") == {"last_global_seq": 20}
    with pytest.raises(InvalidPredicate):
        outbox_relay_tick(client.url, sink, predicate_cel="payload.")


def test_once_stops_at_what_is_there(client: TapeClient, tmp_path: Path) -> None:
    fill(client, 2000)
    sink = Collecting()
    run_outbox_relay(client.url, sink, cursor_path=str(tmp_path / "c" / "cursor.json"), once=True)
    assert numbers(sink.entries) == list(range(2000))
    assert cursor_in(tmp_path / "c" / "cursor.json") == {"last_global_seq": 2000}


def test_it_stays_and_relays_what_comes_also_after_the_server_was_away(
    server: ServerProcess, client: TapeClient, tmp_path: Path
) -> None:
    fill(client, 5)
    sink = Collecting()
    with Running(server.url, sink, cursor_path=str(tmp_path / "cursor.json")):
        wait_for(lambda: len(sink.entries) == 5, "the history")
        address = server.url.removeprefix("tape://")
        server.kill()
        server.start(listen=address)
        with TapeClient(server.url) as again:
            wait_for(lambda: is_reachable(again), "the server to be back")
            fill(again, 5)
        wait_for(lambda: len(sink.entries) == 10, "what came after the restart")
    assert cursor_in(tmp_path / "cursor.json") == {"last_global_seq": 10}


def test_a_receiver_that_fails_for_a_while_gets_everything_once_and_in_order(
    client: TapeClient, http: HttpReceiver, tmp_path: Path
) -> None:
    fill(client, 50)
    outages = iter([500, 429, 503, 0] * 3)
    http.answer = lambda request: (next(outages, 200) if len(http.tries) % 5 == 0 else 200, {"Retry-After": "0"})
    metrics = RelayMetrics()
    sink = WebhookSink(http.url, max_retries=0, allow_private=True)
    cursor = str(tmp_path / "cursor.json")
    with Running(client.url, sink, cursor_path=cursor, interval_s=0.01, metrics=metrics):
        wait_for(lambda: len(http.received) == 50, "all of them")
    assert [json.loads(each.body["payload_json"])["n"] for each in http.received] == list(range(50))
    assert metrics.status.published == 50
    assert metrics.status.retries >= 3
    sink.close()


def test_a_receiver_that_was_down_is_found_again(client: TapeClient, http: HttpReceiver, tmp_path: Path) -> None:
    port = http.port
    http.close()
    fill(client, 5)
    metrics = RelayMetrics()
    sink = WebhookSink(http.url, max_retries=0, allow_private=True)
    with Running(client.url, sink, interval_s=0.01, metrics=metrics):
        wait_for(lambda: metrics.status.retries > 2, "it to try in vain")
        back = HttpReceiver(port)
        wait_for(lambda: len(back.received) == 5, "everything")
        back.close()
    sink.close()


# ── entries that are never taken ─────────────────────────────────────────────────────────────────


def refuse_seven(request: Any) -> Any:
    return (422 if json.loads(request.body["payload_json"])["n"] == 7 else 200), {}


def test_block_retries_until_the_entry_is_accepted(client: TapeClient, http: HttpReceiver, tmp_path: Path) -> None:
    fill(client, 10)
    http.answer = refuse_seven
    sink, cursor = WebhookSink(http.url, allow_private=True), str(tmp_path / "cursor.json")
    for _ in range(2):
        with pytest.raises(SinkRejected, match="422"):
            outbox_relay_tick(client.url, sink, cursor_path=cursor)
        assert cursor_in(tmp_path / "cursor.json") == {"last_global_seq": 7}
    http.answer = lambda request: (200, {})
    assert outbox_relay_tick(client.url, sink, cursor_path=cursor) == 3
    assert len(http.received) == 10
    sink.close()


def test_skip_goes_on_and_counts(client: TapeClient, http: HttpReceiver, caplog: pytest.LogCaptureFixture) -> None:
    fill(client, 10)
    http.answer = refuse_seven
    metrics = RelayMetrics()
    sink = WebhookSink(http.url, allow_private=True)
    with caplog.at_level(logging.ERROR):
        run_outbox_relay(client.url, sink, once=True, policy="skip", metrics=metrics)
    assert len(http.received) == 9
    assert metrics.status.rejected == 1
    assert "run-3/2 was rejected (policy skip)" in caplog.text
    assert metrics.registry.get_sample_value("tape_relay_skipped_total") == 1
    sink.close()


def test_dead_letters_go_to_a_file(client: TapeClient, http: HttpReceiver, tmp_path: Path) -> None:
    fill(client, 10)
    http.answer = refuse_seven
    metrics, dead_letters = RelayMetrics(), tmp_path / "dead" / "entries.jsonl"
    sink = WebhookSink(http.url, allow_private=True)
    run_outbox_relay(client.url, sink, once=True, policy="dead_letter", dead_letter=str(dead_letters), metrics=metrics)
    (dead_letter,) = [json.loads(line) for line in dead_letters.read_text().splitlines()]
    assert (dead_letter["run_id"], dead_letter["seq"], dead_letter["global_seq"]) == ("run-3", 2, 8)
    assert dead_letter["payload_json"] == '{"n":7}'
    assert dead_letter["error"].startswith("SinkRejected")
    assert metrics.registry.get_sample_value("tape_relay_dead_letters_total") == 1
    sink.close()


def test_a_dead_letter_that_cannot_be_written_keeps_the_entry(
    client: TapeClient, http: HttpReceiver, tmp_path: Path
) -> None:
    fill(client, 10)
    http.answer = refuse_seven
    sink = WebhookSink(http.url, allow_private=True)
    options: dict[str, Any] = {"policy": "dead_letter", "cursor_path": str(tmp_path / "c.json")}
    with pytest.raises(IsADirectoryError):
        outbox_relay_tick(client.url, sink, dead_letter=str(tmp_path), **options)
    assert cursor_in(tmp_path / "c.json") == {"last_global_seq": 7}
    assert outbox_relay_tick(client.url, sink, dead_letter=str(tmp_path / "dead"), **options) == 3
    assert len((tmp_path / "dead").read_text().splitlines()) == 1
    sink.close()


def test_dead_letters_go_to_a_subject_once(client: TapeClient, http: HttpReceiver, tmp_path: Path) -> None:
    fill(client, 10)
    http.answer = refuse_seven
    sink = WebhookSink(http.url, allow_private=True)
    options: dict[str, Any] = {"policy": "dead_letter", "dead_letter": "/tape/rejected/entry/orders", "once": True}
    for _ in range(2):  # without a cursor everything is published again
        run_outbox_relay(client.url, sink, subject_pattern="/tape/order/**", **options)
    follow = client.follow("/tape/rejected/**")
    dead_letter = next(follow)
    assert dead_letter.payload["seq"] == 2
    assert client.head().global_seq == 11
    follow.close()  # type: ignore[attr-defined]
    with pytest.raises(InvalidInput, match="would be relayed"):
        run_outbox_relay(client.url, sink, **options)
    sink.close()


def test_a_refused_address_ends_the_relay_whatever_the_policy(client: TapeClient, http: HttpReceiver) -> None:
    fill(client, 1)
    with pytest.raises(RefusedAddress):
        run_outbox_relay(client.url, WebhookSink(http.url), once=True, policy="skip")


def test_other_errors_of_a_sink_are_tried_again(client: TapeClient) -> None:
    fill(client, 3)
    seen: list[int] = []

    def moody(entry: Any) -> None:
        seen.append(entry.global_seq)
        if len(seen) == 2:
            raise ValueError("not now")

    run_outbox_relay(client.url, FnSink(moody), once=True, interval_s=0.01)
    assert seen == [1, 2, 2, 3]


# ── the cursor ───────────────────────────────────────────────────────────────────────────────────


def test_the_cursor_moves_only_after_the_sink_has_the_entry(client: TapeClient, tmp_path: Path) -> None:
    fill(client, 3)
    path = tmp_path / "cursor.json"
    at: list[Any] = []
    sink = FnSink(lambda entry: at.append(cursor_in(path) if path.exists() else None))
    run_outbox_relay(client.url, sink, cursor_path=str(path), once=True, batch_limit=1)
    assert at == [None, {"last_global_seq": 1}, {"last_global_seq": 2}]


def test_what_a_sink_buffers_counts_when_it_is_flushed(client: TapeClient, http: HttpReceiver, tmp_path: Path) -> None:
    fill(client, 5)
    http.answer = lambda request: (500, {})
    sink = AIPlexSink(url=http.url, max_retries=0, allow_private=True)
    cursor = str(tmp_path / "cursor.json")
    with pytest.raises(SinkUnavailable):
        outbox_relay_tick(client.url, sink, cursor_path=cursor)
    assert not (tmp_path / "cursor.json").exists()
    http.answer = lambda request: (200, {})
    assert outbox_relay_tick(client.url, sink, cursor_path=cursor) == 5
    assert [each["seq"] for batch in http.received for each in batch.body["events"]] == [1, 1, 1, 1, 2]
    sink.close()


def test_old_cursors_are_converted_without_losing_or_repeating(client: TapeClient, tmp_path: Path) -> None:
    fill(client, 200, runs=7)
    everything = Collecting()
    outbox_relay_tick(client.url, everything, batch_limit=200)
    old_order = sorted(everything.entries, key=lambda entry: (entry.ts_ms, entry.run_id, entry.seq))
    for published in (1, 57, 130, 200):
        last = old_order[published - 1]
        path = tmp_path / f"cursor-{published}.json"
        path.write_text(json.dumps({"from_ts_ms": last.ts_ms, "last_run_id": last.run_id, "last_seq": last.seq}))
        sink = Collecting()
        run_outbox_relay(client.url, sink, cursor_path=str(path), once=True)
        got = {entry.global_seq for entry in sink.entries}
        assert got == {entry.global_seq for entry in old_order[published:]}
        assert cursor_in(path) == {"last_global_seq": 200}
    late = tmp_path / "late.json"
    late.write_text(json.dumps({"from_ts_ms": old_order[-1].ts_ms + 10**9, "last_run_id": "", "last_seq": 0}))
    assert outbox_relay_tick(client.url, Collecting(), cursor_path=str(late)) == 0


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"last_global_seq": -1}', '{"last_global_seq": "7"}'])
def test_a_damaged_cursor_is_an_error_and_never_the_beginning(tmp_path: Path, text: str) -> None:
    (tmp_path / "cursor.json").write_text(text)
    with pytest.raises(InvalidCursorFile, match="Restore it"):
        outbox_relay_tick("tape://127.0.0.1:1", Collecting(), cursor_path=str(tmp_path / "cursor.json"))


def test_two_relays_never_share_a_cursor(client: TapeClient, tmp_path: Path) -> None:
    cursor = str(tmp_path / "cursor.json")
    fill(client, 1)
    sink = Collecting()
    with Running(client.url, sink, cursor_path=cursor):
        wait_for(lambda: sink.entries, "the first to run")
        with pytest.raises(CursorFileInUse):
            outbox_relay_tick(client.url, sink, cursor_path=cursor)


KILLED = """
import sys
from tape.sinks import WebhookSink
from tape.sinks.relay import run_outbox_relay
run_outbox_relay(sys.argv[1], WebhookSink(sys.argv[2], allow_private=True), cursor_path=sys.argv[3], batch_limit=16)
"""


def test_killed_between_publish_and_cursor_it_repeats_and_loses_nothing(
    client: TapeClient, http: HttpReceiver, tmp_path: Path
) -> None:
    fill(client, 300)
    reached = threading.Semaphore(0)

    def slow(request: Any) -> Any:
        reached.release()
        return 200, {}

    http.answer = slow
    arguments = [client.url, http.url, str(tmp_path / "cursor.json")]
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", KILLED, *arguments])
        for _ in range(37):  # in the middle of a batch: some are published, and the cursor does not know
            assert reached.acquire(timeout=120)
        process.send_signal(signal.SIGKILL)
        process.wait()
        while reached.acquire(blocking=False):
            pass
    sink = WebhookSink(http.url, allow_private=True)
    run_outbox_relay(client.url, sink, cursor_path=arguments[2], once=True)
    sink.close()
    counts = Counter(each.event_id for each in http.received)
    assert len(counts) == 300
    assert max(counts.values()) > 1, "the kills hit nothing"
    seen: dict[str, int] = {}
    for each in http.received:  # a receiver that drops what it knows sees each run in order
        run_id, seq = each.body["run_id"], each.body["seq"]
        if seq > seen.get(run_id, 0):
            assert seq == seen.get(run_id, 0) + 1
            seen[run_id] = seq
    assert sum(seen.values()) == 300


# ── shards, fan-out, metrics ─────────────────────────────────────────────────────────────────────


def test_shards_share_the_work_without_repeats_or_disorder(client: TapeClient) -> None:
    fill(client, 500, runs=40)
    sinks = [Collecting() for _ in range(3)]
    for shard, sink in enumerate(sinks):
        run_outbox_relay(client.url, sink, once=True, shard=shard, shards=3)
    assert all(sink.entries for sink in sinks)
    assert sorted(number for sink in sinks for number in numbers(sink.entries)) == list(range(500))
    runs = [{entry.run_id for entry in sink.entries} for sink in sinks]
    assert sum(map(len, runs)) == len(set.union(*runs)) == 40
    for sink in sinks:
        assert numbers(sink.entries) == sorted(numbers(sink.entries))
    assert shard_of("r-1", 1) == 0
    assert shard_of("", 16) == 0x811C9DC5 % 16


@pytest.mark.parametrize(
    "options",
    [
        {"shard": 2, "shards": 2},
        {"shards": 0},
        {"batch_limit": 0},
        {"interval_s": 0},
        {"policy": "hope"},
        {"policy": "dead_letter"},
        {"dead_letter": "file"},
    ],
)
def test_invalid_settings_are_rejected(options: dict[str, Any], tmp_path: Path) -> None:
    for _ in range(2):  # and leave no lock behind
        with pytest.raises(InvalidInput):
            run_outbox_relay("tape://127.0.0.1:1", Collecting(), cursor_path=str(tmp_path / "c.json"), **options)


def test_a_fan_out_calls_with_every_entry_from_a_time_on(client: TapeClient) -> None:
    fill(client, 5)
    everything = Collecting()
    outbox_relay_tick(client.url, everything)
    seen: list[Any] = []
    stop = threading.Event()
    options: dict[str, Any] = {"sink": seen.append, "stop": stop, "subject_pattern": "/tape/order/**"}
    thread = threading.Thread(target=run_event_fanout, args=(client.url,), kwargs=options)
    thread.start()
    wait_for(lambda: len(seen) == 5, "the history")
    fill(client, 5)
    wait_for(lambda: len(seen) == 10, "what came")
    stop.set()
    thread.join(120)
    assert numbers(seen) == [*range(5), *range(5)]

    def fail(entry: Any) -> None:
        raise ValueError(entry.global_seq)

    late = everything.entries[-1].ts_ms + 1
    with pytest.raises(ValueError, match=r"\d+"):
        run_event_fanout(client.url, sink=fail, from_ts_ms=min(late, seen[-1].ts_ms))


async def test_it_can_be_called_inside_a_running_loop(client: TapeClient) -> None:
    fill(client, 1)
    assert outbox_relay_tick(client.url, Collecting()) == 1
    with pytest.raises(SinkRejected):
        outbox_relay_tick(client.url, FnSink(_reject))


def _reject(entry: Any) -> None:
    raise SinkRejected("no")


def test_the_status_says_where_it_is(client: TapeClient) -> None:
    fill(client, 30)
    seen: list[RelayStatus] = []
    metrics = RelayMetrics()
    run_outbox_relay(client.url, Collecting(), once=True, metrics=metrics, on_status=seen.append)
    assert (seen[-1].position, seen[-1].lag, seen[-1].published) == (30, 0, 30)
    assert "at 30 of 30 (lag 0), 30 published" in str(seen[-1])
    assert "waiting: no" in str(RelayStatus(error="no"))
    assert metrics.registry.get_sample_value("tape_relay_published_total") == 30
    assert metrics.registry.get_sample_value("tape_relay_lag_entries") == 0


# ── the command line ─────────────────────────────────────────────────────────────────────────────


def test_the_command_relays_to_a_log(client: TapeClient, tmp_path: Path) -> None:
    fill(client, 3)
    arguments = ["relay", "--url", client.url, "--once", "--cursor", str(tmp_path / "c.json")]
    done = tape(*arguments, "--sink", "log", "--where", "payload.n > 0")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["global_seq"] for line in done.stdout.splitlines()] == [2, 3]
    assert "at 3 of 3 (lag 0), 2 published" in done.stderr
    fill(client, 1)
    done = tape(*arguments, "--sink", f"log:{tmp_path / 'log.jsonl'}")
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 1


def test_the_command_relays_to_a_webhook_and_ends_politely(
    client: TapeClient, http: HttpReceiver, tmp_path: Path
) -> None:
    fill(client, 20)
    cursor = tmp_path / "c.json"
    command = [sys.executable, "-m", "tape", "relay", "--url", client.url, "--sink", f"webhook:{http.url}"]
    command += ["--allow-private", "--cursor", str(cursor), "--header", "X-Mine: yes", "--concurrency", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(http.received) == 20, "all of them")
    wait_for(lambda: cursor.exists() and cursor_in(cursor) == {"last_global_seq": 20}, "the cursor")
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 0, errors
    assert http.received[0].headers["X-Mine"] == "yes"
    assert "20 published" in errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sink", "pigeon:coop"], "--sink 'pigeon:coop' must be"),
        (["--sink", "webhook:nowhere"], "must look like https://"),
        (["--sink", "log", "--allow-private"], "are for --sink webhook"),
        (["--sink", "log", "--shard", "3"], "--shard '3' must look like 0/4"),
        (["--sink", "log", "--policy", "hope"], "--policy 'hope'"),
        (["--sink", "webhook:https://example.com/", "--header", "x"], "'Name: value'"),
        (["--sink", "log", "--metrics-listen", "here"], "--metrics-listen 'here'"),
        (["--sink", "log", "--where", "1 +"], "TAPE-1006"),
        (["--sink", "kafka:servers-only"], "must both be given"),
        (["--sink", "pubsub:only"], "project ''"),
        (["--sink", "log::nowhere"], ":stderr, :stdout or the path"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: list[str], words: str) -> None:
    done = tape("relay", *arguments)
    assert done.returncode == 1
    assert words in " ".join(done.stderr.split())


def test_a_log_that_cannot_be_written_is_unavailable(tmp_path: Path, client: TapeClient) -> None:
    fill(client, 1)
    with pytest.raises(SinkUnavailable, match="cannot be written"):
        outbox_relay_tick(client.url, LogSink(str(tmp_path)))
