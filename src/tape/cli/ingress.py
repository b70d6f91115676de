"""`tape ingress`: try how a push subscription verifies a saved request, list its deliveries and send one again."""

from __future__ import annotations

import os
import shlex
import time
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from tape.base.extras import require_server_libraries
from tape.cli.options import (
    DEFAULT_SERVER,
    DEFAULT_STORE,
    Output,
    OutputOption,
    ServerOption,
    StoreOption,
    WalletKeyOption,
    run,
)
from tape.cli.output import console, print_json, print_table
from tape.errors import InvalidInput, InvalidSample, TapeError
from tape.model.tenant_names import name_within, tenant_of
from tape.subscriptions.api_client import connect
from tape.subscriptions.document.spec import IngressSpec, Subscription
from tape.subscriptions.document.validator import parse_subscription

if TYPE_CHECKING:
    from tape.subscriptions.ingress.sample import SavedRequest
    from tape.subscriptions.ingress.verification.delivery import PushDelivery
    from tape.subscriptions.ingress.verification.trace import VerificationStep

app = typer.Typer(help="Test how deliveries are verified; list and resend deliveries.", no_args_is_help=True)

MAX_INLINE_BYTES = 100_000


@app.command("test")
def check_request(
    document: Annotated[Path, typer.Argument(help="YAML document of kind Subscription.", metavar="DOC")],
    sample: Annotated[
        Path,
        typer.Option(
            help="Saved request: headers, an empty line and the body as they were sent; or JSON with headers and body."
        ),
    ],
    secret_file: Annotated[
        list[Path] | None,
        typer.Option(help="File with a secret; repeatable. [default: TAPE_INGRESS_SECRET, else the wallet]"),
    ] = None,
    at: Annotated[
        str, typer.Option(help="When it was received: Unix seconds or ISO 8601. [default: now]", metavar="TIME")
    ] = "",
    client_cert: Annotated[Path | None, typer.Option(help="PEM file of the client certificate, for mtls.")] = None,
    sign: Annotated[
        bool, typer.Option("--sign", help="Sign the request now and print a curl command that sends it.")
    ] = False,
    to: Annotated[
        str, typer.Option(help="Address of the server or gateway, for --sign.", metavar="HTTP_URL")
    ] = "http://127.0.0.1:7879",
    store: StoreOption = DEFAULT_STORE,
    wallet_key: WalletKeyOption = "",
    output: OutputOption = Output.text,
) -> None:
    """Verify a saved request as the document says, check by check. Exits with 1 if it would be rejected.

    Nothing is sent, except that the certificate of a PayPal or Amazon SNS signature is fetched. Secrets are not shown.
    """
    require_server_libraries("tape ingress test")
    from tape.subscriptions.ingress.sample import read_sample

    subscription = parse_subscription(_read(document).decode(errors="replace"))
    ingress = subscription.spec.ingress
    if ingress is None:
        raise InvalidInput(f"{document} is fetched from (mode: pull); only a push subscription gets requests.")
    request = read_sample(_read(sample))
    secrets = _secrets(subscription, ingress, secret_file or [], store, wallet_key)
    delivery = _delivery(request, at, client_cert)
    if sign:
        command = _curl(ingress, secrets, delivery, to)
        print_json({"command": command}) if output is Output.json else typer.echo(command)
        return
    steps, verdict = run(_verify(subscription, secrets, delivery))
    if output is Output.json:
        print_json(verdict | {"note": request.note, "checks": [step._asdict() for step in steps]})
    else:
        _show(request, steps, verdict)
    if not verdict["verified"]:
        raise typer.Exit(1)


class DedupChoice(StrEnum):
    """The deduplication key of a delivery that is sent again."""

    new = "new"
    same = "same"


