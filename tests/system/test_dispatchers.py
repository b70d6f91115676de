"""Dispatchers as processes: killed while they hold tasks, stopped, and the example of the specification."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tape.client import TapeClient
from tape.proto import tape_pb2 as pb
from tests.forked import Forked, tape
from tests.pubsub import PubSub, emulator
from tests.services import ServerProcess, wait_for

HANDLERS = """
import asyncio, os, pathlib
import tape

def note(line):
    with open("log", "a") as log:
        log.write(line + "\\n")

@tape.on("/tape/order/**", reaction_id="orders", max_concurrency=1000, dlq_after_n=2, retry_backoff_ms=1)
async def handle(envelope):
    note(f"begun {envelope.global_seq}")
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.01)
    note(f"done {envelope.global_seq}")

@tape.on("/tape/bomb/**", reaction_id="bombs", dlq_after_n=2, retry_backoff_ms=1)
def explode(envelope):
    note("bang")
    os._exit(9)
"""


class Dispatchers:
    """`tape dispatch` processes that share a folder with their handlers and what those wrote down."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self._started: list[Forked] = []
        (folder / "handlers.py").write_text(HANDLERS)

    def start(self, *flags: str) -> Forked:
        with (self.folder / "said").open("ab") as said:
            command = ["dispatch", "handlers", "--url", self.url, "--log-level", "info", *flags]
            process = Forked(command, cwd=self.folder, stderr=said)
        self._started.append(process)
        return process

    @property
    def said(self) -> str:
        return (self.folder / "said").read_text()

    def noted(self, word: str) -> list[str]:
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.removeprefix(word).strip() for line in lines if line.startswith(word)]

    def end(self) -> None:
        for process in self._started:
            process.kill()
        sys.stderr.write(self.said)


@pytest.fixture
def url(store_url: str) -> Iterator[str]:
    with ServerProcess(store_url) as server:
        yield server.url


@pytest.fixture
def dispatchers(url: str, tmp_path: Path) -> Iterator[Dispatchers]:
    found = Dispatchers(tmp_path, url)
    yield found
    found.end()


def is_registered(client: TapeClient, reaction_id: str) -> bool:
    return any(found.reaction_id == reaction_id for found in client.list_reactions().reactions)


def test_a_dispatcher_killed_with_100_tasks_loses_none(dispatchers: Dispatchers) -> None:
    with TapeClient(dispatchers.url) as client:
        doomed = dispatchers.start("--claim-max", "100", "--lease-ms", "10000")
        wait_for(lambda: is_registered(client, "orders"), "registration")
        for number in range(100):
            client.append(f"/tape/order/paid/{number}", {"n": number})
        wait_for(lambda: len(dispatchers.noted("begun")) == 100, "100 handlers at work")
        doomed.kill()
        (dispatchers.folder / "go").touch()
        dispatchers.start("--claim-max", "100")

        def statuses() -> list[tuple[int, int]]:
            found = client.list_tasks(reaction_id="orders", limit=200).tasks
            return [(task.status, task.attempts) for task in found]

        wait_for(lambda: statuses() == [(pb.TASK_STATUS_DONE, 2)] * 100, "all of them done in their second attempt")
        assert sorted(map(int, dispatchers.noted("done"))) == list(range(1, 101))


def test_two_dispatchers_share_and_one_takes_over_when_the_other_is_killed(dispatchers: Dispatchers) -> None:
    (dispatchers.folder / "go").touch()
    with TapeClient(dispatchers.url) as client:
        first, _ = (dispatchers.start("--claim-max", "5", "--lease-ms", "10000") for _ in range(2))
        wait_for(lambda: is_registered(client, "orders"), "registration")
        for number in range(300):
            client.append(f"/tape/order/paid/{number}", {"n": number})
            if number == 150:
                first.kill()
        wait_for(lambda: len(set(dispatchers.noted("done"))) == 300, "all of them")

        def is_over() -> bool:
            found = client.list_tasks(reaction_id="orders", limit=500).tasks
            return {task.status for task in found} == {pb.TASK_STATUS_DONE}

        wait_for(is_over, "the reports")


