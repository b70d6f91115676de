"""TLS of connections to a Tape server: whose certificates a client trusts, and the client's own certificate.

Every client uses the same three variables: TAPE_CA names the certificates of the authorities to trust instead of those
of the system, TAPE_CLIENT_CERT and TAPE_CLIENT_KEY a certificate and its key to prove who the client is.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tape.errors import InvalidConfig

CA_VARIABLE = "TAPE_CA"
CERT_VARIABLE = "TAPE_CLIENT_CERT"
KEY_VARIABLE = "TAPE_CLIENT_KEY"


class ClientTls(NamedTuple):
    """PEM files of a client; an empty name is none."""

    ca: str = ""
    cert: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """The TLS context of connections to a server over HTTP. TLS 1.2 is the oldest version."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except (OSError, ssl.SSLError) as error:
            raise InvalidConfig(f"{CA_VARIABLE} {self.ca} has no certificates: {_reason(error)}.") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert:
            try:
                context.load_cert_chain(self.cert, self.key, password=refuse_password)
            except (OSError, ssl.SSLError, ValueError) as error:
                raise InvalidConfig(
                    f"{CERT_VARIABLE} {self.cert} and {KEY_VARIABLE} {self.key} are no certificate and its key:"
                    f" {_reason(error)}."
                ) from error
        return context

    def contents(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """The contents of authorities, key and certificate; None for a file that is not named."""
        return (
            _read(CA_VARIABLE, self.ca),
            _read(KEY_VARIABLE, self.key),
            _read(CERT_VARIABLE, self.cert),
        )


def load_client_tls(env: Mapping[str, str] | None = None) -> ClientTls:
    """The files that TAPE_CA, TAPE_CLIENT_CERT and TAPE_CLIENT_KEY name."""
    env = os.environ if env is None else env
    found = ClientTls(env.get(CA_VARIABLE, ""), env.get(CERT_VARIABLE, ""), env.get(KEY_VARIABLE, ""))
    if bool(found.cert) is not bool(found.key):
        missing = KEY_VARIABLE if found.cert else CERT_VARIABLE
        raise InvalidConfig(f"{missing} is not set; a client certificate needs {CERT_VARIABLE} and {KEY_VARIABLE}.")
    return found


def refuse_password() -> bytes:
    """Answer OpenSSL's question for the password of an encrypted key; without this it asks at the terminal."""
    raise ValueError("the key is encrypted; remove its password (openssl pkey)")


def remedy_for(failure: str, *, is_secure: bool) -> str:
    """What to do about a failed connection, as far as TLS may be the reason; empty if it is not."""
    if "CERTIFICATE_VERIFY_FAILED" in failure or "Hostname Verification Check failed" in failure:
        return _remedy_for_certificate(failure.lower())
    if is_secure and "WRONG_VERSION_NUMBER" in failure:
        return " The server does not use TLS on this port: write tape:// or http://."
    is_closed = any(
        sign in failure for sign in ("Socket closed", "reset by peer", "CERTIFICATE_REQUIRED", "EOF occurred")
    )
    if is_closed and is_secure:
        return f" If the server demands client certificates, set {CERT_VARIABLE} and {KEY_VARIABLE}."
    return " If the server uses TLS on this port, write tapes:// or https://." if is_closed else ""


def _remedy_for_certificate(failure: str) -> str:
    if "expired" in failure:
        return " The certificate of the server has expired: renew it there."
    if "mismatch" in failure or "hostname" in failure or "not valid for" in failure:
        return " The certificate of the server is for other names: use one of them in the address."
    return (
        " The certificate of the server is not signed by an authority that this client trusts:"
        f" set {CA_VARIABLE} to the file with the certificate of its authority (`tape certs dev` writes ca.crt)."
    )


def _read(variable: str, path: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidConfig(f"{variable} {path} cannot be read: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", "") or getattr(error, "reason", "") or str(error)
