"""TLS of the gRPC listener. New connections get the certificate that is loaded at that moment."""

from __future__ import annotations

from typing import Any

import grpc

from tape.server.tls import LoadedTls, ServerTls


def server_credentials(tls: ServerTls, *, wants_certificate: bool) -> Any:
    """Credentials of a port. With `wants_certificate` a client without a certificate is refused at the handshake.

    gRPC for Python cannot ask for a certificate without demanding one.
    """

    def configuration(loaded: LoadedTls) -> Any:
        authorities = loaded.client_ca if wants_certificate else None
        return grpc.ssl_server_certificate_configuration([(loaded.key, loaded.cert)], authorities)

    in_use = tls.loaded

    def fetch() -> Any:
        """Called by gRPC before each handshake, on a thread of its own; None keeps what is in use."""
        nonlocal in_use
        if tls.loaded is in_use:
            return None
        in_use = tls.loaded
        return configuration(in_use)

    return grpc.dynamic_ssl_server_credentials(configuration(in_use), fetch, wants_certificate)