def test_sigterm_lets_handlers_finish_and_the_process_ends_well(dispatchers: Dispatchers) -> None:
    with TapeClient(dispatchers.url) as client:
        process = dispatchers.start("--claim-max", "3")
        wait_for(lambda: is_registered(client, "orders"), "registration")
        for number in range(5):
            client.append(f"/tape/order/paid/{number}", {"n": number})
        wait_for(lambda: len(dispatchers.noted("begun")) == 3, "three handlers at work")
        process.send_signal(signal.SIGTERM)
        # Only then may they continue: a slot that is free earlier is given to another task.
        wait_for(lambda: "stopping: waiting up to" in dispatchers.said, "it to have heard")
        (dispatchers.folder / "go").touch()
        assert process.finish() == "3 done, 0 failed, 0 dead.\n"
        assert process.poll() == 0
        found = client.list_tasks(reaction_id="orders").tasks
        assert sorted((task.status, task.attempts) for task in found) == [
            (pb.TASK_STATUS_PENDING, 0),
            (pb.TASK_STATUS_PENDING, 0),
            (pb.TASK_STATUS_DONE, 1),
            (pb.TASK_STATUS_DONE, 1),
            (pb.TASK_STATUS_DONE, 1),
        ]


def test_a_handler_that_kills_its_process_ends_in_the_dead_letters(dispatchers: Dispatchers) -> None:
    with TapeClient(dispatchers.url) as client:
        process = dispatchers.start("--lease-ms", "2000")
        wait_for(lambda: is_registered(client, "bombs"), "registration")
        client.append("/tape/bomb/armed/1", {})
        assert process.wait(120) == 9
        assert dispatchers.start("--lease-ms", "2000").wait(120) == 9  # the next dispatcher crashes on the same task
        survivor = dispatchers.start("--lease-ms", "2000")

        def dead() -> list[pb.Task]:
            return list(client.list_tasks(reaction_id="bombs", status=pb.TASK_STATUS_DLQ).tasks)

        wait_for(dead, "the dead letter")
        assert "expired during attempt 2, the last one allowed" in dead()[0].last_error
        assert dispatchers.noted("bang") == ["", ""]
        assert survivor.poll() is None


def test_once_ends_by_itself_and_a_module_that_is_not_there_is_said(dispatchers: Dispatchers) -> None:
    with TapeClient(dispatchers.url) as client:
        (dispatchers.folder / "go").touch()
        assert dispatchers.start("--once").finish() == "0 done, 0 failed, 0 dead.\n"
        for number in range(3):
            client.append(f"/tape/order/paid/{number}", {})
        assert dispatchers.start("--once").finish() == "3 done, 0 failed, 0 dead.\n"
    for module in ("no_such_module", "no_such_file.py"):
        done = tape("dispatch", module, "--url", dispatchers.url, cwd=dispatchers.folder)
        assert done.returncode == 1
        assert module in done.stderr
        assert "Traceback" not in done.stderr


EXAMPLE = """
import tape

# ── declare reactions at startup ──
@tape.on_value_change("treasury", key="fx_rate",
                      predicate="double(payload.value.value_json) > 1.10",
                      max_concurrency=8, debounce_ms=500)
def reprice_book(envelope):
    # ephemeral task; this Python fn runs in the dispatcher process.
    ...

@tape.on_effect_confirmed("execute_sweep",
                          agent="treasury-followup",     # ⇒ HandlerKind.AGENT
                          max_concurrency=4)
def _():  # body is unused for agent handlers; the decorator registers the reaction
    ...

@tape.on("/tape/effect/failed/**",
         publish="pubsub://my-proj/incident-stream")    # ⇒ HandlerKind.PUBLISH
def _():
    ...

# ── run the dispatcher (in-proc reference impl) ──
tape.reactions.run_dispatcher(url="tape://localhost:7878")

# ── or, run the Pub/Sub bridge: pull tasks → publish to Pub/Sub ──
tape.reactions.run_pubsub_bridge(url="tape://localhost:7878",
                                 project="my-proj", topic="tape-tasks")
"""


