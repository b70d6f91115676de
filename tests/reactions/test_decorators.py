"""Declaring reactions: patterns, kinds, ids that stay, and what cannot be declared."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import tape
from tape.errors import DuplicateReaction, InvalidPattern, InvalidReaction, InvalidSubject
from tape.reactions import ReactionDef, get_registry, on, on_gate, on_run, on_value_change
from tape.reactions.decorators import stable_id
from tape.server.server import Server


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    kept = list(get_registry())
    get_registry().clear()
    yield
    get_registry()[:] = kept


def only() -> ReactionDef:
    (found,) = get_registry()
    return found


@pytest.mark.parametrize(
    ("declare", "pattern"),
    [
        (tape.on_value_change("treasury"), "/tape/value/changed/treasury/*"),
        (tape.on_value_change("treasury", "fx_rate"), "/tape/value/changed/treasury/fx_rate"),
        (tape.on_value_change("a/b", "user:42 é"), "/tape/value/changed/a%2Fb/user:42%20%C3%A9"),
        (tape.on_value_deleted("treasury", key="k"), "/tape/value/deleted/treasury/k"),
        (tape.on_effect_confirmed("pay"), "/tape/effect/confirmed/pay/*"),
        (tape.on_effect_failed(), "/tape/effect/failed/*/*"),
        (tape.on_effect_unknown("pay"), "/tape/effect/unknown/pay/*"),
        (tape.on_decision_recorded(), "/tape/decision/recorded/*/*"),
        (tape.on_gate("approve"), "/tape/gate/released/approve/*"),
        (tape.on_gate("approve", "waiting"), "/tape/gate/waiting/approve/*"),
        (tape.on_run(), "/tape/run/terminal/*/*/*/*"),
        (tape.on_run("FAILED"), "/tape/run/failed/*/*/*/*"),
    ],
)
def test_each_decorator_has_its_pattern(declare: object, pattern: str) -> None:
    @declare  # type: ignore[operator]
    def handler(envelope: object) -> None: ...

    assert only().subject_pattern == pattern
    assert only().handler is handler
    assert only().handler_kind == 2


def test_the_kind_follows_from_what_is_given() -> None:
    @tape.on("/tape/a/b", agent="pricing")
    def one() -> None: ...

    @tape.on("/tape/a/b", publish="nats://host/subject")
    def two() -> None: ...

    assert [(known.handler_kind, known.agent_app, known.publish_target) for known in get_registry()] == [
        (1, "pricing", ""),
        (3, "", "nats://host/subject"),
    ]


def test_defaults_are_those_of_the_contract() -> None:
    on("/tape/a/b")(lambda envelope: None)
    known = only()
    assert (known.max_concurrency, known.rate_limit_per_s, known.debounce_ms) == (1, 0, 0)
    assert (known.retry_max, known.retry_backoff_ms, known.dlq_after_n, known.num_shards) == (5, 1000, 5, 1)
    assert (known.predicate_cel, known.server_reaction_id) == ("", "")


def test_an_id_is_made_of_module_function_and_pattern() -> None:
    def handler(envelope: object) -> None: ...

    one, same, other = (stable_id(handler, pattern) for pattern in ("/tape/a", "/tape/a", "/tape/b"))
    assert one == same != other
    assert one.startswith("tests.reactions.test_decorators.")
    on("/tape/a", reaction_id="mine")(handler)
    assert only().reaction_id == "mine"


def test_a_program_has_the_same_ids_as_the_module_it_is(tmp_path: Path) -> None:
    (tmp_path / "my_handlers.py").write_text(
        textwrap.dedent(
            """
            import tape

            @tape.on("/tape/order/**")
            def ship(envelope): ...

            print(tape.reactions.get_registry()[0].reaction_id)
            """
        )
    )

    def output(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=240
        )
        return done.stdout

    assert output("my_handlers.py") == output("-m", "my_handlers") == output("-c", "import my_handlers")


def test_the_same_id_twice_is_refused_and_a_module_that_is_loaded_again_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "loaded_again.py").write_text("import tape\n@tape.on('/tape/a/b')\ndef f(envelope): ...\n")
    module = importlib.import_module("loaded_again")
    first = only().handler
    importlib.reload(module)
    assert only().handler is not first
    on("/tape/a/b", reaction_id="x")(lambda envelope: None)
    with pytest.raises(DuplicateReaction, match="'x' is declared twice"):
        on("/tape/c/d", reaction_id="x")(lambda envelope: None)


def test_two_functions_of_one_name_for_one_pattern_are_refused_not_lost() -> None:
    @tape.on("/tape/a/b", predicate="payload.n > 1")
    def _(envelope: object) -> None: ...

    with pytest.raises(DuplicateReaction, match="give one of them another reaction_id"):

        @tape.on("/tape/a/b", predicate="payload.n < 1")
        def _(envelope: object) -> None: ...


def test_what_makes_no_sense_is_refused_where_it_is_written() -> None:
    with pytest.raises(InvalidPattern):
        on("/tape/**/x")
    with pytest.raises(InvalidReaction, match="exclude each other"):
        on("/tape/a", agent="a", publish="nats://h/s")
    with pytest.raises(InvalidReaction, match="timeout_s -1"):
        on("/tape/a", timeout_s=-1)
    with pytest.raises(InvalidSubject, match="surrogate"):
        on_value_change("n", "\ud800")
    with pytest.raises(TypeError, match="no_such_option"):
        on_gate("g", no_such_option=1)
    assert get_registry() == []


async def test_everything_declared_is_registered_with_a_prefix(server: Server) -> None:
    import asyncio

    on_run("failed", reaction_id="a", max_concurrency=7, strict_order=True)(lambda envelope: None)
    tape.on("/tape/x/y", reaction_id="b", publish="kafka://host/topic")(lambda: None)
    url = f"tape://{server.grpc_address}"
    registered = await asyncio.to_thread(tape.reactions.register_all, url, prefix="acme-")
    assert [reaction.reaction_id for reaction in registered] == ["acme-a", "acme-b"]
    assert [known.server_reaction_id for known in get_registry()] == ["acme-a", "acme-b"]
    assert (registered[0].max_concurrency, registered[0].strict_order) == (7, True)
    async with tape.AsyncTapeClient(url) as client:
        assert {found.reaction_id for found in (await client.list_reactions()).reactions} == {"acme-a", "acme-b"}


def test_declaring_needs_neither_grpc_nor_a_database() -> None:
    code = (
        "import sys, tape\n"
        "@tape.on('/tape/a/b')\ndef f(e): ...\n"
        "print([m for m in ('grpc', 'apsw', 'psycopg', 'msgspec') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
