"""Code for the macros. Each element costs as many steps as its expression has nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tape.cel.entry_view import EntryView, Run, raise_exhausted
from tape.cel.values import Fault, elements_of


def every(source: Run, slot: int, condition: Run, cost: int, at: int) -> Run:
    """`source.all(x, condition)`: one false decides, whatever errors there are beside it."""
    return _until(source, slot, condition, cost, at, decisive=False)


def some(source: Run, slot: int, condition: Run, cost: int, at: int) -> Run:
    """`source.exists(x, condition)`: one true decides, whatever errors there are beside it."""
    return _until(source, slot, condition, cost, at, decisive=True)


def _until(source: Run, slot: int, condition: Run, cost: int, at: int, *, decisive: bool) -> Run:
    def run(view: EntryView) -> bool:
        elements = _elements(source, view, at)
        locals_ = view.locals
        reason = ""
        reason_at = at
        result: bool
        for element in elements:
            view.steps -= cost
            if view.steps < 0:
                raise_exhausted(at)
            locals_[slot] = element
            try:
                result = condition(view)
                if result is decisive:
                    return decisive
            except Fault as fault:
                reason, reason_at = fault.reason, fault.at
        if reason:
            raise Fault(reason, reason_at)
        return not decisive

    return run


def exactly_one(source: Run, slot: int, condition: Run, cost: int, at: int) -> Run:
    """`source.exists_one(x, condition)`; any error is one."""

    def run(view: EntryView) -> bool:
        elements = _elements(source, view, at)
        locals_ = view.locals
        count = 0
        for element in elements:
            view.steps -= cost
            if view.steps < 0:
                raise_exhausted(at)
            locals_[slot] = element
            if condition(view):
                count += 1
        return count == 1

    return run


def transformed(source: Run, slot: int, condition: Run | None, transform: Run | None, cost: int, at: int) -> Run:
    """`source.map(x, transform)`, `source.map(x, condition, transform)` and `source.filter(x, condition)`."""

    def run(view: EntryView) -> list[Any]:
        elements = _elements(source, view, at)
        locals_ = view.locals
        made: list[Any] = []
        for element in elements:
            view.steps -= cost
            if view.steps < 0:
                raise_exhausted(at)
            locals_[slot] = element
            if condition is None or condition(view):
                made.append(element if transform is None else transform(view))
        return made

    return run


def _elements(source: Run, view: EntryView, at: int) -> Iterable[Any]:
    value = source(view)
    try:
        return elements_of(value)
    except Fault as fault:
        fault.at = at
        raise
