"""The line of the user's code that made a call."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import FrameType

_OURS = str(Path(__file__).parents[1])
_STANDARD = (sysconfig.get_path("stdlib"), "<frozen ")
_LIBRARIES = ("site-packages", "dist-packages")


def is_user_code(file: str) -> bool:
    """Whether a file is neither Tape's, nor the standard library's, nor that of an installed library."""
    return not file.startswith((_OURS, *_STANDARD)) and not any(part in file for part in _LIBRARIES)


def call_site() -> tuple[str, int]:
    """File and line of the newest frame that is neither Tape's nor the standard library's; ("", 0) if there is none.

    A frame of an installed library counts only if no other does: an agent is called through a framework.
    """
    library = ("", 0)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OURS):
            if any(part in name for part in _LIBRARIES):
                library = library if library[0] else (name, frame.f_lineno)
            elif not name.startswith(_STANDARD):
                return name, frame.f_lineno
        frame = frame.f_back
    return library
