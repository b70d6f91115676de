"""Writes docs/reference.md and docs/sdk.md from the proto and from docstrings: `make docs`.

With `--check` it writes nothing and fails if a page is not current.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2 as pb
from grpc_tools import protoc

from tape import AsyncTapeClient, TapeClient

ROOT = Path(__file__).parent.parent
PROTO = "tape/proto/tape.proto"
# Field numbers in the descriptors: a location in a proto is a path of them.
MESSAGES, ENUMS, SERVICES, FIELDS, METHODS = 4, 5, 6, 2, 2

HEAD = """# Reference

Generated from `tape.proto` and the docstrings of the clients by `make docs`; edit those, not this page. What the
calls mean together is described in [runs.md](runs.md) and [journal.md](journal.md), what can go wrong in
[errors.md](errors.md).
"""


SDK_HEAD = """# Reference of the SDK

Generated from docstrings by `make docs`; edit those, not this page. The calls of the clients are in
[reference.md](reference.md), and [tutorial.md](tutorial.md) shows how it all goes together.
"""

# What the page of the SDK shows, in the order of a reader's questions.
MODULES = (
    "tape.durable.runs",
    "tape.effect",
    "tape.gates",
    "tape.budget",
    "tape.det",
    "tape.retry",
    "tape.durable.calls",
    "tape._recover",
    "tape.reactors",
    "tape.reactors.outbox",
    "tape.connectors.base",
    "tape.connectors.http",
    "tape.connectors.local",
    "tape.connectors.pubsub",
    "tape.tenancy",
    "tape.playbooks.functions",
    "tape.playbooks.worker",
)
# Modules whose names are used from the package itself.
OF_THE_PACKAGE = ("tape.durable.runs", "tape.durable.calls", "tape._recover", "tape.playbooks.functions")


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the pages are current")
    is_check = parser.parse_args().check
    outdated = []
    for name, text in (("docs/reference.md", page()), ("docs/sdk.md", sdk_page())):
        path = ROOT / name
        if not is_check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            outdated.append(name)
    for name in outdated:
        print(f"{name} is not current. Run: make docs", file=sys.stderr)
    return 1 if outdated else 0


def page() -> str:
    """The whole page."""
    proto = Proto()
    lines = [HEAD, "## The service", ""]
    lines += [f"`{proto.file.package}.{proto.service.name}`, {len(proto.service.method)} calls.", ""]
    lines += proto.calls()
    lines += ["## States and other names", "", *proto.enums()]
    lines += ["## Messages that several calls share", "", *proto.shared_messages()]
    lines += ["## Clients", "", *clients()]
    lines += ["## The tape in your process", "", *library("tape.session")]
    lines += ["## Sinks and the relay", "", *library("tape.sinks"), *library("tape.sinks.relay")]
    return "\n".join(lines).rstrip() + "\n"


# ── the proto ────────────────────────────────────────────────────────────────────────────────────


class Proto:
    """The parsed proto file with its comments."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "tape.pb"
            source = str(ROOT / "src")
            options = [f"-I{source}", f"--descriptor_set_out={target}", "--include_source_info", PROTO]
            if protoc.main(["protoc", *options]) != 0:
                raise SystemExit("protoc failed")
            self.file = pb.FileDescriptorSet.FromString(target.read_bytes()).file[0]
        self.service = self.file.service[0]
        self._messages = {message.name: (index, message) for index, message in enumerate(self.file.message_type)}
        self._comments = {tuple(location.path): location for location in self.file.source_code_info.location}
        self._uses = self._count_uses()

    def calls(self) -> Iterator[str]:
        """Every RPC under the heading of its group, with the fields of its request and response."""
        for index, method in enumerate(self.service.method):
            location = self._comments[SERVICES, 0, METHODS, index]
            for group in location.leading_detached_comments or self._first_group(index):
                title, _, rest = _one_line(group).partition(": ")
                yield from (f"### {title.rstrip('.')}", "", *([_sentence(rest), ""] if rest else []))
            request, response = _short(method.input_type), _short(method.output_type)
            yield from (f"#### {method.name}", "", _one_line(location.leading_comments), "")
            sends = f"stream of `{request}`" if method.client_streaming else f"`{request}`"
            gets = f"stream of `{response}`" if method.server_streaming else f"`{response}`"
            yield from (f"{sends} → {gets}", "")
            for name, role in ((request, "request"), (response, "response")):
                if self._uses[name] == 1 and self._messages[name][1].field:
                    yield from self._fields(name, role)

    def shared_messages(self) -> Iterator[str]:
        """Messages that more than one call or message has, in the order of the proto."""
        for name, (_, message) in self._messages.items():
            is_shown_with_its_call = self._uses[name] == 1 and self._is_of_a_call(name)
            if message.field and not is_shown_with_its_call:
                yield from (f"### {name}", "", *self._fields(name, "field"))

    def enums(self) -> Iterator[str]:
        """Every enum with its numbers."""
        for enum in self.file.enum_type:
            values = ", ".join(f"`{value.name}` {value.number}" for value in enum.value)
            yield from (f"**{enum.name}**: {values}", "")

    def _first_group(self, index: int) -> list[str]:
        """What stands right after the service's brace belongs to the brace for protoc."""
        return [self._comments[SERVICES, 0].trailing_comments] if index == 0 else []

    def _fields(self, name: str, role: str) -> Iterator[str]:
        index, message = self._messages[name]
        yield from (f"| {role} | number | type | |", "|---|---:|---|---|")
        for position, field in enumerate(message.field):
            location = self._comments.get((MESSAGES, index, FIELDS, position))
            comment = _one_line(location.trailing_comments or location.leading_comments) if location else ""
            yield f"| `{field.name}` | {field.number} | {self._type(message, field)} | {_cell(comment)} |"
        yield ""

    def _type(self, message: pb.DescriptorProto, field: pb.FieldDescriptorProto) -> str:
        name = _short(field.type_name) if field.type_name else _scalar(field)
        entry = next((nested for nested in message.nested_type if nested.name == name), None)
        if entry is not None and entry.options.map_entry:
            return f"map of {' to '.join(_scalar(part) for part in entry.field)}"
        return f"repeated {name}" if field.label == pb.FieldDescriptorProto.LABEL_REPEATED else name

    def _is_of_a_call(self, name: str) -> bool:
        return any(name in (_short(call.input_type), _short(call.output_type)) for call in self.service.method)

    def _count_uses(self) -> dict[str, int]:
        uses = dict.fromkeys(self._messages, 0)
        for call in self.service.method:
            uses[_short(call.input_type)] += 1
            uses[_short(call.output_type)] += 1
        for message in self.file.message_type:
            for field in message.field:
                if _short(field.type_name) in uses:
                    uses[_short(field.type_name)] += 1
        return uses


