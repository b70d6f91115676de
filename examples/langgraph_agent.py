"""A LangGraph agent that survives kill -9: run it again, and it asks and pays only what is not on record.

    pip install 'tape[langgraph]'
    python examples/langgraph_agent.py

The lines that make it durable: `durable_model`, `durable_tool_node`, and `TapeGraph` with a `TapeCheckpointer`.
"""

import os
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import tools_condition

import tape
from tape.langgraph import TapeCheckpointer, TapeGraph, durable_model, durable_tool_node

DAY = os.environ.get("DAY", "2026-11-16")


class Thinker(BaseChatModel):
    """Stands for a model: it asks for two payments, then it is done."""

    _llm_type = "thinker"  # type: ignore[assignment]

    def _generate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
        answered = sum(isinstance(message, ToolMessage) for message in messages)
        print(f"asking the model after {answered} results", flush=True)
        calls = [{"name": "pay", "args": {"invoice": f"i-{n}"}, "id": f"c-{n}"} for n in (1, 2)]
        message = AIMessage("Both invoices are paid.") if answered else AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


def pay(invoice: str) -> str:
    """Pay an invoice: give the bank the key, and it pays once."""
    send("pay", invoice)
    return f"paid {invoice}"


@tape.effect
def book(text: str) -> str:
    """Write into the ledger: an effect that a node makes itself."""
    send("book", text)
    return text


def send(what: str, about: str) -> None:
    """Stands for the other side, which recognises a key that it has seen."""
    print(
        f"bank: {what} {about} with key {tape.idempotency_key(None).partition('/')[2]}\n", end="", flush=True
    )  # whole lines: tools run side by side


model = durable_model(Thinker())


def think(state: MessagesState) -> dict[str, Any]:
    return {"messages": [model.invoke(state["messages"])]}


def close(state: MessagesState) -> None:
    book(f"{len(state['messages'])} messages")


builder = StateGraph(MessagesState)
builder.add_node("think", think)
builder.add_node("tools", durable_tool_node([pay]))
builder.add_node("close", close)
builder.add_edge(START, "think")
builder.add_conditional_edges("think", tools_condition, {"tools": "tools", "__end__": "close"})
builder.add_edge("tools", "think")
graph = TapeGraph(builder.compile(checkpointer=TapeCheckpointer()), "graphs")


def main() -> None:
    config = {"configurable": {"thread_id": DAY}}
    try:
        question = {"messages": [HumanMessage("Pay what is due.")]}
        print(graph.invoke(question, config, run_id=f"pay-{DAY}")["messages"][-1].content)
    except tape.RunEnded as over:
        print(over)


if __name__ == "__main__":
    main()
