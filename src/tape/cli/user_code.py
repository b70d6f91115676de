"""User code of a command: modules to import, functions to call."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from tape.errors import InvalidConfig


def import_modules(names: list[str]) -> None:
    """Import modules for what they register; the current directory is searched too."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                raise  # the module exists, but one of its imports does not
            raise InvalidConfig(
                f"--import {name}: there is no such module in {here} or on the Python path. Name it as in an import"
                " statement, without .py."
            ) from None


def load_object(option: str, reference: str) -> Any:
    """The object that `module:name` refers to."""
    module, separator, name = reference.partition(":")
    if not (module and separator and name):
        raise InvalidConfig(f"{option} {reference!r} must look like my_module:my_function.")
    import_modules([module])
    found: Any = sys.modules[module]
    for part in name.split("."):
        if not hasattr(found, part):
            raise InvalidConfig(f"{option} {reference!r}: {module} has no {name!r}.")
        found = getattr(found, part)
    return found
