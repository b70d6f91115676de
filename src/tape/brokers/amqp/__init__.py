"""AMQP 0-9-1 (RabbitMQ): connection and source."""
