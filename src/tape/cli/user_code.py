"""Code of the user's that a command needs: modules to import, functions to call."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from tape.errors import InvalidConfig


def import_modules(names: list[str]) -> None:
    """Import modules for what they register; those of the folder that one stands in are found too."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                raise  # the module is there, and lacks one of its own
            raise InvalidConfig(
                f"--import {name}: there is no such module in {here} or where Python looks. Name it as in an import"
                " statement, without .py."
            ) from None


def load_object(option: str, place: str) -> Any:
    """What `module:name` stands for."""
    module, separator, name = place.partition(":")
    if not (module and separator and name):
        raise InvalidConfig(f"{option} {place!r} must look like my_module:my_function.")
    import_modules([module])
    found: Any = sys.modules[module]
    for part in name.split("."):
        if not hasattr(found, part):
            raise InvalidConfig(f"{option} {place!r}: {module} has no {name!r}.")
        found = getattr(found, part)
    return found
