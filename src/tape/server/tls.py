"""TLS of the listeners of a process: its certificate and key, loaded again when their files change."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from pathlib import Path
from typing import NamedTuple

from tape.base.config import TlsFiles
from tape.base.telemetry.metrics import Metrics
from tape.base.tls import refuse_password
from tape.errors import InvalidConfig

log = logging.getLogger(__name__)

# Seconds between two looks at the files.
RELOAD_S = 2.0
MAX_FILE_BYTES = 1 << 20
# A certificate that expires sooner than this is worth a warning: 14 days.
WARNING_S = 14 * 86_400

_Fingerprint = tuple[tuple[int, int, int], ...]


class LoadedTls(NamedTuple):
    """What the files held at one moment. The private key belongs to the certificate: OpenSSL has checked it."""

    cert: bytes
    key: bytes
    client_ca: bytes | None
    context: ssl.SSLContext
    expires_at: float


class ServerTls:
    """The certificate that new connections get. Open connections keep theirs.

    A pair that cannot be loaded, for example because only one of its files has been replaced so far, leaves the
    previous one in use; it is logged, counted, and tried again.
    """

    def __init__(self, files: TlsFiles, metrics: Metrics, interval_s: float = RELOAD_S) -> None:
        self.files = files
        self._metrics = metrics
        self._interval_s = interval_s
        self._seen = _fingerprint(files)
        self._failure = ""
        self.loaded = load(files)
        _warn_of_expiry(self.loaded, files)
        self._task: asyncio.Task[None] | None = None
        # Computed when the metrics are read; without TLS there is no such series.
        metrics.tls_expires.labels("server").set_function(lambda: self.loaded.expires_at - time.time())

    def start(self) -> None:
        """Watch the files."""
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stop watching the files."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def reload(self) -> None:
        """Load the files if they have changed since the last look or could not be loaded then."""
        seen = _fingerprint(self.files)
        if seen == self._seen and not self._failure:
            return
        self._seen = seen
        try:
            loaded = load(self.files)
        except InvalidConfig as error:
            self._metrics.tls_reloads.labels("failed").inc()
            if str(error) != self._failure:  # once for each kind of failure, not at every look
                log.error("TLS files were not loaded, the previous certificate stays in use: %s", error)
            self._failure = str(error)
            return
        self._failure = ""
        if loaded[:3] == self.loaded[:3]:
            return
        self.loaded = loaded
        self._metrics.tls_reloads.labels("ok").inc()
        log.info("TLS certificate %s loaded; it expires in %s", self.files.cert, days_left(loaded.expires_at))
        _warn_of_expiry(loaded, self.files)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await asyncio.to_thread(self.reload)


def load(files: TlsFiles) -> LoadedTls:
    """Read and check the files. Raises InvalidConfig that names the file at fault and what to do."""
    before = _contents(files)
    context = _context(files)
    if _contents(files) != before:
        raise InvalidConfig(f"tls_cert {files.cert} or tls_key {files.key} changed while it was read; try again.")
    cert, key, client_ca = before
    return LoadedTls(cert, key, client_ca, context, _expires_at(files.cert, cert))


def days_left(expires_at: float) -> str:
    """The time until a certificate expires, in days."""
    return f"{(expires_at - time.time()) / 86_400:.1f} days"


def _warn_of_expiry(loaded: LoadedTls, files: TlsFiles) -> None:
    left_s = loaded.expires_at - time.time()
    if left_s <= 0:
        log.warning("TLS certificate %s has expired: clients reject it; renew it", files.cert)
    elif left_s < WARNING_S:
        log.warning("TLS certificate %s expires in %s; renew it", files.cert, days_left(loaded.expires_at))


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.cert, files.key, password=refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = (
                f"tls_key {files.key} does not belong to tls_cert {files.cert}; name a certificate and its own key"
            )
        else:
            problem = (
                f"tls_cert {files.cert} and tls_key {files.key} cannot be loaded ({error.reason or error}); both must"
                " be PEM, the certificate of this server first"
            )
        raise InvalidConfig(f"{problem}. `tape certs dev` makes a pair for development.") from error
    except ValueError as error:
        raise InvalidConfig(f"tls_key {files.key} cannot be loaded: {error}.") from error
    if files.client_ca:
        try:
            context.load_verify_locations(files.client_ca)
        except ssl.SSLError as error:
            raise InvalidConfig(
                f"tls_client_ca {files.client_ca} has no certificates in PEM ({error.reason or error})."
            ) from error
        # A client without a certificate can send a token.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _contents(files: TlsFiles) -> tuple[bytes, bytes, bytes | None]:
    client_ca = _read("tls_client_ca", files.client_ca) if files.client_ca else None
    return _read("tls_cert", files.cert), _read("tls_key", files.key), client_ca


def _read(name: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidConfig(
            f"{name} {path} cannot be read: {error.strerror}. Name a PEM file; `tape certs dev` makes some."
        ) from error
    if len(content) > MAX_FILE_BYTES:
        raise InvalidConfig(f"{name} {path} has more than {MAX_FILE_BYTES} bytes; it must be a PEM file.")
    return content


def _expires_at(path: str, content: bytes) -> float:
    """When the first certificate of the chain expires, in seconds since 1970."""
    from cryptography import x509  # most processes that import this module have no TLS

    try:
        chain = x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise InvalidConfig(f"tls_cert {path} has a certificate that cannot be read: {error}.") from error
    return min(certificate.not_valid_after_utc.timestamp() for certificate in chain)


def _fingerprint(files: TlsFiles) -> _Fingerprint:
    """What changes when one of the files is replaced or written."""
    found = []
    for path in filter(None, (files.cert, files.key, files.client_ca)):
        try:
            status = Path(path).stat()
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        except OSError:
            found.append((0, 0, 0))
    return tuple(found)
