"""Qualified names: the tenant of a name is inside it, and no name of one tenant is a name of another."""

from __future__ import annotations

import pytest

from tape.model.principal import Principal, acting_as
from tape.model.tenant_names import display, is_visible, name_within, plain_name, qualify, split_name, tenant_of

ACME = Principal(tenant="acme", scopes=frozenset({"operator"}))
ALL = Principal(tenant="acme", scopes=frozenset({"operator", "tenant:*"}), key_id="k")
SYSTEM_KEY = Principal(scopes=frozenset({"system"}), key_id="k")
OPEN = Principal(is_open=True)
TENANTS = ["acme", "a/b", "~acme", "a%2Fb", "%", "~", "ä ö", "a%25", "..", "acme/x"]


@pytest.mark.parametrize("tenant", TENANTS)
@pytest.mark.parametrize("name", ["x", "orders/ingest", "~x", "~acme/x", "a%2Fb"])
def test_a_qualified_name_has_its_tenant_and_its_name(tenant: str, name: str) -> None:
    assert split_name(f"{name_within(tenant, 'x')[:-1]}{name}") == (tenant, name)


def test_no_two_tenants_share_a_name() -> None:
    names = ["x", "b/x", "~x", "acme/x", "~acme/x"]
    qualified = [name_within(tenant, name) for tenant in ["", *TENANTS] for name in names if tenant or name[0] != "~"]
    assert len({*qualified}) == len(qualified) - 1  # acme's own x, by its plain and by its qualified name


@pytest.mark.parametrize("name", ["x", "~", "~/x", "~x", "~acme/", "~%61cme/x", "~a%2fb/x", "~%/x", "acme/x"])
def test_a_name_that_no_tenant_has_is_bare(name: str) -> None:
    assert (tenant_of(name), plain_name(name)) == ("", name)


def test_a_caller_of_one_tenant_names_its_own_things_only() -> None:
    with acting_as(ACME):
        assert qualify("x") == qualify("~acme/x") == "~acme/x"
        assert qualify("~other/x") == "~acme/~other/x"
        assert qualify("") == ""
        assert display("~acme/x") == "x"
        assert display("~acme/~other/x") == "~other/x"
        assert is_visible("~acme/x")
        assert not is_visible("~acme2/x")
        assert not is_visible("x")


@pytest.mark.parametrize("caller", [SYSTEM_KEY, OPEN])
def test_a_caller_without_a_tenant_uses_names_as_they_are(caller: Principal) -> None:
    with acting_as(caller):
        for name in ("x", "~other/x"):
            assert qualify(name) == display(name) == name
            assert is_visible(name)


def test_a_caller_of_all_tenants_means_its_own_unless_it_names_another() -> None:
    with acting_as(ALL):
        shown = {"~acme/x": "x", "~other/x": "~other/x", "x": "~/x"}
        for name, written in shown.items():
            assert display(name) == written
            assert qualify(written) == name
            assert is_visible(name)
