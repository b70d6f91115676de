"""The lease of a row."""

from __future__ import annotations

from tape.store.lease import Lease, expiry_ms


def test_a_row_without_an_owner_or_with_an_expired_lease_is_free() -> None:
    assert Lease().is_free(1)
    assert Lease("a", 10).is_free(10)
    assert not Lease("a", 10).is_free(9)


def test_a_lease_is_open_to_its_owner_and_after_its_expiry_to_all() -> None:
    assert Lease("a", 10).is_open_to("a", 9)
    assert not Lease("a", 10).is_open_to("b", 9)
    assert Lease("a", 10).is_open_to("b", 10)


def test_a_ttl_of_zero_means_the_default() -> None:
    assert expiry_ms(100, 5, 60) == 105
    assert expiry_ms(100, 0, 60) == expiry_ms(100, -1, 60) == 160
