"""A compiled predicate: the one thing that subscriptions, reactions and the command line hold."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from tape.cel.celtypes import Type
from tape.cel.checker import Checked, Variable, check
from tape.cel.compiler import compile_tree
from tape.cel.entry_view import VARIABLES, EntryLike, EntryView, Run
from tape.cel.explanation import Explanation, explain
from tape.cel.failure import EvaluationError
from tape.cel.index import IndexKey, index_keys_of
from tape.cel.limits import LIMITS, PredicateLimits
from tape.cel.parser import parse
from tape.cel.syntax import Literal, Node
from tape.cel.values import Exhausted, Fault, described


class _Program(msgspec.Struct, frozen=True):
    """What a text compiles to; shared by all predicates with that text."""

    text: str
    limits: PredicateLimits
    checked: Checked
    run: Run
    index_keys: tuple[IndexKey, ...]


class Predicate:
    """A CEL text, compiled. It counts its own evaluation errors; pickling keeps the text alone."""

    __slots__ = ("_last", "_program", "_run", "_steps", "errors")

    def __init__(self, program: _Program) -> None:
        self._program = program
        self._run = program.run
        self._steps = program.limits.steps
        self._last: tuple[str, int] | None = None
        self.errors = 0

    def matches(self, entry: EntryLike | EntryView) -> bool:
        """Whether the text is true of the entry. An error means no, and is counted."""
        view = entry if type(entry) is EntryView else EntryView(entry)
        view.steps = self._steps
        try:
            result = self._run(view)
        except (Fault, Exhausted) as error:
            return self._fail(error.reason, error.at)
        except RecursionError:
            return self._fail(*_TOO_DEEP)
        if result is True or result is False:
            return result
        return self._fail(f"the predicate gives {described(result)}, not a bool", 0)

    def matches_within(self, view: EntryView, steps: int) -> bool | None:
        """As `matches`, but None if that takes more than so many steps; that is not counted as an error."""
        if steps >= self._steps:
            return self.matches(view)
        view.steps = steps
        try:
            result = self._run(view)
        except Exhausted:
            return None
        except Fault as error:
            return self._fail(error.reason, error.at)
        except RecursionError:
            return self._fail(*_TOO_DEEP)
        if result is True or result is False:
            return result
        return self._fail(f"the predicate gives {described(result)}, not a bool", 0)

    def _fail(self, reason: str, at: int) -> bool:
        self.errors += 1
        self._last = (reason, at)
        return False

    def evaluate(self, entry: EntryLike | EntryView) -> Any:
        """The value of the text for the entry, or an EvaluationError. Errors are counted."""
        view = entry if isinstance(entry, EntryView) else EntryView(entry)
        view.steps = self._steps
        try:
            return view.reveal(self._run(view))
        except (Fault, Exhausted) as error:
            self._last = (error.reason, error.at)
        except RecursionError:
            self._last = _TOO_DEEP
        self.errors += 1
        return self.last_error

    def explain(self, entry: EntryLike | EntryView) -> Explanation:
        """How the text came to its result: every sub-expression with its value, and what decided."""
        view = entry if isinstance(entry, EntryView) else EntryView(entry)
        return explain(self._program.checked, self.text, view, self._steps)

    @property
    def text(self) -> str:
        """What was compiled."""
        return self._program.text

    @property
    def tree(self) -> Node:
        """The syntax tree."""
        return self._program.checked.tree

    @property
    def result_type(self) -> Type:
        """The type of the result as far as it is known before evaluation."""
        return self._program.checked.type_of(self.tree)

    @property
    def variables(self) -> frozenset[str]:
        """The names of the variables that the text reads."""
        meanings = self._program.checked.meanings.values()
        return frozenset(meaning.name for meaning in meanings if isinstance(meaning, Variable))

    @property
    def index_keys(self) -> tuple[IndexKey, ...]:
        """Conditions on single paths that must all hold for a match; an index can be built on them."""
        return self._program.index_keys

    @property
    def last_error(self) -> EvaluationError | None:
        """The evaluation error that was counted last."""
        return None if self._last is None else EvaluationError.in_text(self._last[0], self.text, self._last[1])

    def __repr__(self) -> str:
        return f"Predicate({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Predicate) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[Any, tuple[str, PredicateLimits]]:
        return compile_predicate, (self.text, self._program.limits)


# A text of this length compiles to some 200 KB at most; longer ones are compiled anew each time.
_KEPT_LENGTH = 1_024
_TOO_DEEP = ("the values are nested too deeply", 0)


def compile_predicate(text: str, limits: PredicateLimits = LIMITS) -> Predicate:
    """A predicate for a CEL text; the empty text is always true. Raises InvalidPredicate.

    What a text compiles to is kept for the next caller; the count of errors is each caller's own.
    """
    return Predicate(_kept(text, limits) if len(text) <= _KEPT_LENGTH else _compiled(text, limits))


def _compiled(text: str, limits: PredicateLimits) -> _Program:
    tree = parse(text, limits) if text.strip() else Literal(0, 0, True)
    checked = check(tree, text, VARIABLES, limits)
    return _Program(text, limits, checked, compile_tree(checked), index_keys_of(checked))


_kept = lru_cache(maxsize=1024)(_compiled)
