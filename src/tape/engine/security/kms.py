"""Master keys in Google Cloud KMS: they never leave it; data keys are sent there to be wrapped and unwrapped."""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from tape.base.addresses import OPERATOR
from tape.base.http import HttpClient, Response
from tape.base.retry import RetryPolicy, retry
from tape.errors import (
    HttpRequestFailed,
    InvalidConfig,
    KeyServiceUnavailable,
    MissingExtra,
    SecretDamaged,
    WalletLocked,
)

ENDPOINT = "https://cloudkms.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/cloudkms"
TIMEOUT_S = 10.0
# Wrapping and unwrapping may be repeated.
RETRY = RetryPolicy(4, 0.2, retry_on=(KeyServiceUnavailable,))
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
        self._http = HttpClient(OPERATOR, timeout_s=TIMEOUT_S)

    def wrap(self, data_key: bytes, associated_data: bytes) -> tuple[str, bytes]:
        """Have the key's primary version wrap it."""
        answer = self._call(
            "encrypt", {"plaintext": _text(data_key), "additionalAuthenticatedData": _text(associated_data)}
        )
        return answer.get("name", self._resource), self._bytes(answer, "ciphertext")

    def unwrap(self, master_key: str, wrapped: bytes, associated_data: bytes) -> bytes:
        """Have it unwrapped; KMS knows by which version."""
        if not master_key.startswith(f"{self._resource}/cryptoKeyVersions/"):
            raise WalletLocked(
                f"A secret was sealed with {master_key}, not with {self.name}. Set wallet_key to what it was, or"
                " set the secret again."
            )
        answer = self._call(
            "decrypt", {"ciphertext": _text(wrapped), "additionalAuthenticatedData": _text(associated_data)}
        )
        return self._bytes(answer, "plaintext")

    def renew(self, in_use: frozenset[str]) -> str:
        """Nothing: versions of the key are made and retired in KMS. Sealing anew uses its primary version."""
        return self._resource

    def close(self) -> None:
        """Close the connections to KMS."""
        self._http.close()

    def _call(self, verb: str, body: dict[str, str]) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self._token()}", "content-type": "application/json"}
        content = msgspec.json.encode(body)
        response = retry(lambda: self._post(verb, content, headers), RETRY)
        if response.status == 200:
            return _object(response.body)
        message = self._message(verb, response)
        if response.status == 400 and verb == "decrypt":
            raise SecretDamaged(f"A sealed secret does not open, it was changed or moved: {message}")
        raise WalletLocked(f"{message} (the account needs roles/cloudkms.cryptoKeyEncrypterDecrypter on the key)")

    def _post(self, verb: str, body: bytes, headers: dict[str, str]) -> Response:
        try:
            response = self._http.request("POST", f"{self._url}:{verb}", body=body, headers=headers)
        except HttpRequestFailed as error:
            raise KeyServiceUnavailable(f"{self.name} cannot be reached: {error}") from None
        if response.is_retryable:
            raise KeyServiceUnavailable(self._message(verb, response))
        return response

    def _message(self, verb: str, response: Response) -> str:
        reason = str(_object(response.body).get("error", {}).get("message", ""))[:MAX_SHOWN]
        return f"{self.name} answered {response.status} to {verb}: {reason}"

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
