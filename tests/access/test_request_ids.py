"""A request id belongs to its tenant and to its content."""

from __future__ import annotations

import pytest

from tape.client import AsyncTapeClient
from tape.errors import RequestConflict
from tape.journal.journal import Journal
from tape.model.entry import Draft
from tape.server.server import Server
from tape.store import open_database
from tests.web import call


def draft(number: int, tenant: str = "") -> Draft:
    return Draft(subject=f"/tape/order/paid/{number}", payload_json=f'{{"n": {number}}}', tenant=tenant)


async def test_a_request_id_of_one_tenant_takes_nothing_away_from_another(store_url: str) -> None:
    async with open_database(store_url) as database:
        journal = Journal(database)
        assert await journal.append([draft(1, "attacker")], request_id="guessed") == range(1, 2)
        assert await journal.append([draft(2, "victim")], request_id="guessed") == range(2, 3)
        assert await journal.append([draft(2, "victim")], request_id="guessed") == range(2, 3)


async def test_a_known_request_id_with_other_content_is_a_conflict(client: AsyncTapeClient) -> None:
    assert await client.append_many([draft(1)], request_id="r") == [1]
    assert await client.append_many([draft(1)], request_id="r") == [1]
    with pytest.raises(RequestConflict, match="request_id 'r' was used for other content"):
        await client.append_many([draft(2)], request_id="r")
    with pytest.raises(RequestConflict):
        await client.append_many([draft(1), draft(1)], request_id="r")
    assert (await client.head()).global_seq == 1


async def test_the_first_write_wins_where_the_caller_says_so(client: AsyncTapeClient) -> None:
    assert await client.append_many([draft(1)], request_id="step", first_write_wins=True) == [1]
    assert await client.append_many([draft(2)], request_id="step", first_write_wins=True) == [1]


async def test_trace_and_time_are_not_content(client: AsyncTapeClient) -> None:
    traced = Draft(subject="/tape/order/paid/1", payload_json='{"n": 1}', trace_id="a" * 32, span_id="b" * 16)
    assert await client.append_many([draft(1)], request_id="r") == [1]
    assert await client.append_many([traced], request_id="r") == [1]


async def test_a_cloudevent_with_a_known_id_and_other_data_is_a_409(server: Server) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "shop", "type": "order.paid", "data": {"total": 1}}
    headers = {"content_type": "application/cloudevents+json"}
    for data, status in (({"total": 1}, 200), ({"total": 1}, 200), ({"total": 2}, 409)):
        answer = await call(server.http_address, "POST", "/v1/events", event | {"data": data}, **headers)
        assert answer.status == status
