"""Apache Kafka."""

from tape.brokers.kafka.source import KafkaSource

__all__ = ["KafkaSource"]
