"""Models whose responses are decisions of the run."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator
from typing import Any

from agents.items import ModelResponse, TResponseStreamEvent
from agents.models.interface import Model, ModelProvider
from agents.usage import Usage
from openai.types.responses import Response, ResponseCompletedEvent, ResponseOutputItemDoneEvent, ResponseUsage

from tape.durable.agent_calls import AgentCalls
from tape.errors import InvalidInput
from tape.openai_agents.records import RESPONSES, conversation_of

# The calls of the agent that runs in this context.
agent_calls: contextvars.ContextVar[AgentCalls | None] = contextvars.ContextVar("tape_openai_calls", default=None)


class RecordedModel(Model):
    """A model that is asked once for each decision of the run; outside of a run it is the wrapped one."""

    def __init__(self, wrapped: Model, name: str = "") -> None:
        self.wrapped = wrapped
        self._name = name or str(getattr(wrapped, "model", "") or type(wrapped).__name__)

    async def get_response(self, *arguments: Any, **options: Any) -> ModelResponse:
        """The response on record, or the model's, recorded before it is used."""
        calls = agent_calls.get()
        if calls is None:
            return await self.wrapped.get_response(*arguments, **options)
        response, _ = await calls.decide(
            lambda: self.wrapped.get_response(*arguments, **options),
            RESPONSES,
            model=self._name,
            provider=self._provider,
            conversation=conversation_of(arguments, options),
        )
        return response

    async def stream_response(self, *arguments: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        """The events of a response, once it is on record."""
        calls = agent_calls.get()
        if calls is None:
            async for event in self.wrapped.stream_response(*arguments, **options):
                yield event
            return
        events: list[TResponseStreamEvent] = []

        async def drain() -> ModelResponse:
            final: Response | None = None
            async for event in self.wrapped.stream_response(*arguments, **options):
                events.append(event)
                if isinstance(event, ResponseCompletedEvent):
                    final = event.response
            if final is None:
                raise InvalidInput("The model's stream ended without a completed response.")
            return ModelResponse(output=final.output, usage=_usage(final.usage), response_id=final.id)

        response, is_recorded = await calls.decide(
            drain,
            RESPONSES,
            model=self._name,
            provider=self._provider,
            conversation=conversation_of(arguments, options),
        )
        for event in _events(response) if is_recorded else events:
            yield event

    @property
    def _provider(self) -> str:
        return "openai" if type(self.wrapped).__module__.startswith("agents.models.openai") else ""

    async def close(self) -> None:
        """Close the wrapped model."""
        await self.wrapped.close()

    def get_retry_advice(self, request: Any) -> Any:
        """What the wrapped model advises."""
        return self.wrapped.get_retry_advice(request)

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self.wrapped._cleanup_on_run_end(owner)


class RecordedModelProvider(ModelProvider):
    """Finds models by name, each as a `RecordedModel`."""

    def __init__(self, wrapped: ModelProvider) -> None:
        self.wrapped = wrapped

    def get_model(self, model_name: str | None) -> Model:
        """The model of that name."""
        return durable_model(self.wrapped.get_model(model_name), model_name or "")

    async def aclose(self) -> None:
        """Close the wrapped provider."""
        await self.wrapped.aclose()


def durable_model(model: Model, name: str = "") -> RecordedModel:
    """A model as a `RecordedModel`."""
    return model if isinstance(model, RecordedModel) else RecordedModel(model, name)


def _usage(reported: ResponseUsage | None) -> Usage:
    if reported is None:
        return Usage()
    return Usage(
        requests=1,
        input_tokens=reported.input_tokens,
        output_tokens=reported.output_tokens,
        total_tokens=reported.total_tokens,
    )


def _events(response: ModelResponse) -> list[TResponseStreamEvent]:
    """The end of a stream that had this response: its items, and that it is complete."""
    done: list[TResponseStreamEvent] = [
        ResponseOutputItemDoneEvent(item=item, output_index=n, sequence_number=n, type="response.output_item.done")
        for n, item in enumerate(response.output)
    ]
    usage = response.usage
    complete = Response(
        id=response.response_id or "recorded",
        created_at=0,
        model="",
        object="response",
        output=list(response.output),
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
        usage=ResponseUsage(
            input_tokens=usage.input_tokens,
            input_tokens_details=usage.input_tokens_details,
            output_tokens=usage.output_tokens,
            output_tokens_details=usage.output_tokens_details,
            total_tokens=usage.total_tokens,
        ),
    )
    return [*done, ResponseCompletedEvent(response=complete, sequence_number=len(done), type="response.completed")]
