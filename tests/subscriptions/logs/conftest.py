"""Brokers, one of each for all tests of a process."""

from tests.subscriptions.sources.rigs import kafka_cluster, nats_server

__all__ = ["kafka_cluster", "nats_server"]
