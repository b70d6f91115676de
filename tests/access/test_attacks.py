"""The seventeen attacks that were carried out from outside: where each is tested, and those that no other test has."""

from __future__ import annotations

import ast
import json
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import pytest

from tape.client import AsyncTapeClient
from tape.engine.security.tokens import jwks_path, load_key
from tape.errors import ReservedKind
from tape.model.entry import Draft
from tape.server.server import Server
from tests.conftest import settings_for
from tests.web import Answer, call

ROOT = Path(__file__).parent.parent
HERE = "access/test_attacks.py::"

# By number: the attack in one line, and tests of it. Every test that is named here exists.
ATTACKS: dict[int, tuple[str, tuple[str, ...]]] = {
    1: (
        "A posted command.issued with another tenant's run id makes a worker run a playbook and end that run.",
        ("access/test_commands.py::test_a_forged_command_does_not_run_anothers_run",),
    ),
    2: (
        "A request id that another tenant will use turns its acknowledged append into nothing.",
        (
            "access/test_request_ids.py::test_a_request_id_of_one_tenant_takes_nothing_away_from_another",
            f"{HERE}test_attack_2_the_source_and_id_of_another_tenants_cloudevent_take_nothing_away",
            f"{HERE}test_attack_2_the_request_id_of_another_tenants_playbook_step_takes_nothing_away",
        ),
    ),
    3: (
        "A payload of repeated `data:;a=` stops the server.",
        (
            "server/test_publish.py::test_a_large_hostile_payload_is_searched_in_linear_time_while_the_server_answers",
            "engine/security/test_redaction.py::test_a_mebibyte_of_hostile_json_takes_linear_time",
        ),
    ),
    4: (
        "Entries of the kinds that Tape itself writes are accepted from any caller, into foreign runs.",
        (
            f"{HERE}test_attack_4_entries_that_tape_itself_writes_are_accepted_from_no_caller",
            f"{HERE}test_attack_4_an_entry_into_a_foreign_run_stays_with_its_writer",
            "access/test_run_tenants.py::test_an_entry_that_names_a_foreign_ledger_run_does_not_touch_it",
            "access/test_task_tenants.py::test_a_reaction_fires_on_the_entries_of_its_tenant",
            "access/test_system_key.py::test_watchers_of_a_value_skip_and_count_malformed_entries",
        ),
    ),
    5: (
        "A document whose url points elsewhere gets the secret of a wallet alias sent there.",
        (
            "access/test_secrets.py::test_a_document_with_a_foreign_url_does_not_get_the_bound_secret_sent_there",
            "access/test_secrets.py::test_a_permitted_use_inside_the_server_is_journaled_with_its_host",
        ),
    ),
    6: (
        "A web page of another origin sends text/plain to /api.",
        (
            "access/test_foreign_pages.py::test_a_type_that_a_form_can_send_is_answered_with_415",
            "access/test_foreign_pages.py::test_a_request_of_a_foreign_page_is_answered_with_403",
        ),
    ),
    7: (
        "RegisterResource and Execute over gRPC work without the internal token that HTTP demands.",
        ("access/test_permissions.py::test_the_internal_token_guards_grpc_as_it_guards_http",),
    ),
    8: (
        "`service` of one tenant reads and writes every other; entries of runs carry the app as their tenant.",
        (
            "access/test_tenants.py::test_the_same_invocation_of_two_tenants_is_two_runs",
            "access/test_tenants.py::test_a_foreign_run_is_answered_like_one_that_does_not_exist",
            "access/adversary/test_foreign_names.py::test_an_rpc_treats_a_foreign_name_like_one_that_does_not_exist",
            "access/adversary/test_foreign_names.py::test_a_route_treats_a_foreign_name_like_one_that_does_not_exist",
        ),
    ),
    9: (
        "Headers, messages, slow connections and undecodable bytes use up the server before authentication.",
        (
            "access/test_http_limits.py::test_300_mib_of_headers_on_one_connection_are_not_kept_in_memory",
            "access/test_http_limits.py::test_500_slow_connections_are_closed",
            "access/test_grpc_limits.py::test_12_refused_calls_of_70_mib_leave_no_memory_behind",
            "access/test_grpc_limits.py::test_undecodable_bytes_are_an_invalid_argument_of_every_rpc",
        ),
    ),
    10: (
        "A predicate over a large payload takes seconds of CPU and stops other tenants.",
        ("access/test_hostile_predicates.py::test_a_hostile_follow_ends_and_twenty_get_no_more_cpu_than_one",),
    ),
    11: (
        "45 KiB of YAML and 5,000 brackets occupy the event loop.",
        (
            "access/test_large_documents.py::test_45_kib_of_yaml_are_parsed_in_linear_time",
            "access/test_large_documents.py::test_a_text_of_opening_brackets_is_rejected_at_once",
        ),
    ),
    12: (
        "A token without scope floods append, or opens 400 streams by naming sessions.",
        (
            "access/test_admission.py::test_calls_beyond_a_tenants_slots_wait_and_another_tenants_call_does_not",
            "access/test_admission.py::test_400_streams_of_one_token_that_names_sessions_are_refused_beyond_100",
        ),
    ),
    13: (
        "Redaction lets secrets through and alters harmless payloads.",
        (
            "engine/security/test_redaction_corpus.py::test_at_least_95_percent_of_secret_payloads_are_hidden",
            "engine/security/test_redaction.py::test_words_that_only_look_like_secrets_are_left_alone",
            "engine/security/test_redaction.py::test_bytes_beside_a_secret_stay_the_same",
        ),
    ),
    14: (
        "Streams of a withdrawn key go on, an exp of 10^400 answers 500, a token is valid for ever.",
        (
            "access/test_token_lifetime.py::test_the_open_streams_of_a_withdrawn_key_end_and_those_of_others_go_on",
            "access/test_token_lifetime.py::test_a_claim_that_makes_no_sense_is_a_rejected_token_and_never_500",
            "access/test_token_lifetime.py::test_a_token_is_valid_for_a_day_at_most_unless_the_server_is_configured",
        ),
    ),
    15: (
        "Banner, doctor and errors print the database password; files are readable by all.",
        (
            "access/test_shown_secrets.py::test_the_banner_of_the_server_shows_no_password",
            "access/test_shown_secrets.py::test_the_doctor_and_the_errors_of_a_store_show_no_password",
            "access/test_shown_secrets.py::test_an_outdated_database_is_named_without_its_password",
            "access/test_shown_secrets.py::test_a_token_on_the_command_line_is_accepted_with_a_warning",
            "access/test_shown_secrets.py::test_the_database_and_the_files_beside_it_are_private",
            "access/test_shown_secrets.py::test_artifacts_and_spools_are_private",
        ),
    ),
    16: (
        "Playbooks, connectors and key URLs reach loopback, private and metadata addresses.",
        (
            "playbooks/test_http_tool.py::"
            "test_an_address_outside_the_public_internet_is_refused_and_the_setting_is_named",
            "connectors/test_http.py::test_a_private_address_that_is_not_allowed_is_sent_nothing",
            "server/test_ingress.py::test_keys_at_a_private_address_that_is_not_allowed_are_not_fetched",
            "base/test_addresses.py::test_an_ipv4_address_inside_an_ipv6_address_is_judged_by_itself",
        ),
    ),
    17: (
        "A push subscription that is only in the catalog accepts deliveries.",
        (
            "access/test_activation.py::test_a_push_subscription_accepts_deliveries_only_while_it_is_active",
            "access/test_activation.py::test_a_gateway_gets_no_secret_of_a_subscription_that_was_never_activated",
        ),
    ),
}


