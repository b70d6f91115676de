"""Effects that are HTTP requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from tape.base.clock import now_ms
from tape.base.http import HttpClient, Response
from tape.connectors.base import CompensationResult, DispatchResult, ObservationResult, described
from tape.connectors.templates import content_of, fill_in
from tape.errors import HttpInterrupted, HttpRequestFailed, HttpUnreachable, InvalidHttpRequest

KEY_HEADER = "Idempotency-Key"
MAX_RESPONSE_BYTES = 1 << 20

# Statuses by which a server says that it has not begun: the request may be sent again as it is.
NOT_TAKEN = frozenset({425, 429})
# Statuses that leave open whether this or an earlier request was carried out. 408 may come from a proxy on the way;
# 409 is what a server answers while it works on the first request with the same key.
OPEN = frozenset({408, 409})
PAUSE_MS = 1_000
# Errors of a client of the user's after which nothing of the request has left the process.
NOT_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})
# What a header can carry as it is; anything else in a key is percent-encoded, so that no two keys look the same.
_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")
REF_FIELDS = ("id", "external_ref", "reference")


@dataclass
class HttpConnector:
    """Sends an effect's request as JSON, with an `Idempotency-Key`: the business key, else the idempotency key.

    | response | result |
    |---|---|
    | 2xx | confirmed; `external_ref` is the field `ref_field` of the body, else the header `Location` |
    | 425, 429, no connection | failed, and retried after `Retry-After`, else after 1 s |
    | 408, 409, 5xx, a timeout, a broken connection | unknown; `Retry-After` sets the time of the retry |
    | any other 4xx, and 3xx, because redirects are not followed | failed for good |

    409 is `unknown` because servers answer it while they process the first request with that key; pass
    `conflict="failed"` for a server that rejects the request with it. `url`, `status_url` and `compensate_url` may have
    placeholders such as `{business_key}`, `{external_ref}`, `{run_id}` or `{order_id}`, a field of the request.

    `observe` sends GET to `status_url`: 2xx is confirmed, 404 absent, anything else stuck; `read_status` gets the body
    and may return another result. Without `status_url` nothing can be observed. `compensate` calls `compensate_url`
    with the obligation's payload and a key of its own; 2xx means compensated.

    The URLs may lead to public addresses and to what `http_allow` lists; `timeout_s` limits a whole request. A `client`
    of your own, for example an `httpx.Client`, is used as it is, with its own limits and without that check.
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
    client: Any = None
    _http: HttpClient = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._http = HttpClient(timeout_s=self.timeout_s, connections=32)

    def dispatch(self, effect: Any) -> DispatchResult:
        """Send the effect's request."""
        url = fill_in(self.url, effect)
        key = effect.business_key or effect.idempotency_key
        try:
            response = self._send(self.method, url, key, effect.request_json)
        except InvalidHttpRequest as error:
            return DispatchResult("failed", error=described(error))
        except HttpRequestFailed as error:
            if error.was_sent:
                return DispatchResult("unknown", error=described(error))
            return DispatchResult("failed", error=described(error), retry_at_ms=now_ms() + PAUSE_MS)
        content = _content(response)
        if response.is_success:
            return DispatchResult("confirmed", external_ref=self._ref(response, content), response=content)
        refusal = {"type": "HttpStatus", "status": response.status, "message": response.reason, **content}
        retry_at_ms = _retry_at_ms(response)
        if response.status in NOT_TAKEN:
            return DispatchResult("failed", error=refusal, retry_at_ms=retry_at_ms or now_ms() + PAUSE_MS)
        is_open = response.status in OPEN and not (response.status == 409 and self.conflict == "failed")
        if is_open or response.status >= 500:
            return DispatchResult("unknown", error=refusal, retry_at_ms=retry_at_ms)
        return DispatchResult("failed", error=refusal)

    def observe(self, effect: Any) -> ObservationResult:
        """Ask the status URL what became of an effect."""
        if not self.status_url:
            return ObservationResult("stuck", response={"error": {"message": f"{self.name!r} has no status_url."}})
        response = self._request("GET", fill_in(self.status_url, effect), dict(self.headers), None)
        content = _content(response)
        if response.is_success:
            if self.read_status is not None:
                return self.read_status(content)
            return ObservationResult("confirmed", external_ref=self._ref(response, content), response=content)
        if response.status == 404:
            return ObservationResult("absent")
        return ObservationResult("stuck", response={"error": {"status": response.status, **content}})

    def compensate(self, obligation: Any) -> CompensationResult:
        """Call the compensation URL with the obligation's payload."""
        if not self.compensate_url:
            return CompensationResult("failed", error={"message": f"{self.name!r} has no compensate_url."})
        url = fill_in(self.compensate_url, obligation)
        key = f"{obligation.run_id}/obligation-{obligation.seq}"
        response = self._send(self.compensate_method, url, key, obligation.payload_json)
        content = _content(response)
        if response.is_success:
            return CompensationResult("compensated", response=content)
        return CompensationResult("failed", error={"type": "HttpStatus", "status": response.status, **content})

    def close(self) -> None:
        """Close the connections that are kept open."""
        self._http.close()
        if self.client is not None:
            self.client.close()

    def _send(self, method: str, url: str, key: str, body: str) -> Response:
        headers = {"Content-Type": "application/json", **self.headers, KEY_HEADER: quote(key, safe=_PLAIN)}
        return self._request(method, url, headers, (body or "{}").encode())

    def _request(self, method: str, url: str, headers: dict[str, str], body: bytes | None) -> Response:
        if self.client is None:
            return self._http.request(method, url, body=body, headers=headers, cut=MAX_RESPONSE_BYTES)
        try:
            answer = self.client.request(method, url, headers=headers, content=body)
        except Exception as error:
            is_sent = NOT_SENT.isdisjoint(kind.__name__ for kind in type(error).__mro__)
            kind = HttpInterrupted if is_sent else HttpUnreachable
            raise kind(f"{type(error).__name__}: {error}") from error
        fields = {name.lower(): value for name, value in answer.headers.items()}
        return Response(answer.status_code, answer.reason_phrase, fields, answer.content)

    def _ref(self, response: Response, content: dict[str, Any]) -> str:
        for name in (self.ref_field,) if self.ref_field else REF_FIELDS:
            if content.get(name):
                return str(content[name])
        return response.headers.get("location", "")


def _content(response: Response) -> dict[str, Any]:
    """The body of a response as an object."""
    content = content_of(response.text)
    return content if isinstance(content, dict) else {"body": content}


def _retry_at_ms(response: Response) -> int:
    """When `Retry-After` asks for the next attempt; 0 without a usable one."""
    seconds = response.retry_after_s
    return 0 if seconds is None else now_ms() + int(seconds * 1000)
