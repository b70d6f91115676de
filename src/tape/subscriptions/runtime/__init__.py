"""The processes that fetch messages: in a server, remote, or local without a server."""
