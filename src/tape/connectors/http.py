"""Effects that are HTTP requests."""

from __future__ import annotations

import email.utils
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from tape.base.clock import now_ms
from tape.connectors.base import CompensationResult, DispatchResult, ObservationResult, described
from tape.connectors.templates import content_of, fill_in
from tape.errors import MissingExtra

try:
    import httpx
except ImportError as missing:
    raise MissingExtra("HttpConnector", "http") from missing

KEY_HEADER = "Idempotency-Key"

# Answers by which the other side says that it has not even begun: the request may be sent again as it is.
NOT_TAKEN = frozenset({425, 429})
# Answers that leave open whether an earlier or this very request was carried out. 408 may come from something
# between us and the other side; 409 is what a server says of a key whose first request it is still working on.
OPEN = frozenset({408, 409})
PAUSE_MS = 1_000
# What a header can carry as it is; anything else in a key is percent-encoded, so that no two keys look the same.
_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")
REF_FIELDS = ("id", "external_ref", "reference")


@dataclass
class HttpConnector:
    """Sends an effect's request as JSON, with an `Idempotency-Key`: the business key, else the idempotency key.

    | answer | means |
    |---|---|
    | 2xx | confirmed; `external_ref` is the field `ref_field` of the answer, else its `Location` |
    | 425, 429, no connection | failed, and sent again after `Retry-After`, else a second |
    | 408, 409, 5xx, a timeout, a broken connection | unknown; `Retry-After` says when to try again |
    | any other 4xx, and 3xx: a request is not sent elsewhere | failed for good |

    409 is `unknown` because a server answers so while it works on the first request with that key; say
    `conflict="failed"` for one that means "no". `url`, `status_url` and `compensate_url` may have blanks such as
    `{business_key}`, `{external_ref}`, `{run_id}` or `{order_id}`, a field of the request.

    `status_url` is asked by GET: 2xx is confirmed, 404 absent, anything else stuck; `read_status` gets the answer's
    content and may say otherwise. Without one nothing can be observed. `compensate_url` is called like `url` with the
    obligation's payload and a key of its own; 2xx means undone.
    """

    name: str
    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 10.0
    status_url: str = ""
    read_status: Callable[[Any], ObservationResult] | None = None
    compensate_url: str = ""
    compensate_method: str = "POST"
    ref_field: str = ""
    conflict: Literal["unknown", "failed"] = "unknown"
    client: httpx.Client | None = None

    def __post_init__(self) -> None:
        if self.client is None:
            self.client = httpx.Client(timeout=self.timeout_s)

    def dispatch(self, effect: Any) -> DispatchResult:
        """Send the effect's request."""
        url = fill_in(self.url, effect)
        key = effect.business_key or effect.idempotency_key
        try:
            answer = self._send(self.method, url, key, effect.request_json)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            # Nothing of the request has left this machine.
            return DispatchResult("failed", error=described(error), retry_at_ms=now_ms() + PAUSE_MS)
        except httpx.HTTPError as error:
            return DispatchResult("unknown", error=described(error))
        content = _content(answer)
        if answer.is_success:
            return DispatchResult("confirmed", external_ref=self._ref(answer, content), response=content)
        refusal = {"type": "HttpStatus", "status": answer.status_code, "message": answer.reason_phrase, **content}
        retry_at_ms = _retry_at_ms(answer)
        if answer.status_code in NOT_TAKEN:
            return DispatchResult("failed", error=refusal, retry_at_ms=retry_at_ms or now_ms() + PAUSE_MS)
        is_open = answer.status_code in OPEN and not (answer.status_code == 409 and self.conflict == "failed")
        if is_open or answer.is_server_error:
            return DispatchResult("unknown", error=refusal, retry_at_ms=retry_at_ms)
        return DispatchResult("failed", error=refusal)

    def observe(self, effect: Any) -> ObservationResult:
        """Ask the status URL what became of an effect."""
        if not self.status_url:
            return ObservationResult("stuck", response={"error": {"message": f"{self.name!r} has no status_url."}})
        assert self.client is not None
        answer = self.client.get(fill_in(self.status_url, effect), headers=dict(self.headers))
        content = _content(answer)
        if answer.is_success:
            if self.read_status is not None:
                return self.read_status(content)
            return ObservationResult("confirmed", external_ref=self._ref(answer, content), response=content)
        if answer.status_code == 404:
            return ObservationResult("absent")
        return ObservationResult("stuck", response={"error": {"status": answer.status_code, **content}})

    def compensate(self, obligation: Any) -> CompensationResult:
        """Call the compensation URL with the obligation's payload."""
        if not self.compensate_url:
            return CompensationResult("failed", error={"message": f"{self.name!r} has no compensate_url."})
        url = fill_in(self.compensate_url, obligation)
        key = f"{obligation.run_id}/obligation-{obligation.seq}"
        answer = self._send(self.compensate_method, url, key, obligation.payload_json)
        content = _content(answer)
        if answer.is_success:
            return CompensationResult("compensated", response=content)
        return CompensationResult("failed", error={"type": "HttpStatus", "status": answer.status_code, **content})

    def close(self) -> None:
        """Close the connections that are kept open."""
        if self.client is not None:
            self.client.close()

    def _send(self, method: str, url: str, key: str, body: str) -> httpx.Response:
        assert self.client is not None
        headers = {"Content-Type": "application/json", **self.headers, KEY_HEADER: quote(key, safe=_PLAIN)}
        return self.client.request(method, url, headers=headers, content=(body or "{}").encode())

    def _ref(self, answer: httpx.Response, content: dict[str, Any]) -> str:
        for name in (self.ref_field,) if self.ref_field else REF_FIELDS:
            if content.get(name):
                return str(content[name])
        return str(answer.headers.get("Location", ""))


def _content(answer: httpx.Response) -> dict[str, Any]:
    """What an answer says, as an object."""
    content = content_of(answer.text)
    return content if isinstance(content, dict) else {"body": content}


def _retry_at_ms(answer: httpx.Response) -> int:
    """When `Retry-After` asks to come back, in seconds or as a date; 0 without a usable one."""
    text = answer.headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return now_ms() + int(text) * 1000
    try:
        return int(email.utils.parsedate_to_datetime(text).timestamp() * 1000)
    except ValueError:
        return 0