@app.command("deliveries")
def list_deliveries(
    subscription: Annotated[str, typer.Argument(help="Path of a subscription.", metavar="SUBSCRIPTION")],
    limit: Annotated[int, typer.Option(min=1, max=200, help="Runs to list at most.")] = 50,
    before: Annotated[str, typer.Option(help="Cursor of the page, the `next` of the page before it.")] = "",
    server: ServerOption = DEFAULT_SERVER,
    output: OutputOption = Output.text,
) -> None:
    """List what became of the deliveries of a subscription, newest first: runs, duplicates, rejections, handshakes.

    Equal rejections within a second are one line with their count; their bodies are not kept.
    """
    asked = {"path": subscription, "limit": str(limit)} | ({"before": before} if before else {})
    found = connect(server).call("GET", f"/api/deliveries?{urlencode(asked)}")
    if output is Output.json:
        print_json(found)
        return
    print_table(
        ("at", "outcome", "count", "execution", "message", "status or reason"),
        (
            (
                each["at"],
                each["outcome"],
                str(each["count"]),
                each.get("execution_id", ""),
                each.get("message_id", ""),
                each.get("status", "") or each.get("reason", ""),
            )
            for each in found["deliveries"]
        ),
        nothing="No deliveries are known.",
    )
    if "next" in found:
        typer.echo(f"More: --before {found['next']}")


@app.command()
def resend(
    execution_id: Annotated[str, typer.Argument(help="Execution of the delivery, from `tape ingress deliveries`.")],
    dedup: Annotated[
        DedupChoice,
        typer.Option(help="new: always a new run. same: under the message's own key, so a duplicate starts nothing."),
    ] = DedupChoice.new,
    server: ServerOption = DEFAULT_SERVER,
    output: OutputOption = Output.text,
) -> None:
    """Dispatch a delivery again: a new run of its playbook, in the current version, with the same input."""
    body = {"execution_id": execution_id, "dedup": dedup.value}
    started = connect(server).call("POST", "/api/deliveries/resend", body)
    if output is Output.json:
        print_json(started)
    elif started["status"] == "duplicate":
        typer.echo(
            f"{execution_id} was not sent again: within the deduplication window it is {started['execution_id']}."
        )
    else:
        typer.echo(f"{execution_id} was sent again as {started['execution_id']}.")


async def _verify(
    subscription: Subscription, secrets: tuple[str, ...], delivery: PushDelivery
) -> tuple[list[VerificationStep], dict[str, Any]]:
    from tape.subscriptions.ingress.handshakes import Handshake, answer_handshake
    from tape.subscriptions.ingress.push_message import message_from_push
    from tape.subscriptions.ingress.verification.certificates import parse_sns
    from tape.subscriptions.ingress.verification.delivery import DeliveryRejection
    from tape.subscriptions.ingress.verification.issuer_keys import IssuerKeys
    from tape.subscriptions.ingress.verification.trace import VerificationTrace
    from tape.subscriptions.ingress.verification.verify import verify_delivery
    from tape.subscriptions.routing import resolve

    issuers, trace = IssuerKeys(), VerificationTrace()
    assert subscription.spec.ingress is not None
    try:
        found = await verify_delivery(subscription, secrets, issuers, delivery, trace)
        if isinstance(found, DeliveryRejection):
            return trace.steps, {"verified": False, "status": found.status, "reason": found.reason}
        if subscription.spec.ingress.verify.preset == "aws_sns":  # its address is not fetched here
            kind = (parse_sns(delivery.body) or {}).get("Type", "Notification")
            if kind != "Notification":
                return trace.steps, {"verified": True, "handshake": kind}
        else:
            handshake = await answer_handshake(found, issuers.certificates)
            if isinstance(handshake, DeliveryRejection):
                return trace.steps, {"verified": False, "status": handshake.status, "reason": handshake.reason}
            if isinstance(handshake, Handshake):
                return trace.steps, {"verified": True, "handshake": handshake.kind}
    finally:
        await issuers.close()
    plan = resolve(subscription, message_from_push(found))
    return trace.steps, {"verified": True, "message_id": plan.message_id, "playbook": plan.playbook}


def _show(request: SavedRequest, steps: list[VerificationStep], verdict: dict[str, Any]) -> None:
    page = console()
    if request.note:
        page.print(f"sample: {request.note}", markup=False)
    for step in steps:
        mark, colour = ("ok  ", "green") if step.passed else ("fail", "red")
        page.print(f"[{colour}]{mark}[/] {step.check}: ", end="")
        page.print(step.found, markup=False)
    if not verdict["verified"]:
        page.print(f"rejected: {verdict['status']} {verdict['reason']}", markup=False)
    elif "handshake" in verdict:
        page.print(f"verified: the handshake {verdict['handshake']}, no message", markup=False)
    else:
        page.print(f"verified: message {verdict['message_id']} runs {verdict['playbook']}", markup=False)


