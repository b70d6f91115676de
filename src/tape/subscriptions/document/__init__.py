"""The document `kind: Subscription`: its fields, validation and JSON Schema."""
