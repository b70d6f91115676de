"""How Tape is observed: metrics and trace context."""
