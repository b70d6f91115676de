"""A saved HTTP request, for `tape ingress test`: as it was sent, or as JSON."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tape.base import structs
from tape.errors import InvalidSample

MAX_SAMPLE_BYTES = 64 << 20

_REQUEST_LINE = re.compile(rb"([A-Z]+) (\S+) HTTP/[0-9.]+")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")


class SavedRequest(NamedTuple):
    """A request. `note` says what was taken for granted when it was read."""

    method: str
    path: str
    query: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    note: str = ""


def read_sample(data: bytes) -> SavedRequest:
    """The request of a file. Raises InvalidSample with what is wrong."""
    if len(data) > MAX_SAMPLE_BYTES:
        raise InvalidSample(f"the sample has {len(data)} bytes; the limit is {MAX_SAMPLE_BYTES}.")
    return _read_json(data) if data.lstrip()[:1] == b"{" else _read_http(data)


def _read_http(data: bytes) -> SavedRequest:
    found = _END_OF_HEAD.search(data)
    head, body = (data[: found.start()], data[found.end() :]) if found else (data.rstrip(b"\r\n"), b"")
    lines = [line.rstrip(b"\r") for line in head.split(b"\n")]
    method, target = "POST", ""
    if lines and (request := _REQUEST_LINE.fullmatch(lines[0].strip())):
        method, target = request[1].decode(), request[2].decode("latin-1")
        lines = lines[1:]
    headers = []
    for number, line in enumerate(lines, 1):
        name, colon, value = line.partition(b":")
        if not colon or not name.strip():
            raise InvalidSample(
                f"header {number} of the sample, {line[:60]!r}, is not `Name: value`; a sample has headers, an empty"
                " line and the body, or is a JSON object with `headers` and `body`."
            )
        headers.append((name.strip(), value.strip()))
    return _cut(SavedRequest(method, *_split(target), headers, body))


class _JsonSample(msgspec.Struct, forbid_unknown_fields=True):
    headers: dict[str, str] | list[tuple[str, str]]
    body: str = ""
    body_base64: str = ""
    method: str = "POST"
    url: str = ""


def _read_json(data: bytes) -> SavedRequest:
    try:
        sample = structs.decode(data, _JsonSample)
        body = base64.b64decode(sample.body_base64, validate=True) if sample.body_base64 else sample.body.encode()
    except (msgspec.MsgspecError, UnicodeDecodeError, binascii.Error, ValueError) as error:
        raise InvalidSample(
            f"the sample is no JSON object with headers, body (its text) or body_base64, method and url: {error}."
        ) from error
    pairs: Any = sample.headers.items() if isinstance(sample.headers, dict) else sample.headers
    headers = [(name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in pairs]
    return SavedRequest(sample.method.upper(), *_split(sample.url), headers, body)


def _split(target: str) -> tuple[str, str]:
    try:
        parts = urlsplit(target)
    except ValueError as error:
        raise InvalidSample(f"the address {target[:80]!r} of the sample cannot be read: {error}.") from error
    return parts.path, parts.query


def _cut(sample: SavedRequest) -> SavedRequest:
    """Without the line ends that an editor added after the body, if Content-Length says so."""
    lengths = [value for name, value in sample.headers if name.lower() == b"content-length" and value.isdigit()]
    if not lengths or int(lengths[0]) == len(sample.body):
        return sample
    length = int(lengths[0])
    if length < len(sample.body) and not sample.body[length:].strip(b"\r\n"):
        return sample._replace(body=sample.body[:length], note="line ends after Content-Length were left out")
    return sample._replace(note=f"the body has {len(sample.body)} bytes, Content-Length says {length}")