def _short(type_name: str) -> str:
    return type_name.rpartition(".")[2]


def _scalar(field: pb.FieldDescriptorProto) -> str:
    return pb.FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def _one_line(comment: str) -> str:
    return " ".join(comment.split())


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


# ── the clients ──────────────────────────────────────────────────────────────────────────────────


def clients() -> Iterator[str]:
    """Both clients; they have the same methods, so these are listed once."""
    for client in (AsyncTapeClient, TapeClient):
        yield from (f"### {client.__name__}", "", f"`{client.__name__}{_signature(client, bound=False)}`", "")
        yield from (inspect.getdoc(client) or "", "")
    missing = _methods(AsyncTapeClient).keys() ^ _methods(TapeClient).keys()
    yield from ("### Methods of both", "")
    yield "`AsyncTapeClient` awaits them, or iterates over them with `async for`; `TapeClient` waits."
    yield ""
    for name, method in _methods(AsyncTapeClient).items():
        if name not in missing:
            yield from (f"#### {name}", "", f"`{name}{_signature(method)}`", "", inspect.getdoc(method) or "", "")


def library(module_name: str) -> Iterator[str]:
    """The public names of a module: classes with their methods, and functions."""
    module = importlib.import_module(module_name)
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and inspect.isfunction(value) and value.__module__ == module_name
    ]
    for name in names:
        value = getattr(module, name)
        if not inspect.isclass(value) and not inspect.isfunction(value):
            continue
        is_only_a_name = getattr(value, "_is_protocol", False) or not _takes_anything(value)
        shown = name if is_only_a_name else f"{name}{_signature(value, bound=False)}"
        yield from (f"### {name}", "", f"`{shown}`", "", inspect.getdoc(value) or "", "")
        if inspect.isclass(value):
            for method_name, method in _own_members(value).items():
                is_static = isinstance(inspect.getattr_static(value, method_name), staticmethod)
                called = "" if isinstance(method, property) else _signature(method, bound=not is_static)
                first_paragraph = (inspect.getdoc(method) or "").partition("\n\n")[0]
                yield f"- `{method_name}{called}`: {_one_line(first_paragraph)}"
            yield ""


def _takes_anything(value: Any) -> bool:
    return not inspect.isclass(value) or value.__init__ is not object.__init__


def _own_members(cls: type) -> dict[str, Any]:
    """Public methods and properties of a class and of its bases of the same package."""
    found: dict[str, Any] = {}
    for owner in cls.__mro__:
        if not owner.__module__.startswith("tape."):
            continue
        for name, value in vars(owner).items():
            plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if not name.startswith("_") and (inspect.isfunction(plain) or isinstance(plain, property)):
                found.setdefault(name, plain)
    return found


def _methods(client: type) -> dict[str, Any]:
    """The public methods in the order in which they are written, those of base classes last."""
    found: dict[str, Any] = {}
    for owner in client.__mro__[:-1]:
        for name, value in vars(owner).items():
            if inspect.isfunction(value) and not name.startswith("_"):
                found.setdefault(name, value)
    return found


# ── the SDK ──────────────────────────────────────────────────────────────────────────────────────


def sdk_page() -> str:
    """Every public name of the SDK, module by module."""
    lines = [SDK_HEAD]
    for name in MODULES:
        module = importlib.import_module(name)
        title = "tape" if name in OF_THE_PACKAGE else name
        lines += [f"## {title}: {_first_line(module).rstrip('.')}", ""]
        lines += [*_rest(module), *_public(module)]
    return "\n".join(lines).rstrip() + "\n"


def _public(module: Any) -> Iterator[str]:
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    for name in names:
        value = getattr(module, name)
        if not inspect.isclass(value) and not inspect.isfunction(value):
            continue
        is_error = inspect.isclass(value) and issubclass(value, Exception)
        signature = "" if is_error else _signature(value, bound=False)
        yield from (f"### {name}", "", f"`{name}{signature}`", "", inspect.getdoc(value) or "", "")
        if inspect.isclass(value) and not is_error:
            for method, function in _methods(value).items():
                yield from (f"- `.{method}{_signature(function)}`: {_first_line(function)}",)
            yield ""


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _rest(thing: Any) -> list[str]:
    rest = (inspect.getdoc(thing) or "").partition("\n")[2].strip()
    return [rest, ""] if rest else []


def _signature(function: Any, *, bound: bool = True) -> str:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    text = str(signature.replace(parameters=parameters[1:] if bound else parameters))
    # Annotations are texts (from __future__ import annotations), so they come in quotes.
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    return re.sub(r" -> None$", "", text) if not bound else text


if __name__ == "__main__":
    sys.exit(main())
