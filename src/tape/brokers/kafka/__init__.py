"""Apache Kafka: a member of a consumer group."""

from tape.brokers.kafka.source import KafkaSource

__all__ = ["KafkaSource"]
