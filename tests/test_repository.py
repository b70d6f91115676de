"""The habits of the repository: what is generated is current, what is documented exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tape.errors import all_errors

ROOT = Path(__file__).parent.parent


def test_every_error_has_its_own_code_and_a_paragraph_in_the_docs() -> None:
    errors = all_errors()
    subclasses: set[type] = set()
    waiting: list[type] = [Exception]
    while waiting:
        for each in waiting.pop().__subclasses__():
            waiting.append(each)
            if each.__module__ == "tape.errors":
                subclasses.add(each)
    assert len(errors) == len(subclasses), "two errors share a code"
    page = (ROOT / "docs/errors.md").read_text()
    for code, error in errors.items():
        assert re.search(rf"^## {code} {error.__name__}$", page, re.MULTILINE), f"docs/errors.md lacks {code}"
        assert error.__doc__


def test_the_generated_code_is_current(tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            "-Isrc",
            f"--python_out={tmp_path}",
            f"--pyi_out={tmp_path}",
            "tape/proto/tape.proto",
        ],
        check=True,
        cwd=ROOT,
    )
    for name in ("tape_pb2.py", "tape_pb2.pyi"):
        assert (tmp_path / "tape/proto" / name).read_text() == (ROOT / "src/tape/proto" / name).read_text(), (
            "make proto"
        )


@pytest.mark.parametrize("script", ["reference.py", "events.py", "subscription_fields.py"])
def test_generated_pages_are_current(script: str) -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock"])
def test_locks_name_no_registry(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "--hash=sha256:" in text
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links", text)


def test_importing_tape_pulls_in_neither_grpc_nor_a_database() -> None:
    code = (
        "import sys, tape; tape.Draft; print([m for m in ('grpc', 'apsw', 'psycopg', 'pyspark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_both_dialects_have_the_same_migrations() -> None:
    files = [path.name for path in (ROOT / "src/tape/store/migrations").glob("*.sql")]
    assert files
    assert {name.replace(".sqlite.", ".postgres.") for name in files} == {n for n in files if ".postgres." in n}


def test_the_answers_to_where_is_name_files_that_exist() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where is")[2]
    answers = re.findall(r"`([\w/]+\.py)`", table)
    assert len(answers) >= 36
    missing = [path for path in answers if not (ROOT / "src/tape" / path).is_file()]
    assert not missing
