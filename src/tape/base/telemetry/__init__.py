"""Metrics and trace context."""
