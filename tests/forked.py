"""`tape …` as a process of its own, forked from one that has loaded it: a start costs milliseconds, not a second.

What runs is the command line as it is, with its own arguments, streams, environment and folder; it is killed, signalled
and waited for like any other process. Tests that start `python -m tape` itself are in tests/cli and the documentation.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from tape.cli.main import COMMANDS, main

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["psycopg", "tape.server.server", *(f"tape.cli.{name}" for name in COMMANDS)])


class Forked:
    """A running `tape …`. What it prints is `stdout`; its errors go where ours do, or where `stderr` says."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stdin: IO[Any] | int = subprocess.DEVNULL,
        stdout: IO[Any] | int = subprocess.PIPE,
        stderr: IO[Any] | int = 2,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        program: Callable[[], None] | None = None,
    ) -> None:
        self.stdout: IO[str] | None = None
        with contextlib.ExitStack() as ours:
            if stdout == subprocess.PIPE:
                reading, stdout = os.pipe()
                self.stdout = os.fdopen(reading, "r")
                ours.callback(os.close, stdout)
            if stdin == subprocess.DEVNULL:
                stdin = ours.enter_context(Path(os.devnull).open("rb"))
            streams = [_passed(stdin, "r"), _passed(stdout, "w"), _passed(stderr, "w")]
            for stream in streams:
                ours.callback(stream.close)
            become = partial(_become, list(arguments), streams, dict(os.environ if env is None else env), program)
            # A daemon does not outlive the tests.
            self._process = _forks.Process(target=become, args=(str(cwd or Path.cwd()),), daemon=True)
            self._process.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """How it ended, None while it runs; a signal is a negative number."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("tape", timeout or 0)
        return code

    def finish(self, timeout: float = 120) -> str:
        """Wait for its end; what it printed."""
        self.wait(timeout)
        assert self.stdout is not None
        with self.stdout:
            return self.stdout.read()

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended, and wait() has not returned yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, and wait until it is dead."""
        self.send_signal(signal.SIGKILL)
        self.wait()
        if self.stdout is not None:
            self.stdout.close()


def tape(
    *arguments: str, stdin: str | None = None, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `tape …` to its end."""
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as errors,
    ):
        given.write(stdin or "")
        given.seek(0)
        settings = os.environ | {"COLUMNS": "200"} | (env or {})
        process = Forked(arguments, stdin=given, stdout=out, stderr=errors, env=settings, cwd=cwd)
        try:
            code = process.wait(120)
        finally:
            process.kill()
        for stream in (out, errors):
            stream.seek(0)
        done = subprocess.CompletedProcess(["tape", *arguments], code, out.read(), errors.read())
        # A test that fails shows this whole, whatever it looked at.
        sys.stderr.write(f"tape {shlex.join(arguments)}\n{done.stderr}exit {code}\n")
        return done


def _passed(stream: IO[Any] | int, mode: str) -> Connection:
    """A stream in the only shape in which one is handed to another process."""
    number = os.dup(stream if isinstance(stream, int) else stream.fileno())
    return Connection(number, readable=mode == "r", writable=mode == "w")


def _become(
    arguments: list[str], streams: list[Connection], env: dict[str, str], program: Callable[[], None] | None, cwd: str
) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path.insert(0, cwd)
    sys.argv = ["tape", *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        (program or main)()
    finally:
        # As at the end of any program; a forked one would skip it.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
