"""Spans of model and tool calls, named and described as OpenTelemetry's conventions for generative AI say.

Nothing happens unless the process has set up OpenTelemetry's SDK (extra `otel`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tape.base.telemetry.spans import are_recorded


@dataclass(frozen=True)
class TokenUsage:
    """Tokens that one model call used."""

    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def total(self) -> int:
        """Input and output together: what a budget is charged with."""
        return self.input_tokens + self.output_tokens


class GenAiSpan:
    """A span that may get what is known only after the call; without a recorder it keeps nothing."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes; those without a value are left out."""
        if self._span is not None:
            self._span.set_attributes({name: value for name, value in attributes.items() if value not in (None, "")})

    def answered(self, *, model: str, usage: TokenUsage) -> None:
        """Add what the response of a model says."""
        self.set(
            {
                "gen_ai.response.model": model,
                "gen_ai.usage.input_tokens": usage.input_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
            }
        )


@contextmanager
def model_span(*, model: str, provider: str, agent: str, attributes: Mapping[str, Any]) -> Iterator[GenAiSpan]:
    """A span around one call of a model: `chat <model>`."""
    with _span(
        "chat",
        model,
        "CLIENT",
        {
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": model,
            "gen_ai.agent.name": agent,
            **attributes,
        },
    ) as span:
        yield span


@contextmanager
def tool_span(*, tool: str, call_id: str, attributes: Mapping[str, Any]) -> Iterator[GenAiSpan]:
    """A span around one call of a tool: `execute_tool <tool>`."""
    described = {"gen_ai.tool.name": tool, "gen_ai.tool.call.id": call_id, "gen_ai.tool.type": "function"}
    with _span("execute_tool", tool, "INTERNAL", described | dict(attributes)) as span:
        yield span


@contextmanager
def _span(operation: str, name: str, kind: str, attributes: Mapping[str, Any]) -> Iterator[GenAiSpan]:
    if not are_recorded():
        yield GenAiSpan()
        return
    from opentelemetry import trace

    tracer = trace.get_tracer("tape")
    with tracer.start_as_current_span(f"{operation} {name}".strip(), kind=trace.SpanKind[kind]) as span:
        described = GenAiSpan(span)
        described.set({"gen_ai.operation.name": operation, **attributes})
        try:
            yield described
        except BaseException as error:
            described.set({"error.type": type(error).__qualname__})
            raise
