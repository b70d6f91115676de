"""`tape dead-letters`: one command for dead letters of every origin."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tape.client import AsyncTapeClient
from tests.engine.reactions.test_dead_letters import dead
from tests.forked import tape
from tests.services import ServerProcess


async def make_dead_letters(url: str) -> None:
    async with AsyncTapeClient(url) as client:
        await dead(client, 4)


def test_dead_letters_are_listed_grouped_previewed_redriven_and_dropped(tmp_path: Path) -> None:
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server:
        asyncio.run(make_dead_letters(server.url))

        def run(*arguments: str, code: int = 0) -> Any:
            done = tape("dead-letters", *arguments, "--url", server.url)
            assert done.returncode == code, done.stderr
            return done

        def run_json(*arguments: str) -> Any:
            return json.loads(run(*arguments, "-o", "json").stdout)

        found = run_json("list")["dead_letters"]
        assert len(found) == 4
        assert "not reached (relay, files)" in run("list").stderr
        first = run_json("list", "-n", "3")
        rest = run_json("list", "--cursor", first["next_cursor"])["dead_letters"]
        assert [each["id"] for each in (*first["dead_letters"], *rest)] == [each["id"] for each in found]
        assert {each["error"]: int(each["count"]) for each in run_json("list", "--group")["groups"]} == {
            "disk full": 2,
            "timeout": 2,
        }
        shown = run("show", found[0]["id"]).stdout
        assert "pending again with 0 attempts" in shown
        assert '{"n":' in shown.replace(" ", "")
        preview = run("redrive", "--error", "disk", "--dry-run").stdout
        assert preview.endswith("2 dead letters would be redriven.\n")
        assert len(run_json("list")["dead_letters"]) == 4
        assert run("redrive", "--error", "disk").stdout == "2 dead letters redriven.\n"
        assert "Name the dead letters" in run("redrive", code=1).stderr
        again = run("redrive", found[0]["id"], "task/nothing", code=1)
        assert "task/nothing: " in again.stderr
        assert run("drop", "--all", "--yes", "--reason", "test").stdout.endswith(" dropped.\n")
        assert run("list").stdout == "No dead letters found.\n"


def test_files_of_this_machine_are_read_without_a_server(tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    file.write_text('{"global_seq": 7, "subject": "/tape/a/b", "error": "SinkRejected: 422"}\n{"torn')
    done = tape("dead-letters", "list", "--file", str(file), "-o", "json")
    (found,) = json.loads(done.stdout)["dead_letters"]
    assert (found["id"], found["reason"], found["message_id"]) == ("relay/dead.jsonl:1", "SinkRejected: 422", "7")
    folder = tmp_path / "rejects" / "batch-1"
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text('{"reason": "no subject", "row": "{}"}\n' * 2)
    rejects = tape("dead-letters", "list", "--rejects", str(tmp_path / "rejects"), "--group", "-o", "json")
    (group,) = json.loads(rejects.stdout)["groups"]
    assert (group["origin"], group["error"], int(group["count"])) == ("ingest", "no subject", 2)
    shown = tape("dead-letters", "show", "ingest/batch-1/a.jsonl:2", "--rejects", str(tmp_path / "rejects"))
    assert "Run the ingest again with this row" in shown.stdout
    assert tape("dead-letters", "list", "--file", str(tmp_path / "nowhere")).returncode == 1
