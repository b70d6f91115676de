"""The identity of a run: tenant, actor, agent and scopes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tape.errors import InvalidConfig, MissingIdentity

__all__ = ["MissingIdentity", "RunIdentity"]

_TEXTS = ("tenant_id", "actor", "subject", "agent_id", "aiplex_instance_id", "gateway_route")
_NO = ("", "0", "false", "no", "off")


@dataclass
class RunIdentity:
    """The identity of a run, kept on the run and on its first journal entry; `scopes` are its permissions."""

    tenant_id: str = ""
    actor: str = ""
    subject: str = ""
    agent_id: str = ""
    aiplex_instance_id: str = ""
    gateway_route: str = ""
    scopes: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    # What `validate` requires by default.
    REQUIRED_FOR_AIPLEX: tuple[str, ...] = ("tenant_id", "actor", "agent_id")

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, *, strict: bool | None = None) -> RunIdentity:
        """The identity that `TAPE_TENANT_ID`, `TAPE_ACTOR`, … describe.

        `TAPE_SCOPES` is a list with commas, `TAPE_LABELS` is `name=value` with commas. A strict one must be complete
        (MissingIdentity); it is strict if `TAPE_REQUIRE_IDENTITY` is set, unless `strict` says otherwise.
        """
        env = os.environ if env is None else env
        identity = cls(scopes=_items(env.get("TAPE_SCOPES", "")), labels=_labels(env.get("TAPE_LABELS", "")))
        for name in _TEXTS:
            setattr(identity, name, env.get(f"TAPE_{name.upper()}", "").strip())
        if strict is None:
            strict = env.get("TAPE_REQUIRE_IDENTITY", "").strip().lower() not in _NO
        if strict:
            identity.validate()
        return identity

    def validate(self, required: tuple[str, ...] = ()) -> None:
        """Raise MissingIdentity if a required field is empty: by default tenant_id, actor and agent_id."""
        missing = [name for name in required or self.REQUIRED_FOR_AIPLEX if not getattr(self, name)]
        if missing:
            raise MissingIdentity(missing)

    def is_empty(self) -> bool:
        """Whether every field is empty."""
        return not any(self.fields().values())

    def fields(self) -> dict[str, Any]:
        """The arguments of `begin_run`."""
        values = asdict(self)
        del values["REQUIRED_FOR_AIPLEX"]
        return values


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _labels(text: str) -> dict[str, str]:
    labels = {}
    for item in _items(text):
        name, separator, value = item.partition("=")
        if not separator or not name.strip():
            raise InvalidConfig(f"TAPE_LABELS {text!r}: {item!r} is not name=value.")
        labels[name.strip()] = value.strip()
    return labels
