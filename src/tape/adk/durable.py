"""A durable agent in one call."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.events.event import Event
from google.adk.runners import Runner

from tape.adk.identity import RunIdentity
from tape.adk.invocation import unwrapped
from tape.adk.plugin import TapePlugin
from tape.adk.session import TapeSessionService
from tape.client.channel import DEFAULT_URL
from tape.durable.interruptions import find_interruption
from tape.errors import RunInterrupted


class DurableRunner(Runner):
    """A runner that raises Tape's errors: RunParked, RunCancelled, BudgetExceeded, EffectFailed, ….

    google-adk wraps exceptions of plugins into a RuntimeError; this runner unwraps them.
    """

    async def run_async(self, **arguments: Any) -> AsyncGenerator[Event, None]:
        """Run the agent on a message, or resume an invocation by its id; what Runner.run_async takes and yields."""
        plugin = self._plugin()
        earlier = plugin.begun_drives() if plugin is not None else frozenset()
        try:
            if arguments.get("new_message") is None and await self._is_over(**arguments):
                return
            async with aclosing(super().run_async(**arguments)) as events:
                async for event in events:
                    yield event
        except (Exception, RunInterrupted, BaseExceptionGroup) as error:
            cause = find_interruption(error) or unwrapped(error)
            if plugin is not None and isinstance(cause, RunInterrupted):
                plugin.leave(str(arguments["user_id"]), str(arguments["session_id"]), except_for=earlier)
            if cause is error:
                raise
            raise cause from error

    def _plugin(self) -> TapePlugin | None:
        return next((plugin for plugin in self.app.plugins if isinstance(plugin, TapePlugin)), None)

    async def _is_over(self, *, user_id: str, session_id: str, invocation_id: str | None = None, **_: Any) -> bool:
        """Whether the agent of an invocation has ended; if so, its run is ended.

        If a process dies between the two, google-adk does not call the plugin for the run again. (It does for an
        LlmAgent, which may have ended by transferring to another agent.)
        """
        if isinstance(self.agent, LlmAgent):
            return False
        key: dict[str, Any] = {"app_name": self.app_name, "user_id": user_id, "session_id": session_id}
        session = await self.session_service.get_session(**key)
        plugin = self._plugin()
        is_over = session is not None and any(
            event.invocation_id == invocation_id and event.author == self.agent.name and event.actions.end_of_agent
            for event in session.events
        )
        if is_over and plugin is not None and invocation_id:
            await asyncio.to_thread(plugin.runs.finish, **key, invocation_id=invocation_id)
        return is_over


def durable_app(
    *,
    name: str,
    agent: Any,
    tape_url: str | None = None,
    budget: Any | None = None,
    resumable: bool = True,
    check_cancellation: bool = True,
    identity: RunIdentity | None = None,
    require_identity: bool | None = None,
    app_kwargs: dict[str, Any] | None = None,
    runner_kwargs: dict[str, Any] | None = None,
    cancel_check_interval_s: float = 5.0,
    lease_ttl_ms: int | None = None,
) -> tuple[App, DurableRunner]:
    """An app of google-adk for an agent, and a runner for it; every invocation is a durable run.

    `tape_url` is by default `TAPE_URL`, else the server of this machine. Runs get `identity`, by default that of the
    environment; with `require_identity` an incomplete one is rejected. `app_kwargs` go to `App`
    and `runner_kwargs` to the runner; sessions are kept by the server unless `session_service` is among them.
    When a process dies, its runs can be recovered after `lease_ttl_ms` (by default two minutes).
    """
    url = tape_url or os.environ.get("TAPE_URL") or DEFAULT_URL
    if identity is None:
        identity = RunIdentity.from_env(strict=require_identity)
    elif require_identity:
        identity.validate()
    plugin = TapePlugin(
        url,
        budget=budget,
        check_cancellation=check_cancellation,
        cancel_check_interval_s=cancel_check_interval_s,
        identity=identity,
        lease_ttl_ms=lease_ttl_ms,
    )
    settings: dict[str, Any] = dict(app_kwargs or {})
    settings["plugins"] = [plugin, *settings.get("plugins", [])]
    if resumable:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that google-adk calls it experimental
            settings.setdefault("resumability_config", ResumabilityConfig(is_resumable=True))
    app = App(name=name, root_agent=agent, **settings)
    runner = DurableRunner(app=app, **{"session_service": TapeSessionService(url), **(runner_kwargs or {})})
    return app, runner
