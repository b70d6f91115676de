"""Budgets: what a run may spend, in dollars and in tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tape.errors import InvalidInput, MissingExtra

# Where a framework's run configuration carries a budget.
KEY = "tape.budget"


@dataclass(frozen=True)
class Budget:
    """Caps of a run; 0 is no cap. `usd_per_million_tokens` converts tokens to dollars where no price is reported."""

    usd_cap: float = 0.0
    token_cap: int = 0
    usd_per_million_tokens: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 0:
                raise InvalidInput(f"{name} {value!r} must not be negative; 0 is no cap.")

    def usd_of(self, tokens: int) -> float:
        """What that many tokens cost."""
        return tokens * self.usd_per_million_tokens / 1_000_000


def with_budget(*, usd_cap: float = 0.0, token_cap: int = 0, usd_per_million_tokens: float = 0.0) -> Any:
    """A run configuration of google-adk that carries a budget.

    `runner.run_async(..., run_config=tape.with_budget(usd_cap=2.0))`
    """
    try:
        from google.adk.agents.run_config import RunConfig
    except ImportError:
        raise MissingExtra("with_budget", "adk") from None
    return RunConfig(custom_metadata={KEY: asdict(Budget(usd_cap, token_cap, usd_per_million_tokens))})


def budget_from_run_config(run_config: Any) -> Budget | None:
    """The budget that `with_budget` put into a run configuration, or None."""
    metadata = run_config if isinstance(run_config, Mapping) else getattr(run_config, "custom_metadata", None)
    carried = (metadata or {}).get(KEY)
    if carried is None or isinstance(carried, Budget):
        return carried
    if not isinstance(carried, Mapping) or set(carried) - set(asdict(Budget())):
        raise InvalidInput(f"{KEY} {carried!r} of the run configuration is not a budget; use tape.with_budget(...).")
    return Budget(**carried)
