"""The other side, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pubsub import PubSub, emulator
from tests.receiver import Receiver


@pytest.fixture(scope="module")
def bank_process() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def bank(bank_process: Receiver) -> Iterator[Receiver]:
    """A bank that takes payments."""
    yield bank_process
    bank_process.post("/answer/200")
    bank_process.post("/release")


@pytest.fixture(scope="module")
def pubsub() -> Iterator[PubSub]:
    """Google's emulator; where it is not installed, the test is skipped and says so."""
    if emulator() is None:
        pytest.skip("Google's Pub/Sub emulator is not installed (gcloud components install pubsub-emulator)")
    with PubSub() as service:
        yield service
