"""Progress bars on standard error, if it is a terminal."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A function to call with (done, total)."""
    console = Console(stderr=True)
    with Progress(
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def input_bar(title: str, things: str) -> Iterator[Callable[[int], None]]:
    """A function to call with the number of things done; the bar shows the bytes read of a file in standard input."""
    status = os.fstat(sys.stdin.fileno())
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    console = Console(stderr=True)
    with Progress(
        TextColumn(title),
        BarColumn(),
        TextColumn("{task.fields[done]:,} " + things),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(title, total=size, done=0)

        def show(done: int) -> None:
            read = os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR) if size is not None else 0
            progress.update(task, completed=read, done=done)

        yield show
