"""Subscriptions: messages of brokers and webhooks become runs of playbooks."""
