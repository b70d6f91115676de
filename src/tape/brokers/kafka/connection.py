"""Connections to Kafka as properties of librdkafka: brokers, TLS and SASL."""

from __future__ import annotations

from typing import Any

from tape.base.hosts import BROKER_PROPERTIES
from tape.brokers.settings import SourceSettings
from tape.brokers.tls import TlsCertificates, tls_of

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")


def connection_of(settings: SourceSettings) -> dict[str, Any]:
    """The properties of every client of a cluster: `brokers`, security, and `options` for librdkafka."""
    brokers = settings.texts("brokers")
    if not brokers:
        raise settings.wrong("requires 'brokers' (string or array of host:port)")
    return {
        "client.id": "tape-subscription",
        **{name: value for name, value in settings.mapping("options").items() if name not in BROKER_PROPERTIES},
        **security_of(settings),
        "bootstrap.servers": ",".join(brokers),
    }


def security_of(settings: SourceSettings) -> dict[str, Any]:
    """The properties for `security_protocol`, `tls`, `user` and `password`.

    Without `security_protocol`, certificates turn TLS on and a user turns SASL on.
    """
    tls = tls_of(settings)
    user = settings.text("user")
    protocol = settings.text("security_protocol").lower()
    protocol = protocol or f"{'sasl_' if user else ''}{'ssl' if tls else 'plaintext'}"
    if protocol not in PROTOCOLS:
        raise settings.wrong(f"'security_protocol' is {protocol!r}; use one of {', '.join(PROTOCOLS)}")
    if tls is not None and not protocol.endswith("ssl"):
        raise settings.wrong(f"has 'tls', and 'security_protocol' {protocol!r} does not encrypt; use ssl or sasl_ssl")
    config: dict[str, Any] = {"security.protocol": protocol.upper()}
    if protocol.startswith("sasl"):
        config |= _login(settings, user)
    elif user:
        raise settings.wrong(f"has 'user', and 'security_protocol' {protocol!r} does not log in; use sasl_ssl")
    if tls is not None:
        config |= _certificates(tls)
    return config


def _login(settings: SourceSettings, user: str) -> dict[str, str]:
    mechanism = settings.text("sasl_mechanism") or "PLAIN"
    if mechanism not in MECHANISMS:
        raise settings.wrong(f"'sasl_mechanism' is {mechanism!r}; use one of {', '.join(MECHANISMS)}")
    if not user:
        raise settings.wrong("logs in with SASL and requires 'user' and 'password', there or in the 'auth' credential")
    return {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": settings.required("password")}


def _certificates(tls: TlsCertificates) -> dict[str, str]:
    parts = {"ssl.ca.pem": tls.ca, "ssl.certificate.pem": tls.cert, "ssl.key.pem": tls.key}
    return {name: value for name, value in parts.items() if value}
