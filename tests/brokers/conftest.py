"""Brokers, one of each for all tests of a process."""

from tests.brokers.rigs import kafka_cluster, nats_server, pubsub_server

__all__ = ["kafka_cluster", "nats_server", "pubsub_server"]
