"""Failed executions begin again under their ids: what is confirmed stays, what failed is tried again."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tape.client import AsyncTapeClient
from tape.engine.executions.execute import ExecuteRequest, checked_request, execute_batch
from tape.errors import InvalidInput
from tape.model.dispatch_result import RunDispatchResult
from tape.playbooks.worker import work
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tests.engine.reactions.helpers import matched
from tests.forked import tape

PATH = "subscriptions/orders"
pytestmark = pytest.mark.usefixtures("loopback_allowed")


class Site:
    """A service that refuses what a test says."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.refused: set[str] = set()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.calls[self.path] += 1
                self.send_response(404 if self.path in site.refused else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.server.shutdown()
    site.server.server_close()


async def start(server: Server, client: AsyncTapeClient, site: Site, *names: str, record: str = "full") -> list[str]:
    """An execution for each name, with a step that succeeds and one whose path is the name."""
    steps = [
        {"step": name, "tool": {"kind": "http", "url": f"{site.url}/{path}"}, "idempotent": False}
        for name, path in (("first", "first"), ("second", "{{ input.name }}"))
    ]
    document = {"kind": "Playbook", "metadata": {"path": "domain/order"}, "workflow": steps}
    await client.register_resource(json.dumps(document), if_changed=True)
    requests = [
        checked_request(
            ExecuteRequest(
                path="domain/order",
                payload={"name": name},
                subscription=PATH,
                message_id=f"m-{name}",
                execution_pool="shared",
                record=record,
            )
        )
        for name in names
    ]
    found = await server.database.write(lambda tx: execute_batch(tx, requests))
    await matched(client)
    await work(client.url, once=True)
    return [each.run_id for each in found if isinstance(each, RunDispatchResult)]


async def status(client: AsyncTapeClient, run_id: str) -> int:
    return (await client.get_run(run_id)).status


@pytest.mark.parametrize("record", ["full", "summary"])
async def test_a_failed_run_begins_again_under_its_id_and_repeats_no_confirmed_step(
    server: Server, client: AsyncTapeClient, site: Site, record: str
) -> None:
    site.refused = {"/bad"}
    bad, good = await start(server, client, site, "bad", "good", record=record)
    assert (await status(client, bad), await status(client, good)) == (pb.RUN_STATUS_FAILED, pb.RUN_STATUS_TERMINAL)
    site.refused.clear()
    answer = await client.retry_runs(subscription=PATH)
    assert [(each.run_id, each.message_id, each.refusal) for each in answer.runs] == [(bad, "m-bad", "")]
    assert "status 404" in answer.runs[0].error
    await work(client.url, once=True)
    assert await status(client, bad) == pb.RUN_STATUS_TERMINAL
    assert site.calls == {"/first": 2, "/bad": 2, "/good": 1}
    assert list((await client.retry_runs(subscription=PATH)).runs) == []


async def test_a_dry_run_changes_nothing(server: Server, client: AsyncTapeClient, site: Site) -> None:
    site.refused = {"/bad"}
    (bad,) = await start(server, client, site, "bad")
    answer = await client.retry_runs(subscription=PATH, dry_run=True)
    assert [(each.run_id, each.refusal) for each in answer.runs] == [(bad, "")]
    assert await status(client, bad) == pb.RUN_STATUS_FAILED


async def test_the_number_of_runs_is_bounded_and_the_oldest_go_first(
    server: Server, client: AsyncTapeClient, site: Site
) -> None:
    site.refused = {"/a", "/b", "/c"}
    runs = await start(server, client, site, "a", "b", "c")
    answer = await client.retry_runs(subscription=PATH, limit=2)
    assert ([each.run_id for each in answer.runs], answer.more) == (runs[:2], True)
    with pytest.raises(InvalidInput, match="limit 1001 must lie between 0 and 1000"):
        await client.retry_runs(subscription=PATH, limit=1_001)


async def test_a_run_that_did_not_fail_or_does_not_exist_is_refused_by_name(
    server: Server, client: AsyncTapeClient, site: Site
) -> None:
    (good,) = await start(server, client, site, "good")
    answer = await client.retry_runs(run_ids=[good, "17"])
    assert [each.refusal for each in answer.runs] == ["it is TERMINAL, not FAILED", "there is no such execution"]
    with pytest.raises(InvalidInput, match="Say which runs"):
        await client.retry_runs()


async def test_a_run_whose_command_was_purged_is_refused(server: Server, client: AsyncTapeClient, site: Site) -> None:
    site.refused = {"/bad"}
    (bad,) = await start(server, client, site, "bad")
    await server.database.write(lambda tx: tx.execute("DELETE FROM tape_tasks"))
    answer = await client.retry_runs(run_ids=[bad])
    assert "no longer kept" in answer.runs[0].refusal


async def test_only_runs_that_ended_since_a_time_begin_again(
    server: Server, client: AsyncTapeClient, site: Site
) -> None:
    site.refused = {"/bad"}
    (bad,) = await start(server, client, site, "bad")
    ended_at_ms = (await client.get_run(bad)).ended_at_ms
    assert list((await client.retry_runs(subscription=PATH, ended_after_ms=ended_at_ms + 1)).runs) == []
    assert len((await client.retry_runs(subscription=PATH, ended_after_ms=ended_at_ms)).runs) == 1


async def test_the_command_shows_what_it_would_do_and_exits_with_1_if_a_run_does_not_begin_again(
    server: Server, client: AsyncTapeClient, site: Site
) -> None:
    site.refused = {"/bad"}
    bad, good = await start(server, client, site, "bad", "good")

    async def retry(*arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(tape, "runs", "retry", *arguments, "--url", client.url)

    shown = await retry("--failed", "--subscription", PATH, "--since", "2h", "--dry-run", "-o", "json")
    found = json.loads(shown.stdout)
    assert ([each["run_id"] for each in found["runs"]], found["more"], found["dry_run"]) == ([bad], False, True)
    done = await retry(bad)
    assert (done.returncode, "begins again" in done.stdout) == (0, True), done.stderr
    refused = await retry(good)
    assert (refused.returncode, "it is TERMINAL, not FAILED" in refused.stdout) == (1, True)
    for nonsense in (
        (),
        ("--failed",),
        ("--failed", "--subscription", PATH, "--since", "2 days"),
        (bad, "--since", "2h"),
    ):
        done = await retry(*nonsense)
        assert (done.returncode, "error TAPE-1001" in done.stderr) == (1, True), nonsense
