"""Graphs of LangGraph: what nodes record, where interrupts wait, and what a resumed graph does."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy, Send, interrupt

import tape
from tape.base.ids import new_id
from tape.langgraph import TapeCheckpointer, TapeGraph, durable_model
from tape.proto import tape_pb2 as pb

APP = "graphs"


class State(TypedDict, total=False):
    done: Annotated[list[str], operator.add]


class Bank:
    """The other side: it counts what it gets."""

    def __init__(self) -> None:
        self.received: list[str] = []

        @tape.effect
        def pay(invoice: str) -> str:
            self.received.append(invoice)
            return invoice

        self.pay = pay

    def node(self, invoice: str) -> Any:
        return lambda _: {"done": [self.pay(invoice)]}


def chain(**nodes: Any) -> StateGraph[Any]:
    builder = StateGraph(State)
    for before, (name, node) in zip([START, *nodes], nodes.items(), strict=False):
        builder.add_node(name, node)
        builder.add_edge(before, name)
    builder.add_edge(list(nodes)[-1], END)
    return builder


def durable(builder: StateGraph[Any], url: str, **options: Any) -> TapeGraph:
    return TapeGraph(builder.compile(checkpointer=TapeCheckpointer(url)), APP, url=url, **options)


def on(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}}


def run_of(client: tape.TapeClient, invocation: str) -> pb.RunState:
    [run] = [run for run in client.list_runs(app_name=APP).runs if run.invocation_id == invocation]
    return run


def answer(client: tape.TapeClient, invocation: str, gate: str, resolution: Any, url: str) -> None:
    tape.send_signal(gate, run_id=run_of(client, invocation).run_id, resolution=resolution, url=url)


@pytest.mark.parametrize("is_async", [False, True])
async def test_interrupts_wait_at_gates_and_nothing_is_done_until_they_are_answered(
    server_url: str, tape_client: tape.TapeClient, is_async: bool
) -> None:
    bank, work = Bank(), new_id()

    def ask(_: State) -> State:
        bank.pay("before")
        first = interrupt({"amount": 7})
        second = interrupt("sure?")
        return {"done": [f"{first} {second}"]}

    graph = durable(chain(ask=ask, pay=bank.node("after")), server_url)

    async def drive() -> Any:
        arguments: Any = ({"done": []}, on(work))
        if is_async:
            return await graph.ainvoke(*arguments, run_id=work)
        return graph.invoke(*arguments, run_id=work)

    for _ in range(2):
        with pytest.raises(tape.RunParked, match="interrupt:ask:1:0"):
            await drive()
    assert bank.received == ["before"]
    assert run_of(tape_client, work).status == pb.RUN_STATUS_WAITING
    answer(tape_client, work, "interrupt:ask:1:0", {"by": "ann"}, server_url)
    with pytest.raises(tape.RunParked, match="interrupt:ask:1:1"):
        await drive()
    answer(tape_client, work, "interrupt:ask:1:1", "yes", server_url)
    assert (await drive())["done"] == ["{'by': 'ann'} yes", "after"]
    assert bank.received == ["before", "after"]
    assert run_of(tape_client, work).status == pb.RUN_STATUS_TERMINAL


def test_an_interrupt_of_a_subgraph_waits_at_a_gate(server_url: str, tape_client: tape.TapeClient) -> None:
    bank, work = Bank(), new_id()

    def ask(_: State) -> State:
        return {"done": [str(interrupt("inner?"))]}

    inner = chain(first=bank.node("inner"), ask=ask).compile()
    graph = durable(chain(outer=inner, pay=bank.node("outer")), server_url)
    with pytest.raises(tape.RunParked, match="interrupt:ask:"):
        graph.invoke({"done": []}, on(work), run_id=work)
    [gate] = tape_client.list_gates(run_id=run_of(tape_client, work).run_id).gates
    answer(tape_client, work, gate.gate_name, "yes", server_url)
    graph.invoke({"done": []}, on(work), run_id=work)
    assert bank.received == ["inner", "outer"]


def test_a_gate_in_a_node_parks_the_run_and_other_nodes_do_nothing_more(
    server_url: str, tape_client: tape.TapeClient
) -> None:
    bank, work = Bank(), new_id()

    def ask(_: State) -> State:
        try:
            return {"done": [str(tape.gate("ok")["value"])]}
        except Exception:  # what a careless node does
            return {"done": ["swallowed"]}

    graph = durable(chain(ask=ask, pay=bank.node("i-1")), server_url)
    with pytest.raises(tape.RunParked):
        graph.invoke({"done": []}, on(work), run_id=work)
    assert bank.received == []
    assert run_of(tape_client, work).status == pb.RUN_STATUS_WAITING
    answer(tape_client, work, "ok", "yes", server_url)
    assert graph.invoke({"done": []}, on(work), run_id=work)["done"] == ["yes", "i-1"]


def test_a_node_that_is_retried_or_resumed_acts_once(server_url: str) -> None:
    bank, work = Bank(), new_id()
    failures = iter([True, True, False])

    def shaky(_: State) -> State:
        bank.pay("a")
        bank.pay("b")
        if next(failures):
            raise ConnectionError("again")
        return {"done": ["ok"]}

    builder = StateGraph(State)
    policy = RetryPolicy(max_attempts=2, initial_interval=0.01, retry_on=ConnectionError)
    builder.add_node("shaky", shaky, retry_policy=policy)
    builder.add_edge(START, "shaky")
    graph = durable(builder, server_url)
    with pytest.raises(ConnectionError):
        graph.invoke({"done": []}, on(work), run_id=work)
    assert graph.invoke({"done": []}, on(work), run_id=work)["done"] == ["ok"]
    assert bank.received == ["a", "b"]


def test_tasks_side_by_side_and_subgraphs_called_by_nodes_have_keys_of_their_own(server_url: str) -> None:
    bank, work = Bank(), new_id()
    fails = [True]
    inner = chain(one=bank.node("one"), two=bank.node("two")).compile()

    def each(state: Any) -> State:
        bank.pay(state["invoice"])
        return {"done": inner.invoke({"done": []})["done"]}

    def last(_: State) -> State:
        if fails.pop():
            raise ValueError("the process is gone")
        return {}

    builder = StateGraph(State)
    builder.add_node("each", each)
    builder.add_node("last", last)
    builder.add_conditional_edges(START, lambda _: [Send("each", {"invoice": f"i-{n}"}) for n in range(3)], ["each"])
    builder.add_edge("each", "last")
    graph = durable(builder, server_url)
    with pytest.raises(ValueError, match="gone"):
        graph.invoke({"done": []}, on(work), run_id=work)
    received = sorted(bank.received)
    assert received == ["i-0", "i-1", "i-2", *["one"] * 3, *["two"] * 3]
    fails.append(False)
    graph.invoke({"done": []}, on(work), run_id=work)
    assert sorted(bank.received) == received


def test_tokens_are_charged_and_an_exceeded_budget_stops_the_run(server_url: str, tape_client: tape.TapeClient) -> None:
    usage: Any = {"input_tokens": 99, "output_tokens": 1, "total_tokens": 100}
    answers = iter([AIMessage(str(n), usage_metadata=usage) for n in range(9)])
    model, work = durable_model(GenericFakeChatModel(messages=answers)), new_id()

    def think(_: State) -> State:
        return {
            "done": [str(model.invoke("x").content), str(model.invoke("y").content), str(model.invoke("z").content)]
        }

    graph = durable(chain(think=think), server_url, budget=tape.Budget(token_cap=150))
    with pytest.raises(tape.BudgetExceeded):
        graph.invoke({"done": []}, on(work), run_id=work)
    run = run_of(tape_client, work)
    assert run.status == pb.RUN_STATUS_FAILED
    assert tape_client.charge_budget(run_id=run.run_id).tokens_spent == 200


def test_a_graph_without_a_checkpointer_or_with_another_durability_is_rejected(server_url: str) -> None:
    bank = Bank()
    with pytest.raises(tape.TapeError, match="checkpointer"):
        TapeGraph(chain(pay=bank.node("x")).compile(), url=server_url)
    with pytest.raises(tape.TapeError, match="durability"):
        durable(chain(pay=bank.node("x")), server_url).invoke({}, on("t"), durability="exit")
    with pytest.raises(tape.TapeError, match="thread_id"):
        durable(chain(pay=bank.node("x")), server_url).invoke({}, {})
    assert bank.received == []
