"""Requests generated from the protobuf descriptors and the OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tape.proto import tape_pb2 as pb
from tape.server.calls import VARIANTS
from tape.server.http.documents import openapi
from tape.server.http.operations import OPERATIONS
from tests.access.adversary.fields import ONE_OF, UNSET, Name, find, is_left_out
from tests.access.adversary.world import Names

METHODS: Mapping[str, MethodDescriptor] = pb.DESCRIPTOR.services_by_name["Tape"].methods_by_name
# Every route of the document, and those that need other scopes with a parameter.
ROUTES = sorted([*OPERATIONS, *VARIANTS])

# Each RPC by gRPC, and each unary one in frames as well: `by_rpc` gives a test the method and whether it is in frames.
UNARY = [name for name, each in METHODS.items() if not (each.client_streaming or each.server_streaming)]
by_rpc = pytest.mark.parametrize(
    ("method", "in_frames"),
    [
        pytest.param(name, in_frames, id=f"{name} in frames" if in_frames else name)
        for name in METHODS
        for in_frames in ((False, True) if name in UNARY else (False,))
    ],
)

_NESTED: Any = object()
_INTEGERS = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
# Roles whose names inside the server begin with the tenant, as `~tenant/name`.
QUALIFIED = ("alias", "listener", "path", "pool", "reaction", "subscription")

Pick = Callable[[Name], Any]

_numbers = count(1_000)


@dataclass(frozen=True)
class Aim:
    """Which names of a request are those of the other tenant: all of them, those of one role, or a qualified one."""

    role: str = ""
    is_qualified: bool = False
    choice: int = 0

    def __str__(self) -> str:
        return f"{'~' * self.is_qualified}{self.role or 'every name'} {self.choice or ''}"

    def pick(self, own: Names, other: Names) -> Pick:
        """Chooses between the own names and those of the other."""

        def choose(name: Name) -> Any:
            role = self.role if self.role in name.roles else name.roles[0]
            if self.role not in ("", role):
                return f"{own[role]}-{next(_numbers)}" if name.is_new else own[role]
            return f"~{other['tenant']}/{other[role]}" if self.is_qualified else other[role]

        return choose


# The choice of a request that says nothing: a list without a filter.
NOTHING = -1
# No name is that of another tenant.
OWN = Aim("none")


def aims(build: Callable[[Pick, int], object]) -> list[Aim]:
    """The aims of a call: nothing, all its names at once, then each of its roles alone."""
    found = [Aim(choice=NOTHING)]
    for choice in range(max(map(len, ONE_OF.values()))):
        roles: dict[str, None] = {}

        def note(name: Name, roles: dict[str, None] = roles) -> Any:
            roles.update(dict.fromkeys(name.roles))
            return "1"

        if choice and str(build(note, choice)) in {str(build(note, other)) for other in range(choice)}:
            continue
        build(note, choice)
        found += [Aim(choice=choice), *(Aim(role, choice=choice) for role in roles)]
        found += [Aim(role, True, choice) for role in roles if role in QUALIFIED]
    return found


# ── RPCs ─────────────────────────────────────────────────────────────────────────────────────────


def message(descriptor: Descriptor, pick: Pick, choice: int = 0) -> Message:
    """A request with every field that the table knows; with NOTHING chosen, an empty one."""
    built = GetMessageClass(descriptor)()
    if choice == NOTHING:
        return built
    for each in descriptor.fields:
        if is_left_out(descriptor.name, each.name, choice):
            continue
        is_message = each.message_type is not None and not each.message_type.GetOptions().map_entry
        entry = find(descriptor.name, each.name, _NESTED if is_message else None)
        if entry is UNSET:
            continue
        if entry is _NESTED:
            value: Any = message(each.message_type, pick, choice)
            getattr(built, each.name).append(value) if each.is_repeated else getattr(built, each.name).CopyFrom(value)
            continue
        value = pick(entry) if isinstance(entry, Name) else entry
        if each.cpp_type in _INTEGERS:
            value = int(value) if str(value).isdecimal() or isinstance(value, int) else 0
        getattr(built, each.name).append(value) if each.is_repeated else setattr(built, each.name, value)
    return built


# ── routes ───────────────────────────────────────────────────────────────────────────────────────


@dataclass
class HttpRequest:
    """A request on its way."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def text(self) -> str:
        """All that the caller says."""
        return f"{self.path} {self.headers} {self.body.decode(errors='replace')}"


