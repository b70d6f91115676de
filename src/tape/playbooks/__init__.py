"""How a message is handled: playbooks, what runs them, and the pools that they run on."""
