"""Public names of budgets: what a run may spend."""

from tape.durable.budgets import Budget, budget_from_run_config, with_budget

__all__ = ["Budget", "budget_from_run_config", "with_budget"]
