"""Types of structs: two threads that decode a struct for the first time do not crash the process."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tape

# Two threads begin to decode the same new struct at once, again and again. The enum runs Python code while its values
# are looked at, so that threads switch in the middle.
PROGRAM = """
import enum, sys, threading
import msgspec
from tape.base import structs

sys.setswitchinterval(1e-6)


def race(number):
    kind = enum.IntEnum(f"Kind{number}", {f"K{n}": n for n in range(40)})
    fields = [("a", int), ("kind", kind), *((f"f{n}", str) for n in range(20)), ("last", kind)]
    struct = msgspec.defstruct(f"Struct{number}", fields, array_like=True)
    row = [1, 2, *map(str, range(20)), 3]
    start = threading.Barrier(4)

    def decode():
        start.wait()
        if "--decode" in sys.argv:
            structs.decode(msgspec.json.encode(row), struct)
        else:
            structs.convert(row, struct)

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


for number in range(300):
    race(number)
print("done")
"""


@pytest.mark.parametrize("function", ["--decode", "--convert"])
def test_threads_that_decode_a_struct_at_once_do_not_crash(function: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, function], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize("module", ["tape.engine.reactions.reaction", "tape.engine.ledgers.runs"])
def test_a_store_resolves_the_structs_that_are_imported(module: str) -> None:
    program = (
        f"import asyncio, {module}\nfrom tape.base import structs\nfrom tape.store import open_database\n"
        "async def main():\n    async with open_database('memory'): pass\n"
        "asyncio.run(main())\n"
        "from tape.store.records import Record\n"
        "assert Record.__subclasses__()\n"
        "assert set(Record.__subclasses__()) <= structs._resolved\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


# The packages of processes that open a database and decode on several threads.
PACKAGES = ("backup", "engine", "journal", "pipeline", "server", "store", "subscriptions")
# Types without structs, of which nothing is resolved.
PLAIN = {"Any", "Pairs", "Secret", "bool", "bytes", "dict", "float", "int", "list", "msgspec", "object", "str", "tuple"}


def test_processes_with_a_database_decode_structs_with_the_functions_that_resolve_them() -> None:
    source = Path(tape.__file__).parent
    found = {
        f"{file.relative_to(source)}: {ast.unparse(call)}"
        for package in PACKAGES
        for file in (source / package).rglob("*.py")
        for call in decoding_calls(ast.parse(file.read_text()))
    }
    assert found == {
        # Resolved once for all rows.
        "store/records.py: msgspec.convert(row, kind, strict=False)",
        # Resolved where the module is loaded.
        "pipeline/batch_writer.py: msgspec.msgpack.Decoder(_Step)",
    }


def decoding_calls(tree: ast.Module) -> Iterator[ast.Call]:
    """The calls of msgspec that decode to a type which can have structs in it."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        given = [keyword.value for keyword in node.keywords if keyword.arg == "type"]
        match ast.unparse(node.func):
            case "msgspec.convert" | "msgspec.json.Decoder" | "msgspec.msgpack.Decoder":
                given += node.args[-1:]
            case "msgspec.json.decode" | "msgspec.msgpack.decode":
                pass
            case _:
                continue
        if any(isinstance(name, ast.Name) and name.id not in PLAIN for kind in given for name in ast.walk(kind)):
            yield node
