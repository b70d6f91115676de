"""Measures one implementation of CEL; run by `bench.predicate`, each in an environment that has it.

Reads `{"contender", "seconds", "cases": [{"text", "variables", "entries"}]}` from standard input and
prints one result per case: evaluations per second with the payload parsed before and with parsing
included, microseconds to compile, and what the entries evaluated to.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

Entry = dict[str, Any]


class Contender(Protocol):
    """An implementation, made to do the same things as fast as it can."""

    def compile(self, text: str, variables: list[str]) -> Any:
        """What the implementation keeps of a text."""

    def prepare(self, entry: Entry, variables: list[str]) -> Any:
        """What the implementation evaluates on, with the payload parsed."""

    def evaluate(self, program: Any, prepared: Any) -> bool:
        """The result for a prepared entry."""

    def evaluate_whole(self, program: Any, entry: Entry, variables: list[str]) -> bool:
        """The result for an entry with its payload as text."""


class Tape:
    """This project."""

    def __init__(self) -> None:
        from tape.cel import EntryView
        from tape.cel.limits import LIMITS
        from tape.cel.predicate import Predicate, _compiled

        self._envelope = EntryView
        # Past the cache: compiling is what is measured.
        self._compile = lambda text: Predicate(_compiled(text, LIMITS))

    def compile(self, text: str, variables: list[str]) -> Any:
        return self._compile(text)

    def prepare(self, entry: Any, variables: list[str]) -> Any:
        envelope = self._envelope(entry)
        _ = envelope.payload
        return envelope

    def evaluate(self, program: Any, prepared: Any) -> bool:
        return bool(program.matches(prepared))

    def evaluate_whole(self, program: Any, entry: Any, variables: list[str]) -> bool:
        return bool(program.matches(entry))


def _values(entry: Entry, variables: list[str]) -> dict[str, Any]:
    payload = msgspec.json.decode(entry["payload_json"])
    known = {"payload": payload, "prev_value_json": payload.get("prev_value_json", "")}
    return {name: known[name] if name in known else entry[name] for name in variables}


class Google:
    """cel-expr-python: Google's implementation in C++."""

    def __init__(self) -> None:
        from cel_expr_python import cel

        self._cel = cel

    def compile(self, text: str, variables: list[str]) -> Any:
        return self._environment(tuple(variables)).compile(text)

    def _environment(self, names: tuple[str, ...]) -> Any:
        kept = self.__dict__.setdefault("_environments", {})
        if names not in kept:
            kept[names] = self._cel.NewEnv(variables=dict.fromkeys(names, self._cel.Type.DYN))
        return kept[names]

    def prepare(self, entry: Entry, variables: list[str]) -> Any:
        return self._environment(tuple(variables)).Activation(_values(entry, variables))

    def evaluate(self, program: Any, prepared: Any) -> bool:
        return program.eval(prepared).value() is True

    def evaluate_whole(self, program: Any, entry: Entry, variables: list[str]) -> bool:
        return program.eval(data=_values(entry, variables)).value() is True


class CommonExpressionLanguage:
    """common-expression-language: an interpreter in Rust."""

    def __init__(self) -> None:
        import cel

        self._cel = cel

    def compile(self, text: str, variables: list[str]) -> Any:
        return self._cel.compile(text)

    def prepare(self, entry: Entry, variables: list[str]) -> Any:
        return self._cel.Context(variables=_values(entry, variables))

    def evaluate(self, program: Any, prepared: Any) -> bool:
        try:
            return program.execute(prepared) is True
        except (RuntimeError, TypeError, ValueError):
            return False

    def evaluate_whole(self, program: Any, entry: Entry, variables: list[str]) -> bool:
        return self.evaluate(program, _values(entry, variables))


class CelPython:
    """cel-python: an interpreter in Python."""

    def __init__(self) -> None:
        import celpy

        self._celpy = celpy
        self._environment = celpy.Environment()

    def compile(self, text: str, variables: list[str]) -> Any:
        return self._environment.program(self._environment.compile(text))

    def prepare(self, entry: Entry, variables: list[str]) -> Any:
        return {name: self._celpy.json_to_cel(value) for name, value in _values(entry, variables).items()}

    def evaluate(self, program: Any, prepared: Any) -> bool:
        try:
            return bool(program.evaluate(prepared))
        except self._celpy.CELEvalError:
            return False

    def evaluate_whole(self, program: Any, entry: Entry, variables: list[str]) -> bool:
        return self.evaluate(program, self.prepare(entry, variables))


CONTENDERS: dict[str, Callable[[], Contender]] = {
    "tape": Tape,
    "cel-expr-python": Google,
    "common-expression-language": CommonExpressionLanguage,
    "cel-python": CelPython,
}


def rate(work: Callable[[], int], seconds: float) -> float:
    """How often per second; `work` does some and says how many."""
    work()
    best, deadline = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        started = time.perf_counter()
        done = work()
        best = max(best, done / (time.perf_counter() - started))
    return best


def measure(contender: Contender, case: dict[str, Any], entries: list[Any], seconds: float) -> dict[str, Any]:
    """One case."""
    text, variables = case["text"], case["variables"]
    program = contender.compile(text, variables)
    prepared = [contender.prepare(entry, variables) for entry in entries]
    evaluate, evaluate_whole, compile_text = contender.evaluate, contender.evaluate_whole, contender.compile

    def parsed() -> int:
        for one in prepared:
            evaluate(program, one)
        return len(prepared)

    def whole() -> int:
        for entry in entries:
            evaluate_whole(program, entry, variables)
        return len(entries)

    def compiled() -> int:
        for _ in range(5):
            compile_text(text, variables)
        return 5

    return {
        "results": [evaluate(program, one) for one in prepared],
        "parsed": rate(parsed, seconds),
        "whole": rate(whole, seconds),
        "compile": 1e6 / rate(compiled, seconds),
    }


def main() -> None:
    """Measure what standard input asks for."""
    task = json.load(sys.stdin)
    contender = CONTENDERS[task["contender"]]()
    results = []
    for case in task["cases"]:
        entries = case["entries"]
        if task["contender"] == "tape":
            from tape.model.entry import Entry as JournalEntry

            entries = [JournalEntry(**{**entry, "chain": b""}) for entry in entries]
        results.append(measure(contender, case, entries, task["seconds"]))
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
