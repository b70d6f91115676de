"""`mtls`: the certificate of the client, which TLS has verified against `tls_client_ca` of this process."""

from __future__ import annotations

from tape.base.certificate_names import compile_pattern, read_certificate
from tape.errors import CertificateRejected
from tape.subscriptions.document.verify_spec import VerifySpec
from tape.subscriptions.ingress.verification.delivery import DeliveryRejection, PushDelivery

MISSING = DeliveryRejection(401, "missing_certificate")
EXPIRED = DeliveryRejection(401, "certificate_expired")
MALFORMED = DeliveryRejection(401, "certificate_malformed")
UNKNOWN = DeliveryRejection(403, "certificate_unknown")


def check_certificate(verify: VerifySpec, delivery: PushDelivery) -> DeliveryRejection | None:
    """None if a name of the client's certificate matches one of `certificates`."""
    if delivery.target.certificate is None:
        return MISSING
    try:
        found = read_certificate(delivery.target.certificate)
    except CertificateRejected:
        return MALFORMED
    if delivery.received_at >= found.expires_at:  # since the handshake
        return EXPIRED
    patterns = [compile_pattern(text) for text in verify.certificates]
    is_known = any(pattern.matches(name) for pattern in patterns for name in found.names)
    return None if is_known else UNKNOWN
