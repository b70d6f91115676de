"""Rules of the repository: generated files are current, names are unique, the documentation matches the code."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import tape.errors
from tape.errors import all_errors
from tests.conftest import FIRST, TOGETHER

ROOT = Path(__file__).parent.parent

# Classes of one name that are not two things: the reason why they share it.
SHARED_CLASS_NAMES: dict[str, str] = {}
# Words that end in -ing and name a thing.
NOUNS = {"ring", "routing", "screening", "tracing"}


def test_every_error_has_its_own_code_and_a_paragraph_in_the_docs() -> None:
    errors = all_errors()
    subclasses: set[type] = set()
    waiting: list[type] = [BaseException]
    while waiting:
        for each in waiting.pop().__subclasses__():
            waiting.append(each)
            if getattr(tape.errors, each.__name__, None) is each:  # those of tape.compat have the same names
                subclasses.add(each)
    assert len(errors) == len(subclasses), "two errors share a code"
    page = (ROOT / "docs/errors.md").read_text()
    for code, error in errors.items():
        assert re.search(rf"^## {code} {error.__name__}$", page, re.MULTILINE), f"docs/errors.md lacks {code}"
        assert error.__doc__


def test_no_two_migrations_share_a_number() -> None:
    names = sorted(path.name for path in (ROOT / "src/tape/store/migrations").glob("*.sql"))
    numbered = {(name[:4], name.split(".")[1]) for name in names}
    assert len(numbered) == len(names), names


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


@pytest.mark.parametrize("script", ["reference.py", "events.py", "document_fields.py", "access_table.py"])
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


def test_files_that_the_architecture_page_names_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    for folder, files in re.findall(r"^\| `([\w/]+)`[^|]*\|[^|]*\| ([^|]+) \|$", page, re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", files):
            assert (ROOT / "src/tape" / folder / name).exists(), f"{folder}/{name}"


def test_the_answers_to_where_is_name_files_that_exist() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where is")[2]
    answers = re.findall(r"`([\w/]+\.py)`", table)
    assert len(answers) >= 36
    missing = [path for path in answers if not (ROOT / "src/tape" / path).is_file()]
    assert not missing


def test_no_two_public_classes_share_a_name() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for path in _sources():
        if path.is_relative_to(ROOT / "src/tape/compat"):
            continue  # the names of earlier SDKs, some of which are ours
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(str(path.relative_to(ROOT)))
    shared = {name: paths for name, paths in modules.items() if len(paths) > 1}
    assert {name: paths for name, paths in shared.items() if name not in SHARED_CLASS_NAMES} == {}
    assert set(SHARED_CLASS_NAMES) <= set(shared), "remove names that are unique by now"


def test_modules_are_named_by_nouns_not_by_gerunds() -> None:
    gerunds = {path.stem for path in _sources() if re.fullmatch(r"[a-z]+ing", path.stem)}
    assert gerunds - NOUNS == set()


def test_the_architecture_page_lists_the_layers_of_the_import_contract() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    block = re.search(r"^```layers\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    assert block[1].splitlines() == layers


@pytest.mark.parametrize("path", sorted({*FIRST, *TOGETHER}))
def test_the_order_of_tests_names_paths_that_exist(path: str) -> None:
    assert (ROOT / path).exists()


def test_programs_in_strings_of_tests_import_names_that_exist() -> None:
    missing = []
    for folder in ("tests", "bench"):
        for path in (ROOT / folder).rglob("*.py"):
            for module, name in _embedded_imports(path.read_text(encoding="utf-8")):
                if not _exists(module, name):
                    missing.append(f"{path.relative_to(ROOT)}: from {module} import {name}")
    assert missing == []


def _sources() -> list[Path]:
    return [path for path in (ROOT / "src").rglob("*.py") if "_pb2" not in path.name]


def _embedded_imports(source: str) -> Iterator[tuple[str, str]]:
    """Yield the imports from Tape in string literals that are Python programs."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "from tape" in node.value:
            try:
                program = ast.parse(textwrap.dedent(node.value))
            except SyntaxError:
                continue
            for line in ast.walk(program):
                if isinstance(line, ast.ImportFrom) and (line.module or "").split(".")[0] == "tape":
                    yield from ((line.module or "", alias.name) for alias in line.names)


def _exists(module: str, name: str) -> bool:
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True
