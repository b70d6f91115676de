"""Signature schemes: where a signature is found, how it is written, and what it signs.

The schemes of `type: signature` come from the fields of the document or from a preset; `hmac_sha256` has three.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from tape.subscriptions.document.verify_spec import (
    DEFAULT_TOLERANCE_S,
    Algorithm,
    Encoding,
    KeyEncoding,
    Preset,
    VerifySpec,
)

# Separates signatures by any white space.
WHITESPACE = " "
WHSEC = "whsec_"
WHPK = "whpk_"
DEFAULT_HEADER = "x-signature"
SNS_TOLERANCE_S = 3_600

HandshakeKind: TypeAlias = Literal["", "slack", "discord", "zoom", "meta"]


class SigningMethod(NamedTuple):
    """An algorithm, and how its signatures and keys are written.

    `token` is no signature: the header has the key itself. Keys with another method's `key_prefix` are not used.
    """

    algorithm: Algorithm | Literal["token"] = "hmac_sha256"
    prefix: str = ""
    encoding: Encoding | Literal["either"] = "hex"
    key_encoding: KeyEncoding = "auto"
    key_prefix: str = ""
    is_prefix_optional: bool = False


class SignatureScheme(NamedTuple):
    """A scheme. `timestamp_prefix` finds the time among several parts of its header.

    `message_id` names a header, `message_id_field` a field of the JSON body, that identifies the message.
    """

    header: str
    methods: tuple[SigningMethod, ...] = (SigningMethod(),)
    separator: str = ""
    parts: tuple[str, ...] = ("body",)
    join: str = ""
    timestamp_header: str = ""
    timestamp_prefix: str = ""
    id_header: str = ""
    message_id: str = ""
    message_id_field: str = ""
    handshake: HandshakeKind = ""
    # Whether the time may be in milliseconds; with 12 digits or more it is.
    has_milliseconds: bool = True
    # Whether a URL with a default port equals one without.
    is_any_port: bool = False

    @property
    def proof_headers(self) -> frozenset[str]:
        """The headers that prove the sender, which playbooks do not get."""
        return frozenset({self.header.lower()})


def _standard(family: str) -> SignatureScheme:
    return SignatureScheme(
        header=f"{family}-signature",
        methods=(
            SigningMethod("hmac_sha256", "v1,", "base64", "base64", WHSEC),
            SigningMethod("ed25519", "v1a,", "base64", "base64", WHPK),
        ),
        separator=WHITESPACE,
        parts=("id", "timestamp", "body"),
        join=".",
        timestamp_header=f"{family}-timestamp",
        id_header=f"{family}-id",
        message_id=f"{family}-id",
    )


def _versioned(header: str, timestamp: str, **more: str) -> SignatureScheme:
    """`v0:<time>:<body>`, as Slack and Zoom sign."""
    return SignatureScheme(
        header=header,
        methods=(SigningMethod(prefix="v0="),),
        parts=("text:v0", "timestamp", "body"),
        join=":",
        timestamp_header=timestamp,
        **more,  # type: ignore[arg-type]  # the names of texts only
    )


# By preset; of several schemes the first counts whose header is there and that has a key.
PRESETS: dict[Preset, tuple[SignatureScheme, ...]] = {
    "stripe": (
        SignatureScheme(
            header="stripe-signature",
            methods=(SigningMethod(prefix="v1="),),
            separator=",",
            parts=("timestamp", "body"),
            join=".",
            timestamp_header="stripe-signature",
            timestamp_prefix="t=",
            message_id_field="id",
        ),
    ),
    "github": (
        SignatureScheme(
            header="x-hub-signature-256", methods=(SigningMethod(prefix="sha256="),), message_id="x-github-delivery"
        ),
    ),
    "shopify": (
        SignatureScheme(
            header="x-shopify-hmac-sha256",
            methods=(SigningMethod(encoding="base64"),),
            message_id="x-shopify-webhook-id",
        ),
    ),
    "slack": (
        _versioned("x-slack-signature", "x-slack-request-timestamp", message_id_field="event_id", handshake="slack"),
    ),
    "twilio": (
        SignatureScheme(
            header="x-twilio-signature",
            methods=(SigningMethod("hmac_sha1", encoding="base64"),),
            parts=("url", "form"),
            message_id="i-twilio-idempotency-token",
            is_any_port=True,
        ),
    ),
    "gitlab": (
        _standard("webhook"),
        SignatureScheme(header="x-gitlab-token", methods=(SigningMethod("token"),), message_id="idempotency-key"),
    ),
    "standard_webhooks": (_standard("webhook"),),
    "svix": (_standard("svix"),),
    "discord": (
        SignatureScheme(
            header="x-signature-ed25519",
            methods=(SigningMethod("ed25519"),),
            parts=("timestamp", "body"),
            timestamp_header="x-signature-timestamp",
            message_id_field="id",
            handshake="discord",
        ),
    ),
    "meta": (
        SignatureScheme(header="x-hub-signature-256", methods=(SigningMethod(prefix="sha256="),), handshake="meta"),
    ),
    "zoom": (_versioned("x-zm-signature", "x-zm-request-timestamp", handshake="zoom"),),
    "square": (
        SignatureScheme(
            header="x-square-hmacsha256-signature",
            methods=(SigningMethod(encoding="base64"),),
            parts=("url", "body"),
            message_id_field="event_id",
        ),
    ),
    # These two sign with certificates: see certificates.py.
    "paypal-cert": (),
    "aws_sns": (),
}


def schemes_of(verify: VerifySpec) -> tuple[SignatureScheme, ...]:
    """The schemes of a `verify` block; none for types and presets that are not checked by one."""
    if verify.type == "hmac_sha256":
        return (_former_scheme(verify),)
    if verify.type != "signature":
        return ()
    if verify.preset is not None:
        if verify.header and verify.preset in ("standard_webhooks", "svix"):
            return (_standard(verify.header.lower().removesuffix("-signature")),)
        return PRESETS[verify.preset]
    return (
        SignatureScheme(
            header=verify.header,
            methods=(SigningMethod(verify.algorithm, verify.prefix, verify.encoding, verify.key_encoding),),
            separator=verify.separator,
            parts=verify.signed or ("body",),
            join=verify.join,
            timestamp_header=verify.timestamp_header,
            timestamp_prefix=verify.timestamp_prefix,
            id_header=verify.id_header,
            message_id=verify.id_header,
        ),
    )


def tolerance_of(verify: VerifySpec) -> int:
    """How many seconds the time of a signature may differ from now."""
    return verify.tolerance_secs or (SNS_TOLERANCE_S if verify.preset == "aws_sns" else DEFAULT_TOLERANCE_S)


def _former_scheme(verify: VerifySpec) -> SignatureScheme:
    """The scheme of `hmac_sha256`, which existed before `signature`."""
    header = verify.header or DEFAULT_HEADER
    match verify.signature_scheme:
        case "plain":
            methods = (SigningMethod(prefix="sha256=", encoding="either", is_prefix_optional=True),)
            return SignatureScheme(header=header, methods=methods)
        case "stripe":
            return PRESETS["stripe"][0]._replace(
                header=header, timestamp_header=header, message_id_field="", has_milliseconds=False
            )
        case "standard_webhooks":
            # The other two headers have the same prefix: webhook-id, or svix-id with svix-signature.
            scheme = _standard(header.lower().removesuffix("-signature"))
            methods = (scheme.methods[0]._replace(encoding="either"),)
            return scheme._replace(header=header, methods=methods, has_milliseconds=False)
