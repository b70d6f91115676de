"""Which optional libraries are installed."""

from __future__ import annotations

from importlib.util import find_spec

from tape.errors import MissingExtra

# The libraries that `pip install 'tape[server]'` adds and a server cannot do without, as they are imported.
SERVER_LIBRARIES = (
    "apsw",
    "cryptography",
    "grpc_health",
    "grpc_reflection",
    "httptools",
    "jwt",
    "starlette",
    "uvicorn",
)


def has_server_libraries() -> bool:
    """Whether the libraries of the extra `server` are installed."""
    return all(find_spec(name) is not None for name in SERVER_LIBRARIES)


def require_server_libraries(what: str) -> None:
    """Raise MissingExtra for `what` unless the libraries of the extra `server` are installed."""
    if not has_server_libraries():
        raise MissingExtra(what, "server")
