"""The principal of a client certificate: the first row of `tls_clients` whose pattern one of its names matches.

TLS has verified the certificate when this is asked: its signature, its dates, and that its key is the client's.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from tape.base.certificate_names import (
    MAX_CACHED,
    Certificate,
    NamePattern,
    compile_pattern,
    is_too_wide,
    read_certificate,
)
from tape.base.config import TlsClient
from tape.errors import CertificateRejected, InvalidConfig
from tape.model.entry import check_id
from tape.model.principal import ALL_TENANTS, SCOPES, SYSTEM_SCOPE, Principal, expand_scopes

# The key of a principal that came from a certificate: this and the first 16 hexadecimal digits of its SHA-256.
KEY_ID_PREFIX = "cert:"
KEY_ID_DIGITS = 16


class _Row(NamedTuple):
    pattern: NamePattern
    tenant: str
    scopes: frozenset[str]


class ClientCertificates:
    """Gives the clients of the table `tls_clients` their tenant and scopes. An empty table gives none."""

    def __init__(self, rows: Sequence[TlsClient] = ()) -> None:
        self._rows = [_compile(row) for row in rows]

    def __bool__(self) -> bool:
        return bool(self._rows)

    def principal_of(self, der: bytes, session: str = "") -> Principal:
        """The principal of a verified certificate. CertificateRejected if it matches no row or has expired since."""
        check_id("x-harbor-session", session)
        certificate = read_certificate(der)
        if time.time() >= certificate.expires_at:
            raise CertificateRejected("certificate_expired")
        for row in self._rows:
            for name in certificate.names:
                if row.pattern.matches(name):
                    return Principal(
                        tenant=row.tenant,
                        user=name.text,
                        session=session,
                        scopes=row.scopes,
                        key_id=KEY_ID_PREFIX + certificate.fingerprint[:KEY_ID_DIGITS],
                        expires_at=certificate.expires_at,
                    )
        raise CertificateRejected("certificate_unknown", _shown(certificate))


@lru_cache(MAX_CACHED)
def to_der(pem: bytes) -> bytes:
    """A certificate in PEM, as gRPC has it, in DER."""
    return ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))


def _shown(certificate: Certificate) -> str:
    names = ", ".join(name.text[:100] for name in certificate.names[:5]) or "no DNS name, URI or mail address"
    return f"{names}; no row of tls_clients on the server matches it: add one, or send a token"


def _compile(row: TlsClient) -> _Row:
    shown = f"tls_clients has san {row.san!r}"
    if is_too_wide(row.san):
        raise InvalidConfig(f"{shown}, which would match every name; * stands for one label of a DNS name only.")
    if unknown := set(row.scopes) - SCOPES:
        raise InvalidConfig(f"{shown} with the scope {min(unknown)!r}; there are {', '.join(sorted(SCOPES))}.")
    scopes = expand_scopes(frozenset(row.scopes))
    if not row.tenant and scopes.isdisjoint({ALL_TENANTS, SYSTEM_SCOPE}):
        raise InvalidConfig(f"{shown} without a tenant; name one, or give it the scope {ALL_TENANTS}.")
    if "\0" in row.tenant:
        raise InvalidConfig(f"{shown} with the tenant {row.tenant!r}; a tenant has no NUL.")
    return _Row(compile_pattern(row.san), row.tenant, scopes)
