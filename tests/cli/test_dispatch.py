"""`tape dispatch`: what it shows, and what it says about modules that cannot be loaded."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tape.cli.dispatch import line, load_module, summary
from tape.client import TapeClient
from tape.errors import InvalidInput
from tape.reactions.counters import Tally
from tests.services import ServerProcess, wait_for


def test_the_status_line_has_the_counts_and_what_is_rare_only_when_it_happens() -> None:
    tally = Tally(in_flight=2, done=1_234, failed=5, dead=1)
    assert line(tally)[10:] == "0/s · 2 in flight · 1,234 done · 5 failed · 1 dead"
    tally.lost, tally.stuck, tally.is_polling = 3, 1, True
    assert line(tally).endswith("1 dead · 3 lost · 1 stuck · polling")
    tally.released = 4
    assert summary(tally) == "1,234 done, 5 failed, 1 dead, 4 released, 3 lost, 1 stuck."


def test_a_module_is_found_by_name_or_path_and_a_broken_one_shows_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "found_by_name.py").write_text("")
    (tmp_path / "found_by_path.py").write_text("")
    (tmp_path / "broken_inside.py").write_text("import no_such_library")
    load_module("found_by_name")
    load_module("found_by_path.py")
    assert {"found_by_name", "found_by_path"} <= set(sys.modules)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        load_module("broken_inside")
    with pytest.raises(InvalidInput, match=r"no module 'absent\.module'"):
        load_module("absent.module")
    with pytest.raises(InvalidInput, match=r"no Python file 'absent\.py'"):
        load_module("absent.py")


def test_the_status_line_lives_on_a_terminal(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text("import tape\n@tape.on('/tape/order/**')\ndef f(envelope): ...\n")
    ours, theirs = pty.openpty()
    with ServerProcess(sqlite_url) as server, TapeClient(server.url) as client:
        command = [sys.executable, "-m", "tape", "dispatch", "handlers", "--url", server.url]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=theirs, text=True)
        os.close(theirs)
        os.set_blocking(ours, False)
        shown = ""

        def shows(text: str) -> bool:
            nonlocal shown
            try:
                shown += os.read(ours, 65_536).decode(errors="replace")
            except (BlockingIOError, OSError):
                pass
            return text in shown

        try:
            wait_for(lambda: client.list_reactions().reactions, "registration")
            client.append("/tape/order/paid/1", {})
            wait_for(lambda: shows("1 done"), f"the line; shown is {shown!r}")
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=120)
        finally:
            process.kill()
            os.close(ours)
        assert output == "1 done, 0 failed, 0 dead.\n"
        assert process.returncode == 0