def described(route: str) -> tuple[str, str, dict[str, Any]]:
    """Method, path and operation of a route, as the document has them."""
    method, _, path = route.partition("?")[0].partition(" ")
    path = OPERATIONS[f"{method} {path}"].path or path
    return method, path, openapi()["paths"][path][method.lower()]


def request(route: str, pick: Pick, choice: int = 0) -> HttpRequest:
    """A request to a route, with every parameter and field that the table knows."""
    method, path, operation = described(route)
    query: list[tuple[str, str]] = []
    built = HttpRequest(method, path)
    variant = route.partition("?")[2]
    if variant:
        query.append((variant, VARIANTS[route]))
    for parameter in operation.get("parameters", ()):
        if f"{route.partition('?')[0]}?{parameter['name']}" in VARIANTS:
            continue
        if choice == NOTHING and parameter["in"] != "path":
            continue
        entry = find(operation["operationId"], parameter["name"])
        if entry is UNSET:
            continue
        text = str(pick(entry) if isinstance(entry, Name) else entry)
        if parameter["in"] == "path":
            built.path = built.path.replace(f"{{{parameter['name']}}}", quote(text, safe=""))
        elif parameter["in"] == "query":
            query.append((parameter["name"], text))
        else:
            built.headers[parameter["name"].lower().replace("-", "_")] = text
    if query:
        built.path += f"?{urlencode(query)}"
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        built.headers["content_type"] = "application/octet-stream" if media == "*/*" else media
        body = {} if choice == NOTHING else value_of(operation["operationId"], content["schema"], pick, choice)
        built.body = json.dumps(body).encode()
        break
    return built


def value_of(owner: str, schema: dict[str, Any], pick: Pick, choice: int) -> Any:
    """A value of a schema."""
    owner, schema = resolve(owner, schema)
    if schema.get("type") == "array":
        return [value_of(owner, schema["items"], pick, choice)]
    if "properties" not in schema:
        return {}
    built = {}
    for name, inner in schema["properties"].items():
        if is_left_out(owner, name, choice):
            continue
        inner_owner, resolved = resolve(f"{owner}.{name}", inner)
        items = resolved.get("items", {}) if resolved.get("type") == "array" else resolved
        is_nested = "properties" in resolve("", items)[1]
        entry = find(owner, name, _NESTED if is_nested else None)
        if entry is UNSET:
            continue
        if entry is _NESTED:
            built[name] = value_of(inner_owner, inner, pick, choice)
            continue
        value = pick(entry) if isinstance(entry, Name) else entry
        built[name] = [value] if resolved.get("type") == "array" else value
    return built


def resolve(owner: str, schema: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A schema without references and alternatives, with the name it has in the document."""
    while True:
        if "anyOf" in schema:
            schema = schema["anyOf"][0]
        elif "$ref" in schema:
            owner = schema["$ref"].rpartition("/")[2]
            schema = openapi()["components"]["schemas"][owner]
        else:
            return owner, schema


def is_stream(route: str) -> bool:
    """Whether a route answers with a stream of events."""
    return "text/event-stream" in described(route)[2]["responses"].get("200", {}).get("content", {})


def leaves(descriptor: Descriptor, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldDescriptor]]:
    """Every field of a message and of the messages in it, with the path to it."""
    for each in descriptor.fields:
        if each.message_type is not None and not each.message_type.GetOptions().map_entry:
            yield from leaves(each.message_type, (*above, each.name))
        else:
            yield (*above, each.name), each
