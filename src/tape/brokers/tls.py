"""TLS certificates of a connection: PEM text from the wallet, or the path of a file."""

from __future__ import annotations

import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tape.brokers.settings import SourceSettings

_PARTS = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class TlsCertificates:
    """Certificates to trust (`ca`; the machine's own if empty), and our own `cert` with its `key`, as PEM text."""

    ca: str = ""
    cert: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """The certificates as a context of Python's ssl module."""
        context = ssl.create_default_context(cadata=self.ca or None)
        if self.cert:
            # The ssl module reads a key only from a file: a temporary one that only this user can read.
            handle, path = tempfile.mkstemp(prefix="tape-tls-")
            try:
                os.write(handle, f"{self.cert}\n{self.key}".encode())
                os.close(handle)
                context.load_cert_chain(path)
            finally:
                Path(path).unlink()
        return context


def tls_of(settings: SourceSettings) -> TlsCertificates | None:
    """The certificates in `tls` of the spec, or in `ca`, `cert` and `key` of the credential; None without any."""
    given = settings.mapping("tls", _PARTS)
    spec = SourceSettings(f"{settings.source}.tls", given)
    wanted = {name: spec.text(name) or settings.text(name) for name in _PARTS}
    if settings.raw("tls") is None and not any(wanted.values()):
        return None
    try:
        parts = {name: _pem(value) for name, value in wanted.items()}
    except OSError as error:
        raise settings.wrong(f"'tls' names a file that cannot be read: {error.strerror}: {error.filename}") from error
    if bool(parts["cert"]) != bool(parts["key"]):
        raise settings.wrong("'tls' must have both 'cert' and 'key', or neither")
    tls = TlsCertificates(**parts)
    try:
        tls.context()
    except (ssl.SSLError, ValueError) as error:
        raise settings.wrong(f"'tls' has a certificate or key that is no PEM: {error}") from error
    return tls


def _pem(value: str) -> str:
    return value if not value or "-----BEGIN" in value else Path(value).expanduser().read_text(encoding="ascii")
