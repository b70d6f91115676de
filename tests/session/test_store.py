"""Branches, cached effects, tokens, snapshots, and the short names."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tape import (
    AgentToken,
    EffectCache,
    ForkManager,
    H,
    InMemoryBackend,
    SessionPlugin,
    SessionSnapshot,
    SessionStore,
    TextChunk,
    TokenRegistry,
    active_cache,
    make_cancellation_callback,
    use_cache,
)
from tape.errors import InvalidInput, InvalidSnapshot
from tape.session import effects


def test_a_branch_is_a_copy_and_not_a_view() -> None:
    forks = ForkManager()
    state: dict[str, Any] = {"list": [1]}
    forks.fork("a", state, note="first")
    state["list"].append(2)
    assert forks.get("a").state == {"list": [1]}
    assert forks.get("a").metadata == {"note": "first"}
    forks.fork("b", state)
    assert forks.get("b").parent == "a"
    assert forks.active == "b"
    assert forks.switch("a").name == forks.active == "a"
    with pytest.raises(KeyError, match="'c'"):
        forks.switch("c")


def test_branches_merge_in_three_ways_and_differ_in_three() -> None:
    forks = ForkManager()
    forks.fork("a", {"x": 1, "only": 1})
    forks.fork("b", {"x": 2, "more": 2})
    assert forks.merge("a", "b") == {"x": 2, "only": 1, "more": 2}
    assert forks.merge("a", "b", strategy="intersection") == {"x": 2}
    assert forks.merge("a", "b", strategy="prefer", prefer="a")["x"] == 1
    assert forks.diff("a", "b") == {
        "only_a": {"only": 1},
        "only_b": {"more": 2},
        "only_in_a": {"only": 1},
        "only_in_b": {"more": 2},
        "different": {"x": (1, 2)},
    }
    for wrong in ({"strategy": "best"}, {"strategy": "prefer", "prefer": "c"}):
        with pytest.raises(InvalidInput):
            forks.merge("a", "b", **wrong)  # type: ignore[arg-type]
    forks.delete("b")
    assert forks.active is None
    assert [branch["name"] for branch in forks.list_branches()] == ["a"]


def test_the_oldest_branch_is_evicted_but_never_the_active_one() -> None:
    forks = ForkManager(max_branches=2)
    for name in "abc":
        forks.fork(name, {})
    assert set(forks.all()) == {"b", "c"}
    with pytest.raises(InvalidInput):
        ForkManager(max_branches=0)


def test_callbacks_save_and_restore_state() -> None:
    store = H.session_store()
    context = SimpleNamespace(state={"a": 1})
    store.auto_restore("point")(context)
    store.auto_fork("point")(context)
    context.state = {"b": 2}
    store.auto_restore("point")(context)
    assert context.state == {"a": 1, "b": 2}


def test_a_cached_effect_is_good_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(effects.time, "monotonic", lambda: now[0])
    cache = EffectCache()
    cache.put("search", "q", "answer", ttl_seconds=10)
    cache.put("search", "r", "other", scope="turn")
    found = cache.get("search", "q")
    assert found is not None
    assert found.value == "answer"
    now[0] += 10
    assert cache.get("search", "q") is None
    assert cache.summary() == {"size": 1, "hits": 1, "misses": 1}
    assert cache.clear_scope("turn") == 1
    cache.put("search", "s", 1)
    assert cache.invalidate("search") == 1
    with pytest.raises(InvalidInput):
        cache.put("search", "q", 1, ttl_seconds=0)
    with use_cache(cache):
        assert active_cache() is cache
    assert active_cache() is None


def test_a_token_says_where_to_go_on() -> None:
    registry = TokenRegistry()
    token = registry.get_or_create("writer")
    assert "armed" in repr(token)
    assert registry.cancel("writer", resume_cursor=7)
    assert token.cancelled
    assert token.resume_cursor == 7
    assert "cancelled" in repr(token)
    assert registry.reset("writer")
    assert not token.is_cancelled
    assert token.resume_cursor == 7
    assert not registry.cancel("unknown")
    assert not registry.reset("unknown")
    assert "writer" in registry
    assert (len(registry), registry.names()) == (1, ("writer",))
    assert AgentToken("a", resume_cursor=3).resume_cursor == 3


def test_a_cancelled_turn_keeps_what_it_had_done() -> None:
    token = H.cancellation_token()
    before_tool = make_cancellation_callback(token)
    token.begin_turn("write")
    token.record_event("event")
    assert before_tool(SimpleNamespace(name="bash"), {"cmd": "ls"}) is None
    token.cancel()
    assert before_tool(SimpleNamespace(name="bash"), {}) == {"error": "The turn was cancelled."}
    snapshot = token.snapshot
    assert snapshot is not None
    assert (snapshot.prompt, snapshot.events, snapshot.tool_calls) == ("write", ["event"], [("bash", {"cmd": "ls"})])
    token.reset()
    assert token.snapshot is None


def test_a_snapshot_brings_back_the_session_and_numbering_goes_on(tmp_path: Path) -> None:
    store = SessionStore()
    store.record_event(TextChunk(text="a"))
    store.fork("main", {"x": 1}, messages=["hi"])
    store.snapshot().save(tmp_path / "snapshot.json")
    loaded = SessionSnapshot.load(tmp_path / "snapshot.json")
    assert (loaded.event_count, loaded.branch_count, loaded.active_branch) == (1, 1, "main")
    again = SessionStore.from_snapshot(loaded)
    assert again.tape.events == store.tape.events
    assert again.forks.get("main") == store.forks.get("main")
    assert again.record_event(TextChunk(text="b")) == 1
    assert again.summary()["branches"] == 1
    again.clear()
    assert (again.tape.head, again.forks.size) == (0, 0)


def test_a_file_without_a_snapshot_raises(tmp_path: Path) -> None:
    for text, words in (
        ("{", "not JSON"),
        ("[]", "version None"),
        ('{"version": 9}', "version 9"),
        ('{"version": 1}', "lacks"),
    ):
        (tmp_path / "s.json").write_text(text)
        with pytest.raises(InvalidSnapshot, match=words):
            SessionSnapshot.load(tmp_path / "s.json")


async def test_the_plugin_forks_after_each_agent() -> None:
    plugin = SessionPlugin()
    await plugin.after_agent_callback(agent=SimpleNamespace(name="a"), callback_context=SimpleNamespace(state={"x": 1}))
    assert plugin.store.forks.get("auto:a").state == {"x": 1}
    quiet = H.session_plugin(auto_fork=False)
    await quiet.after_agent_callback(agent=None, callback_context=None)
    assert quiet.store.forks.size == 0


def test_short_names_make_the_parts() -> None:
    backend = InMemoryBackend()
    assert H.session_store(backend=backend).tape.backend is backend
    assert H.dispatcher().bus.buffer == []
    assert H.event_bus(3).buffer == []
    assert H.tape(5).head == 0


def test_switching_gives_the_state_of_the_branch_and_the_branch() -> None:
    forks = ForkManager()
    forks.fork("a", {"x": [1]}, messages=["hello"])
    state = forks.switch("a")
    assert state == {"x": [1]}
    assert (state.name, state.messages, state.state) == ("a", ["hello"], {"x": [1]})
    state["x"].append(2)
    assert forks.get("a").state == {"x": [1]}
    with pytest.raises(AttributeError):
        _ = state.unknown
    assert copy.deepcopy(state) == state


def test_wrong_values_of_branches_and_effects_are_value_errors() -> None:
    forks = ForkManager()
    forks.fork("a", {})
    for call in (lambda: forks.merge(), lambda: forks.merge("a", strategy="odd"), lambda: ForkManager(max_branches=0)):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(ValueError, match="ttl_seconds 0"):
        EffectCache().put("t", "k", 1, ttl_seconds=0)


def test_results_of_scopes_are_kept_apart() -> None:
    cache = EffectCache()
    cache.put("t", "k", 1, scope="user")
    cache.put("t", "k", 2)
    assert [cache.get("t", "k", scope=scope).value for scope in ("user", "session")] == [1, 2]  # type: ignore[union-attr]
    assert cache.get("t", "k").value == 2  # type: ignore[union-attr]
    assert cache.get("t", "k", scope="other") is None
    assert (cache.size, cache.invalidate("t", scope="user"), cache.size) == (2, 1, 1)
    assert cache.clear_scope("session") == 1
    assert cache.get("t", "k") is None


def test_a_snapshot_shares_nothing_with_its_session() -> None:
    store = SessionStore()
    store.record_event({"kind": "plan", "steps": ["a"]})
    store.fork("b", {"x": []})
    snapshot = store.snapshot()
    snapshot.events[0]["steps"].append("b")
    restored = SessionStore.from_snapshot(snapshot)
    restored.forks.get("b").state["x"].append(1)
    assert store.tape.events[0]["steps"] == ["a"]
    assert snapshot.branches["b"]["state"] == {"x": []}
