"""The rules of `ingress.verify`: which keys each type and preset needs, and which have no effect with it."""

from __future__ import annotations

from urllib.parse import urlsplit

from tape.documents.document import Node
from tape.documents.reader import key_at
from tape.subscriptions.document.nodes import block, texts, word
from tape.subscriptions.document.verify_spec import MAX_ALIASES, MAX_PARTS

SCHEME_KEYS = (
    "algorithm",
    "encoding",
    "key_encoding",
    "prefix",
    "separator",
    "signed",
    "join",
    "timestamp_header",
    "timestamp_prefix",
    "id_header",
)
# Required and optional keys of each verification type.
PROOFS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "hmac_sha256": (("header", "secret"), ("scheme", "tolerance_secs")),
    "bearer": (("secret",), ("header",)),
    "pubsub_oidc": (("audience", "service_account"), ("issuer", "jwks_url")),
    "signature": (
        (),
        (
            "preset",
            "header",
            "secret",
            "secrets",
            "tolerance_secs",
            "webhook_id",
            "topics",
            "verify_token",
            *SCHEME_KEYS,
        ),
    ),
    "basic": (("user", "secret"), ()),
    "mtls": (("certificates",), ()),
}
# Presets that are checked with a certificate of the provider, and the key that each needs instead of a secret.
BY_CERTIFICATE = {"paypal-cert": "webhook_id", "aws_sns": "topics"}
# Presets whose headers can have other names than usual.
RENAMED = ("standard_webhooks", "svix")
# Presets that sign the address they post to.
SIGN_URL = ("twilio", "square")
TIMELESS = ("github", "shopify", "twilio", "meta", "square")
SIGNED_BODIES = ("body", "body_sha256", "body_sha512", "form")


def check_verify(spec: Node) -> None:
    """Report what is missing or has no effect in `ingress.verify`."""
    ingress = block(spec, "ingress")
    verify = block(ingress, "verify")
    kind = word(verify, "type")
    _check_public_url(ingress)
    if kind not in PROOFS:
        return
    needed, also = PROOFS[kind]
    for key in needed:
        if key == "header" and word(verify, "scheme") == "standard_webhooks":
            continue
        if not verify.value.get(key):
            text = f"subscription 'ingress.verify.{key}' is required for verify.type '{kind}'"
            if key not in verify.value or verify.value[key] == []:
                verify.document.wrong((*verify.path, key), text)
    for key in verify.value:
        if any(key in (*theirs, *others) for theirs, others in PROOFS.values()) and key not in (*needed, *also):
            key_at(verify, key).wrong(f"has no effect with verify.type '{kind}'; leave it out")
    if kind == "signature":
        _check_signature(ingress, verify)
    if kind == "basic" and ":" in word(verify, "user"):
        key_at(verify, "user").wrong("has a colon, which ends the name of a user in basic authentication")
    for name in texts(verify, "certificates") if kind == "mtls" else ():
        if "**" in name.value or not name.value.strip("*./:@"):
            name.wrong("would match every name; * stands for one label of a DNS name only")


def _check_signature(ingress: Node, verify: Node) -> None:
    preset = word(verify, "preset")
    given = verify.value
    if "secret" in given and "secrets" in given:
        key_at(verify, "secrets").wrong("is given beside 'secret'; keep one of them")
    for key, most in (("secrets", MAX_ALIASES), ("signed", MAX_PARTS), ("topics", MAX_ALIASES)):
        if isinstance(given.get(key), list) and len(given[key]) > most:
            key_at(verify, key).wrong(f"has {len(given[key])} items; at most {most} are allowed")
    own = BY_CERTIFICATE.get(preset, "")
    if own:
        if not given.get(own):
            _missing(verify, own, f"for preset '{preset}'")
        for key in ("secret", "secrets"):
            if key in given:
                key_at(verify, key).wrong(f"has no effect with preset '{preset}', which signs with a certificate")
    elif "secret" not in given and not given.get("secrets"):
        _missing(verify, "secret", "for verify.type 'signature'")
    for key in ("webhook_id", "topics"):
        if key in given and key != own:
            owner = next(name for name, needed in BY_CERTIFICATE.items() if needed == key)
            key_at(verify, key).wrong(f"is for preset '{owner}' alone")
    if "verify_token" in given and preset != "meta":
        key_at(verify, "verify_token").wrong("is for preset 'meta' alone")
    if preset:
        _check_preset(ingress, verify, preset)
    else:
        _check_scheme(ingress, verify)


def _check_preset(ingress: Node, verify: Node, preset: str) -> None:
    for key in (*SCHEME_KEYS, *(() if preset in RENAMED else ("header",))):
        if key in verify.value:
            key_at(verify, key).wrong(f"is set by preset '{preset}'; leave it out, or leave out the preset")
    header = word(verify, "header")
    if preset in RENAMED and header and not header.lower().endswith("-signature"):
        key_at(verify, "header").wrong("must end with -signature; -id and -timestamp are found by what is before that")
    if preset in SIGN_URL:
        _need_public_url(ingress, f"preset '{preset}' signs the address")
    if preset in TIMELESS and "tolerance_secs" in verify.value:
        key_at(verify, "tolerance_secs").wrong(f"has no effect with preset '{preset}', which signs no time")


def _check_scheme(ingress: Node, verify: Node) -> None:
    given = verify.value
    if "header" not in given:
        _missing(verify, "header", "for verify.type 'signature' without a preset")
    parts = [part.value for part in texts(verify, "signed")] if "signed" in given else ["body"]
    if not any(part in SIGNED_BODIES for part in parts):
        key_at(verify, "signed").wrong(f"must have one of {', '.join(SIGNED_BODIES)}: the body must be signed")
    for part, header in (("timestamp", "timestamp_header"), ("id", "id_header")):
        if part in parts and header not in given:
            _missing(verify, header, f"because '{part}' is signed")
        if header in given and part not in parts:
            key_at(verify, header).wrong(f"is not signed and proves nothing; add '{part}' to 'signed', or leave it out")
    for key in ("tolerance_secs", "timestamp_prefix"):
        if key in given and "timestamp_header" not in given:
            key_at(verify, key).wrong("has no effect without timestamp_header")
    if "join" in given and len(parts) < 2:
        key_at(verify, "join").wrong("has no effect with one signed part")
    if "url" in parts:
        _need_public_url(ingress, "'url' is signed")


def _check_public_url(ingress: Node) -> None:
    url = word(ingress, "public_url")
    try:
        is_usable = not url or (bool(urlsplit(url).hostname) and urlsplit(url).port != 0)
    except ValueError:
        is_usable = False
    if not is_usable:
        key_at(ingress, "public_url").wrong("has no usable host or port")


def _need_public_url(ingress: Node, why: str) -> None:
    if "public_url" not in ingress.value:
        text = f"subscription 'ingress.public_url' is required because {why}"
        ingress.document.wrong((*ingress.path, "public_url"), text)


def _missing(verify: Node, key: str, why: str) -> None:
    verify.document.wrong((*verify.path, key), f"subscription 'ingress.verify.{key}' is required {why}")
