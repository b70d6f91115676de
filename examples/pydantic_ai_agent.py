"""A Pydantic AI agent that survives kill -9: run it again, and it asks and pays only what is not on record.

    pip install 'tape[pydantic-ai]'
    python examples/pydantic_ai_agent.py

The three lines that make it durable: the import, `TapeAgent(...)`, and a `run_id` that names the work.
"""

import os

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import tape
from tape.pydantic_ai import TapeAgent

DAY = os.environ.get("DAY", "2026-11-16")


def think(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Stands for a model: it asks for two payments, then for a note, then it is done."""
    answered = sum(isinstance(part, ToolReturnPart) for message in messages for part in message.parts)
    print(f"asking the model after {answered} results", flush=True)
    if answered == 0:
        return ModelResponse([ToolCallPart("pay", {"invoice": "i-1"}), ToolCallPart("pay", {"invoice": "i-2"})])
    if answered == 2:
        return ModelResponse([ToolCallPart("note", {"text": "both paid"})])
    return ModelResponse([TextPart("Both invoices are paid.")])


agent = TapeAgent(Agent(FunctionModel(think), name="payer"), app_name="payments")


@agent.wrapped.tool_plain
def pay(invoice: str) -> str:
    """Pay an invoice: give the bank the key, and it pays once."""
    send("pay", invoice)
    return f"paid {invoice}"


@agent.wrapped.tool_plain
def note(text: str) -> str:
    """Write a note into the ledger."""
    send("note", text)
    return "noted"


def send(what: str, about: str) -> None:
    """Stands for the other side, which recognises a key that it has seen."""
    print(
        f"bank: {what} {about} with key {tape.idempotency_key(None).partition('/')[2]}\n", end="", flush=True
    )  # whole lines: tools run side by side


def main() -> None:
    print(agent.run_sync("Pay what is due.", run_id=f"pay-{DAY}").output)


if __name__ == "__main__":
    main()
