"""The JSON Schema of `kind: Subscription`, for editors, made from the same declarations as the validator.

The validator alone checks what a schema cannot express: cron expressions, unique names, numbers relative to others.
"""

from __future__ import annotations

from tape.brokers.addresses import PORTS
from tape.documents.fields import Schema
from tape.documents.json_schema import DRAFT, Rules, all_of, block_schema, forbid, when, when_key
from tape.playbooks.pools import POOL_PATTERN
from tape.subscriptions.document.spec import (
    CONNECTION_KEYS,
    ROUTING,
    HeaderRule,
    IngressSpec,
    SubscriptionSpec,
)
from tape.subscriptions.document.spool_spec import BUCKET_SCHEMES, DownstreamSpec, SpoolSpec
from tape.subscriptions.document.validator import CONNECTED, NEEDED, PUSHING
from tape.subscriptions.document.verify_rules import (
    BY_CERTIFICATE,
    PROOFS,
    RENAMED,
    SCHEME_KEYS,
    SIGN_URL,
    SIGNED_BODIES,
    TIMELESS,
)
from tape.subscriptions.document.verify_spec import MAX_ALIASES, MAX_PARTS, VerifySpec

_PATH = r"^[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)*$"
_CADENCE = r"^\s*(@(yearly|monthly|weekly|daily|hourly)|\S+(\s+\S+){4})\s*$"


def subscription_schema() -> Schema:
    """The schema of a whole document."""
    text = {"type": "string", "minLength": 1}
    metadata = {
        "type": "object",
        "description": "Its name, and its path in the catalog.",
        "properties": {
            "path": {"type": "string", "pattern": _PATH, "maxLength": 400},
            "name": text,
            "description": text,
            "labels": {},
            "annotations": {},
        },
        "additionalProperties": False,
        "if": {"required": ["path"]},
        "else": {"required": ["name"], "properties": {"name": {"pattern": _PATH, "maxLength": 400}}},
    }
    return {
        "$schema": DRAFT,
        "title": "Subscription",
        "description": "Messages from outside that become runs.",
        "type": "object",
        "required": ["metadata", "spec"],
        "properties": {
            "apiVersion": {},
            "kind": {"enum": ["Subscription", "subscription"]},
            "metadata": metadata,
            "spec": block_schema(SubscriptionSpec, _RULES),
        },
        "additionalProperties": False,
    }


def _spec_rules() -> list[Schema]:
    fetching = {"runtime": {"properties": {"batch": False, "timeout_ms": False}}}
    rules = [
        when(
            when_key("mode", "push"),
            {"required": ["ingress"], "properties": {"source": {"enum": [*PUSHING]}, **fetching}},
        ),
        when(when_key("mode", "push"), forbid("activation", "cadence", "auth", *CONNECTION_KEYS)),
        when(when_key("mode", "pull"), {"properties": {"source": {"not": {"const": "webhook"}}, "ingress": False}}),
        when(when_key("activation", "scheduled"), {"required": ["cadence"]}),
        when({"required": ["cadence"]}, when_key("activation", "scheduled")),
        {"properties": {"cadence": {"pattern": _CADENCE}}},
        *(when({"required": [key]}, when_key("create", True)) for key in ("subject", "exchange", "routing_key")),
        when({"required": ["routing_key"]}, {"required": ["exchange"]}),
        when(when_key("protocol", "mqtt3.1.1"), forbid("session_expiry_secs")),
    ]
    for source, ports in PORTS.items():
        of_source = when_key("source", source)
        plain = {"properties": {"url": {"pattern": f"^{source}://"}}, "required": ["url"]}
        rules.append(when(of_source, {"properties": {"url": {"pattern": f"^({'|'.join(ports)})://[^/?#]+/?$"}}}))
        rules.append(when(all_of(of_source, plain), forbid("tls")))
    for source in (*CONNECTED, "webhook"):
        others = [key for key, sources in CONNECTION_KEYS.items() if source not in sources]
        rules.append(when(when_key("source", source), forbid(*others)))
        needed = [{"anyOf": [{"required": [key]} for key in keys]} for keys in NEEDED.get(source, ())]
        if needed:
            rules.append(when(all_of(when_key("source", source), when_key("mode", "pull")), all_of(*needed)))
    return rules


def _rule_rules() -> list[Schema]:
    return [
        when(
            when_key("controls", *sorted(ROUTING)),
            {"required": ["allowed"], "properties": {"allowed": {"minItems": 1}}},
        ),
        when(
            when_key("controls", "dispatch.execution_pool"),
            {"properties": {"allowed": {"items": {"pattern": f"^{POOL_PATTERN}$"}}}},
        ),
        {
            "if": when_key("controls", "priority"),
            "then": {"required": ["map"], "properties": {"map": {"minProperties": 1}, "allowed": False}},
            "else": forbid("map"),
        },
    ]


