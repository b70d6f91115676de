"""Ids and owner names."""

from __future__ import annotations

import os
import random
import socket
import uuid
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from tape.base.ids import new_id, new_time_ordered_id
from tape.base.owner import claim_owner, new_owner, process_name

MOMENTS = st.integers(0, (1 << 48) - 1)


def test_an_id_is_a_random_uuid() -> None:
    made = {new_id() for _ in range(100)}
    assert len(made) == 100
    assert {uuid.UUID(each).version for each in made} == {4}


@given(MOMENTS, st.sampled_from([4, 7]))
def test_a_time_ordered_id_is_a_uuid_that_begins_with_its_time(moment: int, version: Literal[4, 7]) -> None:
    made = uuid.UUID(new_time_ordered_id(moment, version))
    assert (made.version, made.variant, made.int >> 80) == (version, uuid.RFC_4122, moment)


@given(MOMENTS, MOMENTS)
def test_time_ordered_ids_sort_by_time(one: int, other: int) -> None:
    if one < other:
        assert new_time_ordered_id(one) < new_time_ordered_id(other)


def test_an_owner_names_host_and_process_and_is_unique() -> None:
    owners = {new_owner() for _ in range(100)}
    assert len(owners) == 100
    assert all(each.startswith(f"{socket.gethostname()}-{os.getpid()}-") for each in owners)
    assert process_name() == f"{socket.gethostname()}-{os.getpid()}"


def test_processes_that_seed_the_generator_alike_have_different_owners() -> None:
    state = random.getstate()
    try:
        random.seed(1)
        one = new_owner()
        random.seed(1)
        assert new_owner() != one
    finally:
        random.setstate(state)


def test_each_claim_of_a_worker_has_an_owner_of_its_own() -> None:
    one, other = claim_owner("worker-1"), claim_owner("worker-1")
    assert one != other
    assert one.startswith("worker-1#")
    assert claim_owner().startswith(process_name())
