"""A model with scripted responses, and agents that use it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from pydantic import PrivateAttr


def says(text: str, tokens: int = 0) -> LlmResponse:
    """A final answer."""
    return _response([types.Part(text=text)], tokens)


def calls(*wanted: tuple[str, dict[str, Any]], tokens: int = 0) -> LlmResponse:
    """An answer that asks for tools; as with many models, the calls have no ids."""
    parts = [types.Part(function_call=types.FunctionCall(name=name, args=args)) for name, args in wanted]
    return _response(parts, tokens)


def _response(parts: list[types.Part], tokens: int) -> LlmResponse:
    usage = types.GenerateContentResponseUsageMetadata(total_token_count=tokens) if tokens else None
    return LlmResponse(content=types.Content(role="model", parts=parts), usage_metadata=usage)


class Scripted(BaseLlm):
    """Answers by how many of its own answers it sees in the conversation, and remembers how often it was asked."""

    model: str = "scripted"
    answers: list[LlmResponse]
    _asked: list[int] = PrivateAttr(default_factory=list)
    _on_ask: Callable[[int], None] | None = PrivateAttr(default=None)

    @property
    def asked(self) -> list[int]:
        """Which of its answers it was asked for, in order."""
        return self._asked

    def on_ask(self, callback: Callable[[int], None]) -> Scripted:
        """Call a function whenever the model is asked."""
        self._on_ask = callback
        return self

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """The next answer; streamed, its text comes in two pieces first."""
        number = sum(1 for content in llm_request.contents if content.role == "model")
        self._asked.append(number)
        if self._on_ask:
            self._on_ask(number)
        answer = self.answers[number].model_copy(deep=True)
        text = answer.content.parts[0].text if answer.content and answer.content.parts else None
        if stream and text:
            half = len(text) // 2
            for piece in (text[:half], text[half:]):
                yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=piece)]), partial=True)
            answer.finish_reason = types.FinishReason.STOP
        yield answer


def message(text: str = "go") -> types.Content:
    """What a user says."""
    return types.Content(role="user", parts=[types.Part(text=text)])


def texts(events: list[Any]) -> list[str]:
    """What was said in events that are kept."""
    return [
        part.text
        for event in events
        if event.content and not event.partial
        for part in event.content.parts or []
        if part.text
    ]
