"""Errors, environment names, reports and events in the shapes of the earlier SDKs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

import tape
from tape.compat import bus
from tape.compat.bus.identity import RunIdentity, lease_ttl_ms
from tape.compat.bus.reactors import tick_with_keys, with_keys
from tape.compat.bus.rpc_errors import as_rpc_error
from tape.compat.bus.sinks import AIPlexSink
from tape.compat.session import EventBus, WorkflowLifecyclePlugin
from tape.errors import MissingIdentity, RpcFailed, ScopeDenied, UnknownName, all_errors
from tape.proto import tape_pb2 as pb


def test_every_error_has_a_twin_that_is_an_rpc_error_and_still_itself() -> None:
    for kind in all_errors().values():
        error = kind.__new__(kind)
        error.args = ("what went wrong",)
        twin: Any = as_rpc_error(error)
        assert isinstance(twin, kind)
        assert isinstance(twin, grpc.RpcError)
        assert isinstance(twin.code(), grpc.StatusCode)
        assert (twin.code, twin.details()) == (kind.code, str(error))
        assert isinstance(twin, ValueError) or kind.status != "INVALID_ARGUMENT"
        assert as_rpc_error(twin) is twin


def test_errors_keep_their_fields() -> None:
    denied: Any = as_rpc_error(ScopeDenied(scope="bank", tool="pay", granted=["mail"]))
    assert (denied.scope, denied.tool, denied.code()) == ("bank", "pay", grpc.StatusCode.PERMISSION_DENIED)
    failed: Any = as_rpc_error(RpcFailed("DATA_LOSS: gone", "DATA_LOSS"))
    assert failed.code() is grpc.StatusCode.DATA_LOSS
    unknown: Any = as_rpc_error(UnknownName("There is no signal 'x'."))
    assert isinstance(unknown, KeyError)
    assert unknown.details() == "There is no signal 'x'."


def test_an_unreachable_server_is_unavailable() -> None:
    with bus.TapeClient("tape://127.0.0.1:1") as client:
        with pytest.raises(grpc.RpcError) as raised:
            client.get_run("r")
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
        with pytest.raises(tape.TapeError):
            client.get_run("r")


def test_every_number_of_every_enum_is_there() -> None:
    for enum in (
        pb.RunStatus,
        pb.EffectStatus,
        pb.HandlerKind,
        pb.TaskStatus,
        pb.ObligationStatus,
        pb.EffectResolution,
    ):
        for name, number in enum.items():
            assert getattr(bus, name) == number
    with pytest.raises(AttributeError):
        _ = bus.NO_SUCH_STATUS


def test_names_that_do_not_differ_are_those_of_tape() -> None:
    assert bus.RetryPolicy is tape.RetryPolicy
    assert bus.gates is tape.gates  # type: ignore[attr-defined]
    assert bus.idempotency_key is tape.idempotency_key


def test_the_identity_of_a_run_is_read_from_the_names_of_aiplex() -> None:
    env = {
        "AIPLEX_TENANT_ID": "acme",
        "AIPLEX_ACTOR": "ada",
        "AIPLEX_AGENT_ID": "desk",
        "AIPLEX_INSTANCE_ID": "i-1",
        "AIPLEX_SCOPES": "bank, mail",
        "TAPE_ACTOR": "bob",
    }
    identity = RunIdentity.from_env(env, strict=True)
    assert (identity.tenant_id, identity.actor, identity.agent_id) == ("acme", "bob", "desk")
    assert (identity.aiplex_instance_id, identity.scopes) == ("i-1", ["bank", "mail"])
    with pytest.raises(MissingIdentity):
        RunIdentity.from_env({"AIPLEX_REQUIRE_IDENTITY": "1"})


def test_the_lease_of_a_run_is_read_from_its_variable() -> None:
    assert lease_ttl_ms({}) is None
    assert lease_ttl_ms({"TAPE_LEASE_MS": " 45000 "}) == 45_000
    with pytest.raises(ValueError, match="TAPE_LEASE_MS 'soon'"):
        lease_ttl_ms({"TAPE_LEASE_MS": "soon"})


def test_the_plugin_takes_lease_and_identity_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("google.adk")
    monkeypatch.setenv("TAPE_LEASE_MS", "45000")
    monkeypatch.setenv("AIPLEX_TENANT_ID", "acme")
    plugin = bus.adk.TapePlugin("tape://127.0.0.1:1")
    assert plugin._identity.tenant_id == "acme"
    assert plugin.runs._lease_ttl_ms == 45_000


def test_the_sink_is_configured_by_the_names_of_aiplex(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIPLEX_URL", "https://aiplex.example/ingest")
    monkeypatch.setenv("AIPLEX_TENANT_ID", "acme")
    sink = AIPlexSink(agent_id="desk")
    assert (sink._identity["tenant_id"], sink._identity["agent_id"]) == ("acme", "desk")


def test_reports_get_keys_and_lose_none() -> None:
    assert with_keys({"run_id": "r", "outcome": "stuck", "effect_key": "k"}) == {
        "run_id": "r",
        "outcome": "stuck",
        "status": "stuck",
        "effect_key": "k",
        "key": "k",
    }
    assert with_keys({"outcome": "resumed", "status": "TERMINAL"})["status"] == "TERMINAL"
    assert with_keys({"outcome": "unknown", "idempotency_key": "k"}, "reconcile")["resolved"] == ""
    assert with_keys({"outcome": "already"}, "compact")["already_compacted"] is True
    assert tick_with_keys({"compact": [{"outcome": "already"}]})["compactor"][0]["already_compacted"] is True


def test_a_loop_has_one_completed_iteration() -> None:
    class LoopAgent(SimpleNamespace):
        """A loop as agent frameworks have it."""

    bus = EventBus(max_buffer=100)
    plugin = WorkflowLifecyclePlugin(bus, emit_step_events=False)
    loop = LoopAgent(name="loop", parent_agent=None)
    child = SimpleNamespace(name="child", parent_agent=loop)

    async def run() -> None:
        await plugin.before_agent_callback(agent=loop)
        for _ in range(3):
            await plugin.before_agent_callback(agent=child)
            await plugin.after_agent_callback(agent=child)
        await plugin.after_agent_callback(agent=loop)

    asyncio.run(run())
    seen = [(event.kind, event.iteration) for event in bus.buffer]
    assert seen == [("iteration_started", n) for n in range(3)] + [("iteration_completed", 2)]
