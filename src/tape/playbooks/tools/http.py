"""`kind: http`: one request. Every attempt carries the same `Idempotency-Key`, so that the other side can act once."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any
from urllib.parse import urlencode

import msgspec
import urllib3

from tape.documents.document import Fields
from tape.errors import StepRefused, ToolFailed
from tape.playbooks.templates import is_template
from tape.playbooks.tools.tool import ToolCall

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")
TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 512 << 10
# Answers that mean "not now": worth another attempt, if the step allows one.
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


class HttpTool:
    """Sends `json` or `body` to `url`. The result has `status`, `headers` and `body`, parsed if it is JSON.

    A status of 400 or more is a failure, unless `expect` lists it.
    """

    def check(self, fields: Fields) -> None:
        """A url; everything else has a default."""
        fields.node.mapping("kind", "method", "url", "params", "headers", "json", "body", "expect")
        url = fields.text("url")
        if url and not is_template(url) and not url.startswith(("http://", "https://")):
            fields.at("url").wrong("must begin with http:// or https://")
        method = fields.text("method", "GET")
        if not is_template(method) and method.upper() not in METHODS:
            fields.at("method").choice(METHODS)
        for name in ("params", "headers"):
            fields.section(name)
        if "json" in fields and "body" in fields:
            fields.at("body").wrong("cannot stand beside json; send one of them")
        for node in fields.items("expect"):
            node.whole(100, 599)

    async def call(self, call: ToolCall) -> Any:
        """Send the request and read the answer, on a thread."""
        return await asyncio.to_thread(_send, call.config, call.key, call.run.trace)


def _send(config: dict[str, Any], key: str, trace: dict[str, Any]) -> dict[str, Any]:
    method, url = config.get("method", "GET").upper(), config["url"]
    headers = {"User-Agent": "tape", "Idempotency-Key": key, **_trace_headers(trace)}
    body: bytes | None = None
    if "json" in config:
        body = msgspec.json.encode(config["json"])
        headers["Content-Type"] = "application/json"
    elif "body" in config:
        body = config["body"].encode() if isinstance(config["body"], str) else msgspec.json.encode(config["body"])
    headers |= {name: str(value) for name, value in (config.get("headers") or {}).items()}
    if config.get("params"):
        url += ("&" if "?" in url else "?") + urlencode(_pairs(config["params"]))
    try:
        answer = _pool().request(
            method,
            url,
            body=body,
            headers=headers,
            timeout=urllib3.Timeout(total=TIMEOUT_S),
            retries=False,
            preload_content=False,
        )
    except urllib3.exceptions.LocationParseError as error:
        raise StepRefused(f"{method} {url}: {error}.") from error
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        raise ToolFailed(f"{method} {url}: {error}.") from error
    try:
        content = answer.read(MAX_ANSWER_BYTES + 1)
    except urllib3.exceptions.HTTPError as error:
        raise ToolFailed(f"{method} {url}: the answer broke off: {error}.") from error
    finally:
        answer.release_conn()
    if len(content) > MAX_ANSWER_BYTES:
        raise StepRefused(f"{method} {url}: the answer has more than {MAX_ANSWER_BYTES} bytes.")
    result = {"status": answer.status, "headers": _lower(answer.headers), "body": _parsed(content, answer.headers)}
    if answer.status >= 400 and answer.status not in (config.get("expect") or ()):
        told = content[:200].decode(errors="replace")
        kind = ToolFailed if answer.status in _PASSING else StepRefused
        raise kind(f"{method} {url}: status {answer.status}: {told}")
    return result


@cache
def _pool() -> urllib3.PoolManager:
    return urllib3.PoolManager(num_pools=32, maxsize=32)


def _trace_headers(trace: dict[str, Any]) -> dict[str, str]:
    return {name: str(trace[name]) for name in ("traceparent", "tracestate") if trace.get(name)}


def _pairs(params: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (name, str(each)) for name, value in params.items() for each in (value if isinstance(value, list) else [value])
    ]


def _lower(headers: Any) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in headers.items()}


def _parsed(content: bytes, headers: Any) -> Any:
    if "json" in str(headers.get("Content-Type", "")):
        try:
            return msgspec.json.decode(content)
        except msgspec.DecodeError:
            pass  # it says that it is JSON and is not: the text is all there is
    return content.decode(errors="replace")
