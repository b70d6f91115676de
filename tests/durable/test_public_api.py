"""The SDK has the names, the parameters and the defaults that programs were written for."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import tape

LINES = (Path(__file__).parent / "public_api.txt").read_text().splitlines()
MADE_EACH_TIME = "FACTORY"  # a default such as a new dict


def find(path: str) -> Any:
    """The object that a dotted path names."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError as missing:
            if not (missing.name or "").startswith("tape"):
                pytest.skip(f"{missing.name} is not installed")
            continue
        for name in parts[length:]:
            found = getattr(found, name)
        return found
    raise AssertionError(path)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.partition("(")[0])
def test_a_public_name_takes_what_it_always_took(line: str) -> None:
    path, has_parameters, _ = line.partition("(")
    found = find(path)
    if not has_parameters:
        return
    wanted = ast.parse(f"def f{line[len(path) :]}: ...").body[0]
    assert isinstance(wanted, ast.FunctionDef)
    ours = dict(inspect.signature(found).parameters)
    arguments = wanted.args
    defaults = dict(zip([each.arg for each in arguments.args][::-1], arguments.defaults[::-1], strict=False))
    defaults |= {
        each.arg: value for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value
    }
    for position, each in enumerate(arguments.args):
        assert each.arg in ours, f"{path} lacks {each.arg}"
        assert [name for name, p in ours.items() if name != "self" and _is_positional(p)][position] == each.arg
    for each in (*arguments.args, *arguments.kwonlyargs):
        parameter = ours.pop(each.arg)
        assert parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if each.arg not in defaults:
            continue
        written = ast.unparse(defaults[each.arg])
        assert parameter.default is not parameter.empty, f"{path}: {each.arg} must be optional"
        if written != MADE_EACH_TIME:
            assert parameter.default == eval(written), f"{path}: {each.arg}"
    for name, parameter in ours.items():
        is_optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        assert is_optional or name == "self", f"{path}: {name} is not in public_api.txt"


def _is_positional(parameter: inspect.Parameter) -> bool:
    return parameter.kind is parameter.POSITIONAL_OR_KEYWORD


def test_type_checkers_see_every_name_that_can_be_imported() -> None:
    stub = ast.parse(Path(tape.__file__).with_suffix(".pyi").read_text())
    seen = {node.names[0].asname for node in stub.body if isinstance(node, ast.ImportFrom)}
    assert seen == set(tape.__all__) - {"__version__"} | set(tape._MODULE_OF)
    (listed,) = (node.value for node in stub.body if isinstance(node, ast.Assign))
    assert sorted(ast.literal_eval(listed)) == sorted(tape.__all__)


def test_the_top_level_has_what_the_readme_and_the_tutorial_use_and_at_most_60_names() -> None:
    assert len(tape.__all__) <= 60
    assert dir(tape) == sorted(tape.__all__)
    used: set[str] = set()
    for page in ("README.md", "docs/tutorial.md"):
        text = (Path(__file__).parents[2] / page).read_text()
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            used |= set(re.findall(r"\btape\.([A-Za-z]\w*)", block)) & set(tape._MODULE_OF)
            for names in re.findall(r"^from tape import ([\w, ]+)", block, re.MULTILINE):
                used |= {name.strip() for name in names.split(",")}
    assert used
    assert used <= set(tape.__all__)


def test_every_name_of_the_top_level_is_there() -> None:
    for name in tape.__all__:
        assert getattr(tape, name) is not None


def test_names_that_are_no_longer_listed_can_still_be_imported_from_the_top_level() -> None:
    unlisted = set(tape._MODULE_OF) - set(tape.__all__)
    assert {"EventRecord", "TenancyConfig", "compensate_run", "effect_semantics"} <= unlisted
    for name in unlisted:
        assert getattr(tape, name) is getattr(importlib.import_module(tape._MODULE_OF[name]), name)
    assert tape.EFFECT_RESOLUTION_STUCK == 5
    assert tape.RUN_STATUS_TERMINAL == 4
