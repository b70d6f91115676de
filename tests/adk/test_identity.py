"""For whom a run acts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tape.adk.identity import MissingIdentity, RunIdentity
from tape.errors import InvalidConfig

ENV = {
    "TAPE_TENANT_ID": "acme",
    "TAPE_ACTOR": " ann ",
    "TAPE_SUBJECT": "invoice-7",
    "TAPE_AGENT_ID": "treasurer",
    "TAPE_AIPLEX_INSTANCE_ID": "i1",
    "TAPE_GATEWAY_ROUTE": "r1",
    "TAPE_SCOPES": "bank, mail,,",
    "TAPE_LABELS": "team=a,policy_version = 3",
}


def test_the_environment_describes_an_identity() -> None:
    assert RunIdentity.from_env(ENV) == RunIdentity(
        tenant_id="acme",
        actor="ann",
        subject="invoice-7",
        agent_id="treasurer",
        aiplex_instance_id="i1",
        gateway_route="r1",
        scopes=["bank", "mail"],
        labels={"team": "a", "policy_version": "3"},
    )
    assert RunIdentity.from_env({}).is_empty()
    assert not RunIdentity(scopes=["bank"]).is_empty()


def test_it_must_be_complete_where_that_is_asked_for() -> None:
    with pytest.raises(MissingIdentity, match=r"tenant_id \(TAPE_TENANT_ID\), actor \(TAPE_ACTOR\)") as caught:
        RunIdentity.from_env({"TAPE_AGENT_ID": "a"}, strict=True)
    assert caught.value.missing == ["tenant_id", "actor"]
    with pytest.raises(MissingIdentity):
        RunIdentity.from_env({"TAPE_REQUIRE_IDENTITY": "1"})
    for lenient in ({"TAPE_REQUIRE_IDENTITY": "0"}, {"TAPE_REQUIRE_IDENTITY": ""}, {}):
        RunIdentity.from_env(lenient)
    RunIdentity.from_env({"TAPE_REQUIRE_IDENTITY": "1"}, strict=False)
    RunIdentity.from_env({**ENV, "TAPE_REQUIRE_IDENTITY": "true"})
    with pytest.raises(MissingIdentity, match="subject"):
        RunIdentity(tenant_id="acme").validate(("tenant_id", "subject"))


def test_a_label_without_a_value_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"TAPE_LABELS 'a=1,b': 'b' is not name=value"):
        RunIdentity.from_env({"TAPE_LABELS": "a=1,b"})


def test_an_identity_needs_no_google_adk_and_the_rest_says_what_to_install() -> None:
    code = """
import sys
sys.modules["google.adk"] = None  # as if it were not installed
import tape.adk
print(tape.adk.RunIdentity(actor="ann").actor, "google.genai" in sys.modules)
for name in ("TapePlugin", "TapeSessionService", "durable_app"):
    try:
        getattr(tape.adk, name)
    except tape.TapeError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "ann False",
        *(
            f"tape.adk.{name} needs libraries that are not installed: pip install 'tape[adk]'"
            for name in ("TapePlugin", "TapeSessionService", "durable_app")
        ),
    ]
