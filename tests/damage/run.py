"""Runs cases in several processes, each with its own copies; a process that dies is a failed case, not the end."""

from __future__ import annotations

import atexit
import concurrent.futures
import multiprocessing
import os
import resource
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.damage.archive_store import ArchiveTemplate
from tests.damage.case import Result, run_case
from tests.damage.postgres_store import PostgresTemplate
from tests.damage.sqlite_store import SqliteTemplate
from tests.damage.store import Template

PROCESSES = 2
# A reader or `verify` that needs more than this has lost its bounds.
MEMORY_BYTES = 6 << 30

_template: Template | None = None


def open_template(store: str, folder: Path) -> Template:
    """The template of a store by its name."""
    templates: dict[str, Callable[[Path], Template]] = {
        "archive": ArchiveTemplate,
        "postgres": PostgresTemplate,
        "sqlite": SqliteTemplate,
    }
    return templates[store](folder)


def run_cases(store: str, seeds: Iterable[int], processes: int = PROCESSES) -> Iterator[Result]:
    """Results as they come."""
    with tempfile.TemporaryDirectory(prefix="tape-damage-") as name:
        folder = Path(name)
        open_template(store, folder / "template").build()
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(
            processes, context, initializer=_begin, initargs=(store, folder)
        ) as pool:
            waiting = [pool.submit(_run, seed) for seed in seeds]
            for done in concurrent.futures.as_completed(waiting):
                yield done.result()


def _begin(store: str, folder: Path) -> None:
    global _template
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.RLIM_INFINITY))
    _template = open_template(store, folder / "template")
    atexit.register(_template.close)


def _run(seed: int) -> Result:
    assert _template is not None
    with tempfile.TemporaryDirectory(prefix="tape-damage-case-") as folder:
        return run_case(_template, seed, Path(folder))
