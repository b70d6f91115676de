"""`ingress.verify` of `kind: Subscription`: how a delivery proves its sender."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from tape.subscriptions.document.spool_spec import Count, Text

WEB_ADDRESS = r"^https?://[^\s/?#]+([/?#]\S*)?$"
HEADER_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"

Preset: TypeAlias = Literal[
    "stripe",
    "github",
    "shopify",
    "slack",
    "twilio",
    "gitlab",
    "standard_webhooks",
    "svix",
    "discord",
    "meta",
    "zoom",
    "square",
    "paypal-cert",
    "aws_sns",
]
Algorithm: TypeAlias = Literal["hmac_sha1", "hmac_sha256", "hmac_sha512", "ed25519"]
Encoding: TypeAlias = Literal["hex", "base64", "base64url"]
KeyEncoding: TypeAlias = Literal["auto", "text", "hex", "base64"]
SIGNED_PARTS = ("timestamp", "id", "method", "url", "path", "body", "body_sha256", "body_sha512", "form")
SignedPart: TypeAlias = Annotated[
    str,
    Meta(
        pattern=rf"^({'|'.join(SIGNED_PARTS)}|text:[\s\S]{{1,200}}|header:{HEADER_NAME})$",
        extra={"means": f"one of {', '.join(SIGNED_PARTS)}, text:<literal> or header:<name>"},
    ),
]
MAX_ALIASES = 10
MAX_PARTS = 20
DEFAULT_TOLERANCE_S = 300


class VerifySpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a delivery is verified."""

    type: Annotated[
        Literal["hmac_sha256", "bearer", "pubsub_oidc", "signature", "basic", "mtls"],
        Meta(description="Kind of proof."),
    ]
    preset: Annotated[Preset | None, Meta(description="The provider whose signatures are checked (`signature`).")] = (
        None
    )
    header: Annotated[Text, Meta(description="Header with the signature or token.")] = ""
    secret: Annotated[Text, Meta(description="Alias of the secret in the wallet.")] = ""
    secrets: Annotated[
        tuple[Text, ...],
        Meta(description="Several aliases instead of `secret`: each of their secrets is good (`signature`)."),
    ] = ()
    scheme: Annotated[
        Literal["auto", "plain", "stripe", "standard_webhooks"],
        Meta(description="How an `hmac_sha256` signature is written; `auto` goes by the header's name."),
    ] = "auto"
    algorithm: Annotated[Algorithm, Meta(description="Algorithm of the signature (`signature`).")] = "hmac_sha256"
    encoding: Annotated[Encoding, Meta(description="How the signature is written (`signature`).")] = "hex"
    key_encoding: Annotated[
        KeyEncoding,
        Meta(description="How the key is written; `auto`: as text for HMAC, in hex or base64 for Ed25519."),
    ] = "auto"
    prefix: Annotated[Text, Meta(description="Text before each signature, like `sha256=`; others are ignored.")] = ""
    separator: Annotated[Text, Meta(description="Text between several signatures in the header.")] = ""
    signed: Annotated[
        tuple[SignedPart, ...], Meta(description="The parts that are signed, in their order; `body` without it.")
    ] = ()
    join: Annotated[Text, Meta(description="Text between the signed parts.")] = ""
    timestamp_header: Annotated[Text, Meta(description="Header with the time of signing, in s or ms.")] = ""
    timestamp_prefix: Annotated[Text, Meta(description="Text before the time in its header, like `t=`.")] = ""
    id_header: Annotated[Text, Meta(description="Header with the id of the message.")] = ""
    tolerance_secs: Annotated[
        Count | None,
        Meta(
            description="Age of a signature's own time at most, where the scheme has one."
            " Default: 300; 3,600 with `aws_sns`."
        ),
    ] = None
    webhook_id: Annotated[Text, Meta(description="Id of the webhook at PayPal, which is signed (`paypal-cert`).")] = ""
    topics: Annotated[tuple[Text, ...], Meta(description="ARNs of the topics that may deliver (`aws_sns`).")] = ()
    verify_token: Annotated[
        Text, Meta(description="Alias of the token that Meta sends when it verifies the address (`meta`).")
    ] = ""
    user: Annotated[Text, Meta(description="User name; `secret` is the password (`basic`).")] = ""
    certificates: Annotated[
        tuple[Text, ...],
        Meta(description="Names in the client's certificate, as in `tls_clients`; one is enough (`mtls`)."),
    ] = ()
    audience: Annotated[Text, Meta(description="The `aud` of the token (`pubsub_oidc`).")] = ""
    service_account: Annotated[Text, Meta(description="The `email` of the token (`pubsub_oidc`).")] = ""
    issuer: Annotated[Text, Meta(description="The `iss` of the token; Google's without it (`pubsub_oidc`).")] = ""
    jwks_url: Annotated[
        str,
        Meta(
            pattern=WEB_ADDRESS,
            extra={"means": "an http:// or https:// address"},
            description="Keys of the tokens; Google's without it (`pubsub_oidc`).",
        ),
    ] = ""

    @property
    def aliases(self) -> tuple[str, ...]:
        """The aliases of the secrets that senders sign with."""
        return (self.secret,) if self.secret else self.secrets

    @property
    def signature_scheme(self) -> Literal["plain", "stripe", "standard_webhooks"]:
        """The signature scheme of `hmac_sha256`; `auto` is decided by the header's name."""
        if self.scheme != "auto":
            return self.scheme
        by_header: dict[str, Literal["stripe", "standard_webhooks"]] = {
            "stripe-signature": "stripe",
            "webhook-signature": "standard_webhooks",
        }
        return by_header.get(self.header.lower(), "plain")
