"""Other durable logs, each with its own server and its own client."""
