"""An agent of the OpenAI Agents SDK that survives kill -9: run again, it asks and pays only what is not on record.

    pip install 'tape[openai-agents]'
    OPENAI_AGENTS_DISABLE_TRACING=1 python examples/openai_agents_agent.py

The three lines that make it durable: the import, `TapeRunner` instead of `Runner`, and a `run_id` that names the
work. The conversation is kept in a `TapeSession`.
"""

import os
from typing import Any

from agents import Agent, function_tool, set_tracing_disabled
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.testing import assistant_message, function_call
from agents.usage import Usage

import tape
from tape.openai_agents import TapeRunner, TapeSession

DAY = os.environ.get("DAY", "2026-11-16")
set_tracing_disabled(True)  # the SDK would send traces to OpenAI


class Thinker(Model):
    """Stands for a model: the clerk hands off to the payer, who pays two invoices."""

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:  # noqa: A002
        """The next answer, by what has been answered."""
        answered = sum(item.get("type") == "function_call_output" for item in input)
        print(f"asking the model of the {system_instructions} after {answered} results", flush=True)
        if system_instructions == "clerk":
            output = [function_call("transfer_to_payer", {}, call_id="h")]
        elif answered == 1:
            output = [function_call("pay", {"invoice": f"i-{n}"}, call_id=f"c-{n}") for n in (1, 2)]
        else:
            output = [assistant_message("Both invoices are paid.")]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        """Not used here."""
        raise NotImplementedError


@function_tool
def pay(invoice: str) -> str:
    """Pay an invoice: give the bank the key, and it pays once."""
    print(
        f"bank: pay {invoice} with key {tape.idempotency_key(None).partition('/')[2]}\n", end="", flush=True
    )  # whole lines: tools run side by side
    return f"paid {invoice}"


payer = Agent("payer", instructions="payer", model=Thinker(), tools=[pay])
clerk = Agent("clerk", instructions="clerk", model=Thinker(), handoffs=[payer])


def main() -> None:
    runner = TapeRunner("clerks")
    try:
        result = runner.run_sync(
            clerk, "Pay what is due.", run_id=f"pay-{DAY}", session=TapeSession(DAY, app_name="clerks")
        )
        print(result.final_output)
    except tape.RunEnded as over:
        print(over)


if __name__ == "__main__":
    main()
