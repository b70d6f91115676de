"""Settings of a connection, from a spec and its credential."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from typing import Any

from tape.base.hosts import hosts_of, without_addresses
from tape.errors import SourceMisconfigured

log = logging.getLogger(__name__)

# Names in credentials, and the names of the same settings in a spec.
_ALIASES = {
    "nats_url": "url",
    "servers": "url",
    "nats_user": "user",
    "nats_username": "user",
    "nats_password": "password",
    "nats_token": "token",
    "username": "user",
    "bootstrap_servers": "brokers",
    "access_token": "token",
    "access_key_id": "user",
    "aws_access_key_id": "user",
    "secret_access_key": "password",
    "aws_secret_access_key": "password",
    "session_token": "token",
    "aws_session_token": "token",
    "aws_region": "region",
}

PUBSUB_HOST = "pubsub.googleapis.com:443"


def source_hosts(source: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The hosts that a source with these settings connects to."""
    hosts = hosts_of(settings)
    if settings.get("endpoint"):
        return hosts
    if source == "sqs":
        return (*hosts, sqs_host(str(settings.get("region", ""))))
    return (*hosts, PUBSUB_HOST) if source == "pubsub" else hosts


def sqs_host(region: str) -> str:
    """The address of Amazon SQS in a region."""
    return f"sqs.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}:443"


class SourceSettings:
    """The settings of one source: keys of the spec, and of its credential where the spec has none.

    The address is the exception: a credential that has one is sent nowhere else, whatever the spec says.

    Each value is checked when it is read, and an invalid one raises SourceMisconfigured with its name; values are never
    shown, because any of them may be a secret.
    """

    def __init__(self, source: str, spec: Mapping[str, Any], credential: Mapping[str, Any] | str | None = None) -> None:
        self.source = source
        held = {"token": credential} if isinstance(credential, str) else dict(credential or {})
        self._values = {_ALIASES.get(name, name): value for name, value in held.items() if value is not None}
        own = hosts_of(held)
        if own and (ignored := sorted(set(hosts_of(spec)) - set(own))):
            log.warning(
                "%s: the credential is for %s; the address %s of the document is ignored.",
                source,
                ", ".join(own),
                ", ".join(ignored),
            )
        self._values |= {
            name: value for name, value in (without_addresses(spec) if own else spec).items() if value is not None
        }
        if foreign := own and sorted(set(source_hosts(source, self._values)) - set(own)):
            raise self.wrong(f"would send its credential, which is for {', '.join(own)}, to {', '.join(foreign)}")

    def text(self, name: str) -> str:
        """A string; empty if it is not set."""
        value = self._values.get(name, "")
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            return str(value).strip()
        raise self.wrong(f"{name!r} must be a text, not {type(value).__name__}")

    def required(self, name: str, hint: str = "") -> str:
        """A string that must be set."""
        if not (value := self.text(name)):
            raise self.wrong(f"requires {name!r}{hint}")
        return value

    def texts(self, name: str) -> list[str]:
        """A list, or a string with commas between its parts."""
        value = self._values.get(name) or []
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
            raise self.wrong(f"{name!r} must be a list of texts, or one text with commas between them")
        return [part.strip() for part in parts if part.strip()]

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean."""
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(f"{name!r} must be true or false")
        return value

    def whole(self, name: str, default: int, least: int = 0, most: int | None = None) -> int:
        """A whole number of at least `least` and at most `most`."""
        value = self._values.get(name, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or value < least
            or (most is not None and value > most)
        ):
            limits = f"of at least {least:,}" if most is None else f"from {least:,} to {most:,}"
            raise self.wrong(f"{name!r} must be a whole number {limits}")
        return value

    def mapping(self, name: str, known: tuple[str, ...] = ()) -> dict[str, Any]:
        """A mapping; with `known` keys, any other is rejected."""
        value = self._values.get(name, {})
        if not isinstance(value, Mapping):
            raise self.wrong(f"{name!r} must be a mapping")
        for key in value:
            if known and key not in known:
                close = difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
                raise self.wrong(f"{name!r} has the unknown key {key!r}; {hint}")
        return dict(value)

    def everything(self) -> dict[str, Any]:
        """All values, unchecked."""
        return dict(self._values)

    def raw(self, name: str) -> Any:
        """The value, unchecked, or None."""
        return self._values.get(name)

    def wrong(self, what: str) -> SourceMisconfigured:
        """The error for an invalid setting."""
        return SourceMisconfigured(f"subscription[{self.source}] {what}.")
