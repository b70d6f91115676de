"""Brokers, one of each for all tests of a process."""

from tests.brokers.rigs import amqp_broker, kafka_cluster, mqtt_broker, nats_server, pubsub_server, sqs_service

__all__ = ["amqp_broker", "kafka_cluster", "mqtt_broker", "nats_server", "pubsub_server", "sqs_service"]
