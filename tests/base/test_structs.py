"""Types of structs: two threads that decode a struct for the first time do not crash the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Two threads begin to decode the same new struct at once, again and again. The enum runs Python code while its values
# are looked at, so that threads switch in the middle.
PROGRAM = """
import enum, sys, threading
import msgspec
from tape.base.structs import resolve

sys.setswitchinterval(1e-6)


def race(number):
    kind = enum.IntEnum(f"Kind{number}", {f"K{n}": n for n in range(40)})
    fields = [("a", int), ("kind", kind), *((f"f{n}", str) for n in range(20)), ("last", kind)]
    struct = msgspec.defstruct(f"Struct{number}", fields, array_like=True)
    row = [1, 2, *map(str, range(20)), 3]
    start = threading.Barrier(4)

    def decode():
        start.wait()
        if "--resolved" in sys.argv:
            resolve(struct)
        msgspec.convert(row, struct, strict=False)

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


for number in range(300):
    race(number)
print("done")
"""


def test_threads_that_decode_a_struct_at_once_do_not_crash() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, "--resolved"], capture_output=True, text=True, timeout=240)
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
