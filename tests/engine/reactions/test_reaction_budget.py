"""A reaction whose predicate is expensive is matched later, and delays no other reaction."""

from __future__ import annotations

from typing import Any

import pytest

from tape.client import AsyncTapeClient
from tape.engine import predicate_budget
from tape.errors import PredicateOverBudget
from tape.server.server import Server
from tests.engine.reactions.helpers import register, sources, until

# Some 40 ms of CPU for each of these payloads; true.
EXPENSIVE = "payload.map(k, k + k + k).size() > 0"
PAYLOAD = {f"k{number}": number for number in range(10_000)}
ENTRIES = 12


@pytest.fixture
def small_budget(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of a second of CPU per second for a reaction, of which 10 ms are saved: one evaluation is too much."""
    monkeypatch.setattr(predicate_budget, "SAVED_S", 0.1)
    monkeypatch.setattr(predicate_budget, "RESUMED_S", 0.05)
    budget = server.hub.predicate_budget
    budget.ms_per_s, budget.own_rate = 200, 0.1


async def stats_of(client: AsyncTapeClient, reaction_id: str) -> Any:
    return next(one for one in (await client.get_reaction_stats()).stats if one.reaction_id == reaction_id)


@pytest.mark.usefixtures("small_budget")
async def test_a_reaction_without_budget_is_put_behind_and_misses_nothing(
    server: Server, client: AsyncTapeClient
) -> None:
    await register(client, "expensive", predicate_cel=EXPENSIVE)
    await register(client, "cheap", predicate_cel='kind == "order"')
    expected = [await client.append(f"/tape/order/paid/{number}", PAYLOAD) for number in range(ENTRIES)]

    async def has_all(reaction_id: str) -> bool:
        return await sources(client, reaction_id) == expected

    await until(lambda: has_all("cheap"), "the tasks of the cheap reaction")
    await until(lambda: has_all("expensive"), "the tasks of the expensive reaction")

    async def is_caught_up() -> Any:
        return not (await stats_of(client, "expensive")).is_catching_up

    await until(is_caught_up, "the expensive reaction to be live again")
    stats = await stats_of(client, "expensive")
    assert stats.matched == ENTRIES
    assert stats.predicate_errors >= 1
    assert "has used its CPU budget (predicate_cpu_ms_per_s)" in stats.last_predicate_error
    assert server.metrics.registry.get_sample_value("tape_predicate_over_budget_total", {"kind": "reaction"}) >= 1
    assert server.metrics.registry.get_sample_value("tape_predicate_seconds_total", {"kind": "reaction"}) > 0


async def test_a_dry_run_of_an_expensive_predicate_ends_with_an_error(client: AsyncTapeClient) -> None:
    for number in range(ENTRIES):
        await client.append(f"/tape/order/paid/{number}", PAYLOAD)
    with pytest.raises(PredicateOverBudget, match="ms of CPU per entry"):
        await client.test_reaction(subject_pattern="/tape/order/**", predicate_cel=EXPENSIVE)


async def test_a_dry_run_of_a_cheap_predicate_sees_every_entry(client: AsyncTapeClient) -> None:
    for number in range(ENTRIES):
        await client.append(f"/tape/order/paid/{number}", PAYLOAD)
    answer = await client.test_reaction(subject_pattern="/tape/order/**", predicate_cel='kind == "order"')
    assert answer.matched == ENTRIES
