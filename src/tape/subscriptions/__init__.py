"""Where it comes from: messages of brokers and webhooks that become runs."""
