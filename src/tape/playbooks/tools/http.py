"""`kind: http`: one request. Every attempt carries the same `Idempotency-Key`, so that the other side can act once."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, ClassVar
from urllib.parse import urlencode

import msgspec
from msgspec import Meta

from tape.base.http import HttpClient, Response
from tape.documents.document import Fields
from tape.errors import (
    HttpInterrupted,
    HttpRequestFailed,
    HttpUnreachable,
    InvalidHttpRequest,
    StepRefused,
    ToolFailed,
)
from tape.playbooks.spec import Text
from tape.playbooks.templates import is_template
from tape.playbooks.tools.tool import ToolCall, read_config

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")
IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "PUT", "DELETE"})
TIMEOUT_S = 30.0
MAX_RESPONSE_BYTES = 512 << 10
MAX_SHOWN = 200
# Statuses after which another attempt may succeed, if the step allows one.
RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


class HttpFields(msgspec.Struct, kw_only=True):
    """Sends one request."""

    url: Annotated[Text, Meta(description="Address, http:// or https://.")]
    method: Annotated[
        str,
        Meta(
            description="Method of the request.",
            extra={"schema": {"anyOf": [{"enum": list(METHODS)}, {"type": "string", "minLength": 1}]}},
        ),
    ] = "GET"
    params: Annotated[dict[str, Any], Meta(description="Query parameters.")] = {}
    headers: Annotated[dict[str, Any], Meta(description="Headers of the request.")] = {}
    json: Annotated[Any, Meta(description="Body as JSON.")] = None
    body: Annotated[Any, Meta(description="Body as text, or as JSON if it is not a text.")] = None
    expect: Annotated[
        tuple[Annotated[int, Meta(ge=100, le=599)], ...], Meta(description="Statuses from 400 on that are no failure.")
    ] = ()


class HttpTool:
    """Sends `json` or `body` to `url`. The result has `status`, `headers` and `body`, parsed if it is JSON.

    A status of 400 or more is a failure, unless `expect` lists it.
    """

    declaration: ClassVar[type[msgspec.Struct]] = HttpFields

    def check(self, fields: Fields) -> None:
        """Check the declared fields; url and method can be templates."""
        config = read_config(fields, HttpFields)
        if config.url and not is_template(config.url) and not config.url.startswith(("http://", "https://")):
            fields.at("url").wrong("must begin with http:// or https://")
        if config.method and not is_template(config.method) and config.method.upper() not in METHODS:
            fields.at("method").choice(METHODS)
        if "json" in fields and "body" in fields:
            fields.at("body").wrong("cannot stand beside json; send one of them")

    def is_idempotent(self, config: dict[str, Any]) -> bool:
        """Whether the method is (RFC 9110)."""
        return str(config.get("method", "GET")).upper() in IDEMPOTENT_METHODS

    async def call(self, call: ToolCall) -> Any:
        """Send the request and read its response."""
        method, url = call.config.get("method", "GET").upper(), _url(call.config)
        headers, body = _request(call.config, call.key, call.run.trace)
        try:
            response = await _client().send(method, url, body=body, headers=headers)
        except (HttpUnreachable, HttpInterrupted) as error:
            raise ToolFailed(f"{method} {url}: {error}") from error
        except (HttpRequestFailed, InvalidHttpRequest) as error:
            raise StepRefused(f"{method} {url}: {error}") from error
        if response.status >= 400 and response.status not in (call.config.get("expect") or ()):
            text = f"{method} {url}: status {response.status}: {response.text[:MAX_SHOWN]}"
            if response.status in RETRYABLE_STATUSES:
                raise ToolFailed(text)
            refused = StepRefused(text)
            refused.is_answer = True
            raise refused
        return {"status": response.status, "headers": dict(response.headers), "body": _parsed(response)}


@cache
def _client() -> HttpClient:
    return HttpClient(timeout_s=TIMEOUT_S, max_body_bytes=MAX_RESPONSE_BYTES, connections=32)


def _url(config: dict[str, Any]) -> str:
    url = str(config["url"])
    if not config.get("params"):
        return url
    return url + ("&" if "?" in url else "?") + urlencode(_pairs(config["params"]))


def _request(config: dict[str, Any], key: str, trace: dict[str, Any]) -> tuple[dict[str, str], bytes | None]:
    """The headers and the body of a step's request."""
    headers = {"User-Agent": "tape", "Idempotency-Key": key, **_trace_headers(trace)}
    body: bytes | None = None
    if "json" in config:
        body = msgspec.json.encode(config["json"])
        headers["Content-Type"] = "application/json"
    elif "body" in config:
        body = config["body"].encode() if isinstance(config["body"], str) else msgspec.json.encode(config["body"])
    return headers | {name: str(value) for name, value in (config.get("headers") or {}).items()}, body


def _trace_headers(trace: dict[str, Any]) -> dict[str, str]:
    return {name: str(trace[name]) for name in ("traceparent", "tracestate") if trace.get(name)}


def _pairs(params: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (name, str(each)) for name, value in params.items() for each in (value if isinstance(value, list) else [value])
    ]


def _parsed(response: Response) -> Any:
    if "json" in response.headers.get("content-type", ""):
        try:
            return response.json()
        except msgspec.DecodeError:
            pass  # the header says JSON and the body is not: return the text
    return response.text
