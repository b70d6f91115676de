"""The checkpointer passes LangGraph's conformance suite, and contents come back as they were written."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any
from uuid import uuid4

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.test_utils import generate_checkpoint, generate_config, generate_metadata

import tape
from tape.langgraph import TapeCheckpointer
from tests.services import ServerProcess

SECRET = "password=hunter2 AKIAIOSFODNN7EXAMPLE sk-abcdefghijklmnopqrstuvwxyz0123456789"


@pytest.fixture
def checkpointer(server_url: str) -> TapeCheckpointer:
    return TapeCheckpointer(server_url)


async def test_it_passes_the_conformance_suite_on_each_store(store_url: str) -> None:
    with ServerProcess(store_url) as server:

        @checkpointer_test(name=f"TapeCheckpointer on {store_url}")
        async def registered() -> AsyncGenerator[Any, None]:
            yield TapeCheckpointer(server.url)

        report = await validate(registered)
    failures = {name: result.failures for name, result in report.results.items() if result.failures}
    assert failures == {}
    assert all(result.detected and result.passed for result in report.results.values()), report.results


def put(checkpointer: TapeCheckpointer, thread: str, **values: Any) -> Any:
    checkpoint = generate_checkpoint(channel_values=values, channel_versions=dict.fromkeys(values, 1))
    return checkpointer.put(generate_config(thread), checkpoint, generate_metadata(), dict.fromkeys(values, 1))


def test_secrets_and_contents_of_several_mib_come_back_as_they_were(checkpointer: TapeCheckpointer) -> None:
    thread = str(uuid4())
    values = {"text": SECRET, "bytes": bytes(range(256)) * 12_000, "long": SECRET * 30_000, "nothing": None}
    config = put(checkpointer, thread, **values)
    found = checkpointer.get_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"] == values


def test_a_deleted_thread_is_gone_for_its_readers_and_can_begin_again(
    checkpointer: TapeCheckpointer, tape_client: tape.TapeClient
) -> None:
    thread = str(uuid4())
    config = put(checkpointer, thread, text="x" * 5_000)
    checkpointer.put_writes(config, [("a", "y" * 5_000)], "task")
    keys = [entry.payload["key"] for entry in _values(tape_client, thread)]
    assert keys
    checkpointer.delete_thread(thread)
    assert checkpointer.get_tuple(config) is None
    assert list(checkpointer.list(generate_config(thread))) == []
    for key in keys:
        assert not tape_client.get_value(namespace=f"langgraph::{thread}", key=key).found
    config = put(checkpointer, thread, text="x" * 5_000)
    found = checkpointer.get_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"text": "x" * 5_000}


def _values(client: tape.TapeClient, thread: str) -> list[Any]:
    found = []
    head = client.head().global_seq
    for entry in client.follow(""):
        if entry.run_id == f"value:langgraph::{thread}":
            found.append(entry)
        if entry.global_seq >= head:
            return found
    return found


def test_content_that_did_not_change_is_stored_once(
    checkpointer: TapeCheckpointer, server_url: str, tape_client: tape.TapeClient
) -> None:
    thread = str(uuid4())
    for each in (checkpointer, checkpointer, TapeCheckpointer(server_url)):
        put(each, thread, same="z" * 10_000)
    assert len(_values(tape_client, thread)) == 1


def test_a_thread_with_more_events_than_are_read_first_is_found(checkpointer: TapeCheckpointer) -> None:
    thread = str(uuid4())
    first = put(checkpointer, thread, n=0)
    for number in range(120):
        checkpointer.put_writes(first, [("a", number)], f"task-{number}")
    found = checkpointer.get_tuple(generate_config(thread))
    assert found is not None
    assert found.pending_writes is not None
    assert len(found.pending_writes) == 120


def test_a_configuration_without_a_thread_is_rejected(checkpointer: TapeCheckpointer) -> None:
    with pytest.raises(tape.TapeError, match="thread_id"):
        checkpointer.get_tuple({"configurable": {}})