def _verify_rules() -> list[Schema]:
    rules = []
    everything = {key for needed, also in PROOFS.values() for key in (*needed, *also)}
    for kind, (needed, also) in PROOFS.items():
        rules.append(when(when_key("type", kind), forbid(*sorted(everything.difference(needed, also)))))
        always = [key for key in needed if key != "header"]
        rules.append(when(when_key("type", kind), {"required": always}))
    rules.append(
        when(
            all_of(when_key("type", "hmac_sha256"), {"not": when_key("scheme", "standard_webhooks")}),
            {"required": ["header"]},
        )
    )
    return rules + _signature_rules()


def _signature_rules() -> list[Schema]:
    signature, plain = when_key("type", "signature"), {"not": {"required": ["preset"]}}
    has_secret = {"anyOf": [{"required": ["secret"]}, {"required": ["secrets"]}]}
    bounds = {
        "secrets": {"minItems": 1, "maxItems": MAX_ALIASES},
        "topics": {"minItems": 1, "maxItems": MAX_ALIASES},
        "signed": {"maxItems": MAX_PARTS, "contains": {"enum": list(SIGNED_BODIES)}},
        "certificates": {"minItems": 1},
    }
    presets = list(BY_CERTIFICATE)
    rules: list[Schema] = [
        {"properties": bounds},
        {"not": {"required": ["secret", "secrets"]}},
        when(all_of(signature, {"not": when_key("preset", *presets)}), has_secret),
        when(all_of(signature, plain), {"required": ["header"]}),
        when(all_of(signature, {"required": ["preset"]}, {"not": when_key("preset", *RENAMED)}), forbid("header")),
        when(when_key("preset", *RENAMED), {"properties": {"header": {"pattern": r"(?i)-signature$"}}}),
        when({"required": ["preset"]}, forbid(*SCHEME_KEYS)),
        when(when_key("preset", *TIMELESS), forbid("tolerance_secs")),
        when({"required": ["verify_token"]}, when_key("preset", "meta")),
    ]
    for preset, key in BY_CERTIFICATE.items():
        rules.append(when(when_key("preset", preset), all_of({"required": [key]}, forbid("secret", "secrets"))))
        rules.append(when({"required": [key]}, when_key("preset", preset)))
    for part, header in (("timestamp", "timestamp_header"), ("id", "id_header")):
        signs = {"required": ["signed"], "properties": {"signed": {"contains": {"const": part}}}}
        rules.append(when(signs, {"required": [header]}))
        rules.append(when({"required": [header]}, signs))
    for key in ("tolerance_secs", "timestamp_prefix"):
        rules.append(when(all_of(signature, plain, {"required": [key]}), {"required": ["timestamp_header"]}))
    rules.append(when({"required": ["join"]}, {"required": ["signed"], "properties": {"signed": {"minItems": 2}}}))
    return rules


def _ingress_rules() -> list[Schema]:
    signs = {"properties": {"signed": {"contains": {"const": "url"}}}, "required": ["signed"]}
    signs_url = {"anyOf": [when_key("preset", *SIGN_URL), signs]}
    return [when({"required": ["verify"], "properties": {"verify": signs_url}}, {"required": ["public_url"]})]


def _spool_rules() -> list[Schema]:
    on = when_key("mode", "buffer_and_ack", "hybrid")
    by_default = {"not": {"required": ["backend"]}}
    rules = [
        when(
            when_key("ordering", "global"),
            {"properties": {"drain": {"properties": {"on_recovery": {"not": {"const": "interleave"}}}}}},
        ),
        when(all_of(on, when_key("backend", "local_disk")), {"required": ["path"]}),
    ]
    for backend in ("nats_object", "gcs", "s3"):
        chosen = (
            {"anyOf": [when_key("backend", backend), by_default]}
            if backend == "nats_object"
            else when_key("backend", backend)
        )
        scheme = BUCKET_SCHEMES.get(backend)
        pattern = r"^(?![\s\S]*://)" + (f"|^{scheme}" if scheme else "")
        then = {"required": ["bucket"], "properties": {"bucket": {"pattern": pattern}}}
        rules.append(when(all_of(on, chosen), then))
    return rules


_RULES: Rules = {
    SubscriptionSpec: _spec_rules(),
    HeaderRule: _rule_rules(),
    IngressSpec: _ingress_rules(),
    VerifySpec: _verify_rules(),
    SpoolSpec: _spool_rules(),
    DownstreamSpec: [
        when({"not": {"anyOf": [when_key("type", "passive"), when_key("probe", "passive")]}}, {"required": ["target"]}),
    ],
}
