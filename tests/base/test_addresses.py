"""Which addresses outgoing connections may go to, and how the allow-list is read."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape.base.addresses import OPERATOR, PUBLIC_ONLY, AddressPolicy, allowing, connect, is_public, open_connection
from tape.base.allow_list import AllowList
from tape.base.config import Settings, _http_allow_of_file, load_http_allow, parse_address
from tape.errors import AddressNotAllowed, InvalidConfig

PRIVATE = {
    "0.0.0.0": "unspecified",
    "0.1.2.3": "unspecified",
    "10.0.0.1": "private",
    "100.64.0.1": "carrier-grade NAT",
    "100.100.100.200": "carrier-grade NAT",
    "127.0.0.1": "loopback",
    "127.255.255.254": "loopback",
    "168.63.129.16": "cloud metadata",
    "169.254.1.1": "link-local",
    "169.254.169.254": "cloud metadata",
    "172.16.0.1": "private",
    "172.31.255.255": "private",
    "192.0.0.192": "reserved",
    "192.168.1.1": "private",
    "198.18.0.1": "benchmarking",
    "203.0.113.5": "documentation",
    "224.0.0.1": "multicast",
    "240.0.0.1": "reserved",
    "255.255.255.255": "reserved",
    "::": "unspecified",
    "::1": "loopback",
    "::127.0.0.1": "IPv4-compatible",
    "::8.8.8.8": "IPv4-compatible",
    "::ffff:127.0.0.1": "loopback",
    "::ffff:10.1.2.3": "private",
    "::ffff:169.254.169.254": "cloud metadata",
    "64:ff9b::127.0.0.1": "loopback",
    "64:ff9b::a00:1": "private",
    "64:ff9b:1::1": "local NAT64",
    "64:ff9b:1:ffff::8.8.8.8": "local NAT64",
    "100::1": "reserved",
    "2001::1": "unspecified",
    "2001:0:5db8:d70e:0:0:80ff:fffe": "loopback",
    "2001:db8::1": "documentation",
    "2002:7f00:1::": "loopback",
    "2002:c0a8:101::1": "private",
    "3fff::1": "documentation",
    "4000::1": "reserved",
    "5f00::1": "reserved",
    "fc00::1": "private",
    "fd00:ec2::254": "cloud metadata",
    "fe80::1%eth0": "link-local",
    "fec0::1": "site-local",
    "ff02::1": "multicast",
}
PUBLIC = [
    "8.8.8.8",
    "93.184.215.14",
    "100.63.255.255",
    "100.128.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "2606:4700:4700::1111",
    "2a00:1450:4001:82a::200e",
    "2002:808:808::1",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
]

ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))


def resolved(*addresses: str) -> Any:
    """A resolver that always answers with these addresses."""

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [
            (socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
            for each in addresses
        ]

    return resolve


def admitted(policy: AddressPolicy, host: str, port: int, *addresses: str) -> list[str]:
    return [each[4][0] for each in policy.admit(host, port, resolved(*addresses)(host, port))]


@pytest.mark.parametrize(("address", "rule"), PRIVATE.items())
def test_an_address_outside_the_public_internet_is_refused_and_the_rule_is_named(address: str, rule: str) -> None:
    assert not is_public(address)
    with pytest.raises(AddressNotAllowed) as raised:
        admitted(PUBLIC_ONLY, "partner.example.com", 8080, address)
    assert f"({rule})" in str(raised.value)
    assert "partner.example.com is " in str(raised.value)
    assert "TAPE_HTTP_ALLOW=partner.example.com:8080" in str(raised.value)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_admitted(address: str) -> None:
    assert is_public(address)
    assert admitted(PUBLIC_ONLY, "partner.example.com", 443, address) == [address]


@given(ADDRESSES)
def test_no_address_is_public_that_the_standard_library_calls_private(address: Any) -> None:
    if is_public(str(address)):
        assert not any((address.is_loopback, address.is_link_local, address.is_multicast, address.is_unspecified))
        assert address.is_global or address.version == 6  # IPv4 inside IPv6 is judged by itself


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_inside_an_ipv6_address_is_judged_by_itself(address: ipaddress.IPv4Address) -> None:
    expected = is_public(str(address))
    number = int(address)
    assert is_public(f"::ffff:{address}") is expected
    assert is_public(f"64:ff9b::{address}") is expected
    assert is_public(f"2002:{number >> 16:x}:{number & 0xFFFF:x}::1") is expected
    assert not is_public(f"::{address}")
    assert not is_public(f"64:ff9b:1::{address}")


@given(ADDRESSES, st.integers(1, 65_535))
def test_an_allow_list_with_an_address_permits_it_in_every_spelling(address: Any, port: int) -> None:
    shown = f"[{address}]" if address.version == 6 else str(address)
    for text in (str(address), shown, f"{shown}:{port}", f"{address}/{address.max_prefixlen}"):
        assert AllowList.parse(text).permits("any.example", port, address)
    assert not AllowList.parse(f"{shown}:{port}").permits("any.example", port % 65_535 + 1, address)


@given(st.text(max_size=40))
def test_any_text_is_an_allow_list_or_an_invalid_setting(text: str) -> None:
    with contextlib.suppress(InvalidConfig):  # any other error fails the test
        AllowList.parse(text)


@pytest.mark.parametrize(
    ("text", "host", "port", "address", "expected"),
    [
        ("localhost", "localhost", 80, "127.0.0.1", True),
        ("localhost", "LOCALHOST.", 80, "::1", True),
        ("localhost", "127.0.0.1", 80, "127.0.0.1", False),
        ("stock.internal:8080", "stock.internal", 8080, "10.0.0.1", True),
        ("stock.internal:8080", "stock.internal", 8081, "10.0.0.1", False),
        ("stock.internal", "evil.stock.internal", 80, "10.0.0.1", False),
        ("10.0.0.0/8", "anything", 80, "10.255.0.1", True),
        ("10.0.0.0/8", "anything", 80, "11.0.0.1", False),
        ("10.0.0.0/8", "anything", 80, "::ffff:10.0.0.1", True),
        ("127.0.0.1:9000", "localhost", 9000, "127.0.0.1", True),
        ("127.0.0.1:9000", "localhost", 9001, "127.0.0.1", False),
        ("[::1]:9000", "::1", 9000, "::1", True),
        ("::1", "localhost", 9000, "::1", True),
        ("fd00::/8, 127.0.0.0/8", "x", 1, "fd12::1", True),
        ("", "localhost", 80, "127.0.0.1", False),
    ],
)
def test_an_allow_list_permits_names_ports_and_networks(
    text: str, host: str, port: int, address: str, expected: bool
) -> None:
    assert AllowList.parse(text).permits(host, port, ipaddress.ip_address(address)) is expected


@pytest.mark.parametrize(
    "text", ["http://localhost", "localhost:http", "localhost:0", "localhost:70000", "10.0.0.0/99", "a b", "*.internal"]
)
def test_an_entry_that_cannot_be_read_is_an_invalid_setting(text: str) -> None:
    with pytest.raises(InvalidConfig, match="http_allow"):
        AllowList.parse(text)
    with pytest.raises(InvalidConfig, match="http_allow"):
        Settings(http_allow=text)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "0x7f.1", "2130706433", "017700000001", "0", "localhost", "::1"]
)
def test_every_spelling_of_loopback_is_refused(host: str) -> None:
    with pytest.raises(AddressNotAllowed):
        connect(host, 1, 1.0, PUBLIC_ONLY)


@pytest.mark.parametrize("host", ["127.1", "0x7f.1", "2130706433", "::1"])
async def test_every_spelling_of_loopback_is_refused_on_the_event_loop(host: str) -> None:
    with pytest.raises(AddressNotAllowed):
        await open_connection(host, 1, PUBLIC_ONLY)


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example", "no-such-host.invalid"])
def test_a_name_that_cannot_be_resolved_is_an_os_error(host: str) -> None:
    with pytest.raises(OSError):
        connect(host, 80, 1.0, OPERATOR)


def test_only_the_admitted_addresses_of_a_name_are_used() -> None:
    assert admitted(PUBLIC_ONLY, "two.example", 80, "127.0.0.1", "8.8.8.8") == ["8.8.8.8"]


def test_an_operator_may_name_any_address() -> None:
    assert admitted(OPERATOR, "tape.internal", 80, "127.0.0.1") == ["127.0.0.1"]


def test_a_policy_with_its_own_allow_list_ignores_the_one_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPE_HTTP_ALLOW", "127.0.0.1")
    assert admitted(PUBLIC_ONLY, "localhost", 80, "127.0.0.1") == ["127.0.0.1"]
    with pytest.raises(AddressNotAllowed):
        admitted(AddressPolicy(allow=AllowList()), "localhost", 80, "127.0.0.1")


def test_entries_can_be_added_for_the_time_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAPE_HTTP_ALLOW", raising=False)
    with allowing("localhost:80"), allowing("10.0.0.0/8"):
        assert admitted(PUBLIC_ONLY, "localhost", 80, "127.0.0.1", "10.0.0.1") == ["127.0.0.1", "10.0.0.1"]
    with pytest.raises(AddressNotAllowed):
        admitted(PUBLIC_ONLY, "localhost", 80, "127.0.0.1")


def test_the_variable_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tape.toml"
    file.write_text('http_allow = "stock.internal"\n')
    assert load_http_allow({"TAPE_CONFIG": str(file)}) == "stock.internal"
    assert load_http_allow({"TAPE_CONFIG": str(file), "TAPE_HTTP_ALLOW": ""}) == ""
    assert _http_allow_of_file(str(file)) == "stock.internal"


def test_a_listen_address_of_ipv6_without_a_port_is_an_invalid_setting() -> None:
    assert parse_address("listen", "[::1]:7878") == ("::1", 7878)
    for address in ("::1", "[::1]", "fe80::1:2"):
        with pytest.raises(InvalidConfig, match="host:port"):
            parse_address("listen", address)