def test_every_attack_has_tests_that_exist() -> None:
    assert list(ATTACKS) == list(range(1, 18))
    for number, (attack, tests) in ATTACKS.items():
        assert tests, f"attack {number} has no test: {attack}"
        for test in tests:
            path, _, name = test.partition("::")
            assert name in _tests_of(path), f"attack {number}: there is no test {test}"


@cache
def _tests_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, functions) and node.name.startswith("test_"))


class Tenants:
    """A server with keys, and a client of each of two tenants without scopes but `agent`."""

    def __init__(self, server: Server, tokens: dict[str, str]) -> None:
        self.server = server
        self.tokens = tokens

    def client(self, tenant: str) -> AsyncTapeClient:
        return AsyncTapeClient(f"tape://{self.server.grpc_address}", id_token=self.tokens[tenant])

    async def post(self, tenant: str, event: dict[str, object]) -> Answer:
        return await call(
            self.server.http_address,
            "POST",
            "/v1/events",
            event,
            content_type="application/cloudevents+json",
            authorization=f"Bearer {self.tokens[tenant]}",
        )

    async def entries(self, tenant: str) -> list[dict[str, object]]:
        answer = await call(
            self.server.http_address, "POST", "/v1/events/list", {}, authorization=f"Bearer {self.tokens[tenant]}"
        )
        return list(answer.json()["events"])