def test_the_example_of_the_specification_runs_as_printed(url: str, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(EXAMPLE.replace("tape://localhost:7878", url))
    with ExitStack() as stack:
        if emulator() is not None:
            stack.enter_context(PubSub())
        client = stack.enter_context(TapeClient(url))
        process = subprocess.Popen([sys.executable, "example.py"], cwd=tmp_path)
        stack.callback(process.wait)
        stack.callback(process.kill)
        wait_for(lambda: len(client.list_reactions().reactions) == 3, "three reactions")
        ids = {reaction.handler_kind: reaction.reaction_id for reaction in client.list_reactions().reactions}

        # A function is called when its predicate holds, once for what comes close together; on a busy machine two
        # writes may be half a second apart, and are repeated.
        task_id = ids[pb.HANDLER_KIND_TASK]

        def is_repriced_once() -> bool:
            known = {task.task_id for task in client.list_tasks(reaction_id=task_id).tasks}
            for rate in ("1.05", "1.25", "1.30"):
                client.write_value(namespace="treasury", key="fx_rate", value_json=rate)

            def made() -> list[pb.Task]:
                return [task for task in client.list_tasks(reaction_id=task_id).tasks if task.task_id not in known]

            wait_for(lambda: any('"1.30"' in task.payload_json for task in made()), "the last rate")
            wait_for(lambda: {task.status for task in made()} == {pb.TASK_STATUS_DONE}, "repricing")
            assert sum(1 + task.coalesced for task in made()) == 2  # 1.05 is not above 1.10
            return len(made()) == 1

        wait_for(is_repriced_once, "two writes in one task")

        # An agent is invoked when a sweep is confirmed.
        run = client.begin_run(app_name="treasury", user_id="u", session_id="s", invocation_id="i").run_id
        effect = client.begin_effect(run_id=run, decision_index=0, tool_name="execute_sweep")
        client.complete_effect(
            run_id=run, idempotency_key=effect.idempotency_key, status=pb.EFFECT_STATUS_CONFIRMED, response_json="{}"
        )
        wait_for(lambda: len(client.list_runs(app_name="treasury-followup").runs) == 1, "the agent's run")

        # A failed effect waits for the bridge, which the program comes to when its dispatcher stops.
        failing = client.begin_effect(run_id=run, decision_index=1, tool_name="wire")
        client.complete_effect(
            run_id=run, idempotency_key=failing.idempotency_key, status=pb.EFFECT_STATUS_FAILED, error_json="{}"
        )
        publish_id = ids[pb.HANDLER_KIND_PUBLISH]
        wait_for(lambda: len(client.list_tasks(reaction_id=publish_id).tasks) == 1, "the task to publish")
        receive = _subscribe(stack) if emulator() is not None else None
        process.send_signal(signal.SIGTERM)
        if receive is None:
            pytest.skip("without Google's Pub/Sub emulator: the bridge of the example was not run")
        (message,) = receive()
        assert message.attributes["tape-event-id"] == f"{run}/{client.get_run(run).seq_cursor}"
        assert message.ordering_key == run
        wait_for(lambda: [t.status for t in client.list_tasks(reaction_id=publish_id).tasks] == [3], "the report")
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


def _subscribe(stack: ExitStack) -> object:
    from google.cloud import pubsub_v1

    publisher = pubsub_v1.PublisherClient()
    stack.callback(publisher.transport.close)
    stack.callback(publisher.stop)
    subscriber = stack.enter_context(pubsub_v1.SubscriberClient())
    topic = publisher.topic_path("my-proj", "tape-tasks")
    publisher.create_topic(name=topic)
    subscription = subscriber.subscription_path("my-proj", "tape-tasks-sub")
    subscriber.create_subscription(request={"name": subscription, "topic": topic, "enable_message_ordering": True})

    def receive() -> list[object]:
        found: list[object] = []

        def look() -> list[object]:
            answer = subscriber.pull(request={"subscription": subscription, "max_messages": 1}, timeout=120)
            found.extend(each.message for each in answer.received_messages)
            return found

        wait_for(look, "the message")
        return found

    return receive
