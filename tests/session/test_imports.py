"""The tape in your process costs next to nothing to import."""

from __future__ import annotations

import subprocess
import sys

import tape
import tape.session


def loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_a_session_tape_pulls_in_the_standard_library_and_little_of_it() -> None:
    code = "from tape import SessionTape, JsonlBackend; SessionTape().record({'kind': 'a'})"
    loaded = loaded_by(code)
    outside = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) - {"tape", "__main__"}
    before = {name.partition(".")[0] for name in loaded_by("pass")}
    assert outside - before == set()
    assert loaded.isdisjoint({"asyncio", "logging", "grpc", "msgspec", "google.protobuf", "apsw", "tape.client"})


def test_every_public_name_can_be_imported_from_both_modules() -> None:
    for name in tape.session.__all__:
        assert getattr(tape, name) is getattr(tape.session, name)
    for name in tape.__all__:
        assert getattr(tape, name) is not None
