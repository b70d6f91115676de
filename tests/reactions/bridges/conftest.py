"""One broker of each kind per test process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.broker_services import KafkaCluster, NatsServer
from tests.pubsub import PubSub, emulator
from tests.reactions.bridges.outside import Outside, kafka_outside, nats_outside, pubsub_outside


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def pubsub() -> Iterator[PubSub]:
    if emulator() is None:
        pytest.skip("Google's Pub/Sub emulator is not installed (gcloud components install pubsub-emulator)")
    with PubSub() as running:
        yield running


@pytest.fixture(params=["nats", "kafka", "pubsub"])
async def outside(request: pytest.FixtureRequest) -> AsyncIterator[Outside]:
    """The far end of a bridge, of each kind."""
    if request.param == "nats":
        async with nats_outside(request.getfixturevalue("nats_server")) as found:
            yield found
    elif request.param == "kafka":
        async with kafka_outside(request.getfixturevalue("kafka_cluster")) as found:
            yield found
    else:
        async with pubsub_outside(request.getfixturevalue("pubsub")) as found:
            yield found