@pytest.fixture
async def tenants(store_url: str, tmp_path: Path) -> AsyncIterator[Tenants]:
    key, _ = load_key(tmp_path / "dev.key")
    tokens = {
        tenant: key.mint(tenant=tenant, user="u", session="s", scopes=["agent"]) for tenant in ("victim", "attacker")
    }
    async with Server(settings_for(store_url, auth_jwks=str(jwks_path(tmp_path / "dev.key")))) as server:
        yield Tenants(server, tokens)


EVENT = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.paid", "subject": "42"}


async def test_attack_2_the_source_and_id_of_another_tenants_cloudevent_take_nothing_away(tenants: Tenants) -> None:
    taken = (await tenants.post("attacker", EVENT | {"data": {"by": "attacker"}})).json()["global_seqs"]
    written = (await tenants.post("victim", EVENT | {"data": {"by": "victim"}})).json()["global_seqs"]
    assert written != taken
    (entry,) = await tenants.entries("victim")
    assert (entry["sequence"], entry["payload"]) == (written[0], {"by": "victim"})


async def test_attack_2_the_request_id_of_another_tenants_playbook_step_takes_nothing_away(tenants: Tenants) -> None:
    async with tenants.client("victim") as victim, tenants.client("attacker") as attacker:
        run = await victim.begin_run(app_name="playbooks", user_id="u", session_id="s", invocation_id="i")
        step = f"{run.run_id}/notify"
        subject = "/tape/order/paid/1"
        for client, name in ((attacker, "attacker"), (victim, "victim")):
            drafts = [Draft(subject=subject, payload_json=json.dumps({"by": name}))]
            (written,) = await client.append_many(drafts, request_id=step, first_write_wins=True)
            entry = await anext(client.follow("/tape/order/**"))
            assert (entry.global_seq, entry.payload) == (written, {"by": name})


RESERVED = (
    *("value.changed", "effect.confirmed", "audit.admin_scope_used", "wallet.revealed", "run.terminal"),
    *("gate.released", "bus.dropped", "command.issued", "policy.denied", "auth.rejected", "journal.pruned"),
)


@pytest.mark.parametrize("kind", RESERVED)
async def test_attack_4_entries_that_tape_itself_writes_are_accepted_from_no_caller(
    tenants: Tenants, kind: str
) -> None:
    subject = f"/tape/{kind.replace('.', '/')}/1"
    async with tenants.client("victim") as victim, tenants.client("attacker") as attacker:
        run = await victim.begin_run(app_name="shop", user_id="u", session_id="s", invocation_id="i")
        head = (await victim.head()).global_seq
        with pytest.raises(ReservedKind, match=r"written by|writes"):
            await attacker.append(subject, {"run_id": run.run_id}, run_id=run.run_id)
        event = EVENT | {"type": kind, "subject": subject, "partitionkey": run.run_id, "data": {}}
        answer = await tenants.post("attacker", event)
        assert (answer.status, answer.json()["code"]) == (403, "reserved_kind")
        assert (await victim.head()).global_seq == head


async def test_attack_4_an_entry_into_a_foreign_run_stays_with_its_writer(tenants: Tenants) -> None:
    async with tenants.client("victim") as victim, tenants.client("attacker") as attacker:
        run = await victim.begin_run(app_name="shop", user_id="u", session_id="s", invocation_id="i")
        before = await victim.get_run(run.run_id)
        for subject in ("/tape/session/text/1", "/tape/order/paid/1", "/tape/task/done/1"):
            await attacker.append(subject, {"forged": True}, run_id=run.run_id)
        assert await victim.get_run(run.run_id) == before
        await victim.append("/tape/order/paid/own", run_id=run.run_id)
        stream = victim.subscribe_run(run_id=run.run_id)
        seen: list[str] = []
        while "/tape/order/paid/own" not in seen:
            seen.append((await anext(stream)).subject)
        assert all(subject.startswith("/tape/run/") for subject in seen[:-1]), seen
