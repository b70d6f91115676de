"""Apache Kafka: a member of a consumer group."""

from tape.subscriptions.sources.kafka.source import KafkaSource

__all__ = ["KafkaSource"]
