"""Master keys in Google Cloud KMS: they never leave it; data keys are sent there to be wrapped and unwrapped."""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import urllib3

from tape.errors import InvalidConfig, KeyServiceUnavailable, MissingExtra, SecretDamaged, WalletLocked

ENDPOINT = "https://cloudkms.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/cloudkms"
TIMEOUT_S = 10.0
TRIES = 4
MAX_SHOWN = 200

_RESOURCE = re.compile(r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+")


class GoogleKms:
    """Wraps data keys with a symmetric key of Cloud KMS, by its REST calls `:encrypt` and `:decrypt`.

    `token` gives an access token; without one the application's default credentials are used (extra `gcp`).
    """

    def __init__(self, resource: str, *, endpoint: str = ENDPOINT, token: Callable[[], str] | None = None) -> None:
        if not _RESOURCE.fullmatch(resource):
            raise InvalidConfig(
                f"The KMS key {resource!r} must look like projects/P/locations/L/keyRings/R/cryptoKeys/K."
            )
        self.name = f"the KMS key {resource}"
        self._resource = resource
        self._url = f"{endpoint}/v1/{resource}"
        self._token = token or _DefaultCredentials()
        retry = urllib3.Retry(TRIES - 1, backoff_factor=0.2, status_forcelist=(429, 500, 502, 503, 504), redirect=0)
        retry = retry.new(allowed_methods=None, raise_on_status=False)
        self._pool = urllib3.PoolManager(timeout=TIMEOUT_S, retries=retry)

    def wrap(self, data_key: bytes, place: bytes) -> tuple[str, bytes]:
        """Have the key's primary version wrap it."""
        answer = self._call("encrypt", {"plaintext": _text(data_key), "additionalAuthenticatedData": _text(place)})
        return answer.get("name", self._resource), self._bytes(answer, "ciphertext")

    def unwrap(self, master_key: str, wrapped: bytes, place: bytes) -> bytes:
        """Have it unwrapped; KMS knows by which version."""
        if not master_key.startswith(f"{self._resource}/cryptoKeyVersions/"):
            raise WalletLocked(
                f"A secret was sealed with {master_key}, not with {self.name}. Set wallet_key to what it was, or"
                " set the secret again."
            )
        answer = self._call("decrypt", {"ciphertext": _text(wrapped), "additionalAuthenticatedData": _text(place)})
        return self._bytes(answer, "plaintext")

    def renew(self, in_use: frozenset[str]) -> str:
        """Nothing: versions of the key are made and retired in KMS. Sealing anew uses its primary version."""
        return self._resource

    def close(self) -> None:
        """Close the connections to KMS."""
        self._pool.clear()

    def _call(self, verb: str, body: dict[str, str]) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self._token()}", "content-type": "application/json"}
        try:
            answer = self._pool.request("POST", f"{self._url}:{verb}", body=msgspec.json.encode(body), headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise KeyServiceUnavailable(f"{self.name} cannot be reached: {type(error).__name__}.") from None
        if answer.status == 200:
            return _object(answer.data)
        said = str(_object(answer.data).get("error", {}).get("message", ""))[:MAX_SHOWN]
        told = f"{self.name} answered {answer.status} to {verb}: {said}"
        if answer.status == 429 or answer.status >= 500:
            raise KeyServiceUnavailable(told)
        if answer.status == 400 and verb == "decrypt":
            raise SecretDamaged(f"A sealed secret does not open, it was changed or moved: {told}")
        raise WalletLocked(f"{told} (the account needs roles/cloudkms.cryptoKeyEncrypterDecrypter on the key)")

    def _bytes(self, answer: dict[str, Any], field: str) -> bytes:
        try:
            return base64.b64decode(answer[field], validate=True)
        except (KeyError, TypeError, binascii.Error):
            raise KeyServiceUnavailable(f"{self.name} gave an answer without a usable {field!r}.") from None


class _DefaultCredentials:
    """Access tokens of the application's default credentials, fetched anew when they run out."""

    def __init__(self) -> None:
        self._credentials: Any = None
        self._fetching = threading.Lock()

    def __call__(self) -> str:
        try:
            import google.auth
            from google.auth.exceptions import GoogleAuthError
            from google.auth.transport.requests import Request
        except ImportError:
            raise MissingExtra("A wallet key in Google KMS", "gcp") from None
        with self._fetching:
            try:
                if self._credentials is None:
                    self._credentials, _ = google.auth.default(scopes=[SCOPE])
                if not self._credentials.valid:
                    self._credentials.refresh(Request())
            except GoogleAuthError as error:
                raise WalletLocked(
                    f"There are no Google credentials to use the wallet's KMS key with: {error}"
                ) from None
            return str(self._credentials.token)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _object(content: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
