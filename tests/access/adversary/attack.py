"""One call as an attacker with names of the victim, and as its twin with names that do not exist."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable

import pytest

from tape.server.permissions import TOKENLESS_ROUTES, is_permitted
from tests.access.adversary.outcomes import REFUSAL_S, STREAM_S, normalized, send_http, send_rpc
from tests.access.adversary.requests import METHODS, Aim, Pick, aims, is_stream, message, request
from tests.access.adversary.world import SCOPE_SETS, SECRET, Names, World, principal_of

# Calls that do not hide the names of another tenant yet, with the reason.
PENDING: dict[str, str] = {}
# `admin` and `console:fleet` read other tenants with these by design; each such read is on the journal.
WIDENED = dict.fromkeys(
    ("POST /v1/events/list", "POST /v1/events/aggregate", "GET /v1/artifacts/", "GET /v1/events?admin"),
    ("admin", "console:fleet"),
)
# With these a caller may do the most in its tenant.
WIDE = ("admin", "service")
# Streams that are open at the same time.
STREAMS = 16

Send = Callable[[Aim, Names, Names, str, float], Awaitable[str]]


async def attack_rpc(
    world: World, method: str, scope_sets: Iterable[str] = SCOPE_SETS, *, in_frames: bool = False
) -> None:
    """Make an RPC with each set of scopes; fails if the caller learns of the victim or changes anything of it.

    In frames, the attacker makes its calls in frames and the twin by gRPC: the answers must be the same.
    """
    described = METHODS[method]

    def build(pick: Pick, choice: int) -> object:
        return message(described.input_type, pick, choice)

    async def send(aim: Aim, own: Names, other: Names, token: str, read_s: float) -> str:
        built = message(described.input_type, aim.pick(own, other), aim.choice)
        metadata = {"tape_cause": other["reaction"], "tape_lease_owner": other["owner"]} if not aim.role else {}
        is_framed = in_frames and own is world.attacker.names
        return await send_rpc(world, method, built, token, read_s=read_s, in_frames=is_framed, **metadata)

    reads_stream = described.server_streaming and not described.client_streaming
    await _Attack(world, method, send).carry_out(aims(build), scope_sets, is_stream=reads_stream)


async def attack_route(world: World, route: str, scope_sets: Iterable[str] = SCOPE_SETS) -> None:
    """Send an HTTP request with each set of scopes, as `attack_rpc` does."""

    def build(pick: Pick, choice: int) -> object:
        return request(route, pick, choice)

    async def send(aim: Aim, own: Names, other: Names, token: str, read_s: float) -> str:
        built = request(route, aim.pick(own, other), aim.choice)
        built.headers |= {"x_harbor_tenant": other["tenant"], "x_harbor_user": other["user"]}
        return await send_http(world, built, token, route=route)

    await _Attack(world, route, send).carry_out(aims(build), scope_sets, is_stream=is_stream(route))


class _Attack:
    """Makes a call as the attacker, with names of the victim, and as its twin, with names that do not exist."""

    def __init__(self, world: World, call: str, send: Send) -> None:
        self._world = world
        self._call = call
        self._send = send
        self._problems: list[str] = []

    async def carry_out(self, tried: list[Aim], scope_sets: Iterable[str], *, is_stream: bool) -> None:
        """Make the call with sets of scopes, and compare what the victim sees before and after."""
        before = self._world.seen or await self._world.snapshot()
        calls = [(label, aim) for label in scope_sets for aim in self._chosen(label, tried)]
        if is_stream:
            slots = asyncio.Semaphore(STREAMS)
            await asyncio.gather(*(self._compare_streams(*each, slots) for each in calls))
        else:
            for each in calls:
                await self._compare(*each)
        await self._world.settle()
        after = self._world.seen = await self._world.snapshot()
        self._problems += [
            f"changed: {name}\n  {before.get(name)}\n  {after[name]}"
            for name in after
            if after[name] != before.get(name)
        ]
        self._report()

    def _chosen(self, label: str, tried: list[Aim]) -> list[Aim]:
        """What to try with a set of scopes: each name alone with the widest ones, else all names at once."""
        if label in WIDENED.get(self._call, ()):
            return []
        if label in WIDE or not any(map(self._is_permitted, WIDE)):
            return tried if self._is_permitted(label) else tried[:1]
        return [aim for aim in tried if not aim.role]

    def _is_permitted(self, label: str) -> bool:
        principal = principal_of(self._world.attacker, SCOPE_SETS[label])
        return self._call in TOKENLESS_ROUTES or is_permitted(self._call, principal)

    async def _outcomes(self, label: str, aim: Aim, read_s: float = STREAM_S) -> tuple[str, str]:
        world = self._world
        foreign = await self._send(aim, world.attacker.names, world.victim.names, world.attacker.tokens[label], read_s)
        unknown = await self._send(aim, world.twin.names, world.absent, world.twin.tokens[label], read_s)
        is_shown = re.search(f'tenant"?: ?"{world.victim.names["tenant"]}"', foreign)
        if SECRET in foreign or SECRET in unknown or is_shown:
            self._problems.append(f"{label}, {aim}: shows data of the victim: {foreign[:300]}")
        return (
            normalized(foreign, world.attacker.names, world.victim.names),
            normalized(unknown, world.twin.names, world.absent),
        )

    async def _compare(self, label: str, aim: Aim) -> None:
        foreign, unknown = await self._outcomes(label, aim)
        if foreign != unknown:
            self._problems.append(f"{label}, {aim}:\n  foreign: {foreign[:600]}\n  unknown: {unknown[:600]}")

    async def _compare_streams(self, label: str, aim: Aim, slots: asyncio.Semaphore) -> None:
        """What an open stream says depends on time; whether it opens, and the text of a refusal, do not."""
        async with slots:
            foreign, unknown = await self._outcomes(label, aim)
            if foreign[:3] != unknown[:3]:  # a refusal may take longer than an open stream is read
                foreign, unknown = await self._outcomes(label, aim, REFUSAL_S)
            if foreign != unknown and not foreign[:3] == unknown[:3] == "OK ":
                self._problems.append(f"{label}, {aim}:\n  foreign: {foreign[:600]}\n  unknown: {unknown[:600]}")

    def _report(self) -> None:
        if self._call in PENDING:
            assert self._problems, f"{self._call} hides foreign names now: remove it from PENDING."
            pytest.xfail(f"{PENDING[self._call]}: {self._problems[0]}")
        assert not self._problems, "\n".join(self._problems[:12])