def _delivery(request: SavedRequest, at: str, client_cert: Path | None) -> PushDelivery:
    from tape.subscriptions.ingress.verification.delivery import PushDelivery, RequestTarget

    certificate = None
    if client_cert is not None:
        import ssl

        try:
            certificate = ssl.PEM_cert_to_DER_cert(_read(client_cert).decode("ascii"))
        except ValueError as error:
            raise InvalidInput(f"--client-cert {client_cert} is no certificate in PEM: {error}.") from error
    target = RequestTarget(request.method, request.path, request.query, certificate)
    return PushDelivery(request.headers, request.body, _moment(at), target)


def _moment(at: str) -> float:
    if not at:
        return time.time()
    try:
        return float(at) if at.replace(".", "", 1).isdigit() else datetime.fromisoformat(at).timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"--at {at!r} is neither Unix seconds nor a time such as 2026-11-18T10:00:00Z.") from error


def _secrets(
    subscription: Subscription, ingress: IngressSpec, files: list[Path], store: str, wallet_key: str
) -> tuple[str, ...]:
    """The secrets of the document: from files, from TAPE_INGRESS_SECRET, or from the wallet."""
    from tape.subscriptions.ingress.verification.request_signer import SECRET_VARIABLE

    if files:
        return tuple(_read(file).decode(errors="replace").removesuffix("\n").removesuffix("\r") for file in files)
    if given := os.environ.get(SECRET_VARIABLE):
        return (given,)
    if not ingress.verify.aliases:
        return ()
    try:
        return run(_revealed(subscription.path, ingress.verify.aliases, store, wallet_key))
    except TapeError as error:
        raise InvalidSample(
            f"the secret {' or '.join(ingress.verify.aliases)} cannot be read from the wallet of {store}: {error}"
            f" Give it with --secret-file or {SECRET_VARIABLE}."
        ) from error


async def _revealed(path: str, aliases: tuple[str, ...], store: str, wallet_key: str) -> tuple[str, ...]:
    from tape.cli.wallet import open_wallet
    from tape.engine.security.wallet import text_of

    async with open_wallet(store, wallet_key) as wallet:
        names = [name_within(tenant_of(path), alias) for alias in aliases]
        return tuple([text_of(name, secret) for name in names for secret in await wallet.reveal_all(name)])


def _curl(ingress: IngressSpec, secrets: tuple[str, ...], delivery: PushDelivery, to: str) -> str:
    from tape.subscriptions.ingress.push_message import proof_headers
    from tape.subscriptions.ingress.verification.delivery import PushDelivery, RequestTarget
    from tape.subscriptions.ingress.verification.request_signer import sign_request
    from tape.subscriptions.ingress.verification.scheme import schemes_of

    path = f"/ingress/{ingress.listener}"  # what the server will see
    sent = RequestTarget("POST", path, delivery.target.query)
    delivery = PushDelivery(delivery.headers, delivery.body, delivery.received_at, sent)
    signed = sign_request(ingress, secrets, delivery)
    added = {name.lower() for name in (*signed.plain, *signed.shell)}
    times = {scheme.timestamp_header.lower() for scheme in schemes_of(ingress.verify)}
    left_out = added | times | proof_headers(ingress.verify) | {"content-length", "host", "connection", "authorization"}
    kept = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in delivery.headers]
    shown = [f"{name}: {value}" for name, value in kept if name.lower() not in left_out]
    if not any(name.lower() == "content-type" for name, _ in kept):
        shown.append("Content-Type: application/json")
    query = f"?{delivery.target.query}" if delivery.target.query else ""
    parts = ["curl", "-sS", "-X", "POST", shlex.quote(f"{to.rstrip('/')}{path}{query}")]
    for header in (*shown, *(f"{name}: {value}" for name, value in signed.plain.items())):
        parts += ["-H", shlex.quote(header)]
    for name, value in signed.shell.items():
        parts += ["-H", f'"{name}: {value}"']
    before, data = _data(delivery.body)
    return f"{before}{' '.join(parts)} --data-binary {data}"


def _data(body: bytes) -> tuple[str, str]:
    """How a shell gives the body to curl, byte for byte: what comes before, and the argument."""
    import base64

    if len(body) > MAX_INLINE_BYTES:
        raise InvalidSample(f"the body has {len(body)} bytes; a command line can have {MAX_INLINE_BYTES} of them.")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" not in text and not text.startswith("@"):
        return "", shlex.quote(text)
    return f"printf %s {base64.b64encode(body).decode()} | base64 -d | ", "@-"


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error}.") from error
