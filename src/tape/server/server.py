"""One server process: database, hub, gRPC services and HTTP routes, started together and stopped in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from starlette.types import ASGIApp

from tape import __version__
from tape.base.addresses import allowing
from tape.base.config import Settings, parse_address
from tape.base.owner import new_owner, server_owner
from tape.base.telemetry.metrics import Metrics
from tape.engine.fanout.live import Broadcast, LiveLimits
from tape.engine.ledgers.counts import fold
from tape.engine.scrubber import Scrubber
from tape.errors import TapeError
from tape.journal.key_index import read_watermark
from tape.proto import tape_pb2 as pb
from tape.proto.call_frames import PROTOCOL
from tape.server.core import ServerCore
from tape.server.grpc.decoders import StandardServices
from tape.server.grpc.handlers import handlers
from tape.server.grpc.health import HealthService
from tape.server.grpc.methods import SERVICE, Methods, UnaryMethod
from tape.server.grpc.tls import server_credentials
from tape.server.http.access import HttpAccess
from tape.server.http.api import ApiRoutes
from tape.server.http.app import Endpoints, build_app
from tape.server.http.artifacts import ArtifactRoutes
from tape.server.http.calls import CallRoutes
from tape.server.http.frames import SseFormat
from tape.server.http.http_server import HttpServer
from tape.server.http.info import InfoRoutes
from tape.server.http.ingress import IngressRoutes
from tape.server.http.internal import InternalAccess
from tape.server.http.keys import KeyRoutes
from tape.server.http.listeners import RunStarter
from tape.server.http.protocol import HttpLimits
from tape.server.http.publish import PublishRoutes
from tape.server.http.queries import QueryRoutes
from tape.server.http.router import App
from tape.server.http.stream import EventStream
from tape.server.loop_lag import LoopLag
from tape.server.readiness import Readiness
from tape.server.sockets import bind, join
from tape.server.tls import ServerTls
from tape.store.process_lock import Holder, ProcessLock
from tape.subscriptions.dispatch.in_server import WriterDownstreams
from tape.subscriptions.events import SubscriptionEvent
from tape.subscriptions.ingress.catalog_listeners import CatalogListeners
from tape.subscriptions.ingress.ingress import Ingress
from tape.subscriptions.ingress.listeners import Listener, Listeners
from tape.subscriptions.ingress.spooling_dispatch import SpoolingDispatch
from tape.subscriptions.readiness import DatabaseReadiness
from tape.subscriptions.runtime.supervisor import RuntimeSupervisor

if TYPE_CHECKING:
    from tape.engine.security.identity import Authenticator

log = logging.getLogger(__name__)

# What a message has beside its largest payload. A payload that is a little too large gets Tape's own error.
MESSAGE_SLACK_BYTES = 1 << 20
# Names and values of all metadata of a call together, as for the headers of HTTP.
MAX_METADATA_BYTES = 64 << 10
# A connection that has not finished TLS and the preface of HTTP/2 after this is closed, as http_header_timeout_s says
# for HTTP; the default of gRPC is 2 minutes.
HANDSHAKE_TIMEOUT_MS = 10_000
# Seconds between two runs of the counter. Queries count newer entries from the journal.
COUNTING_S = 10.0
# Seconds after which a paused subscription or a replaced secret takes effect in the ingress.
LISTENERS_S = 1.0


class Mount(Protocol):
    """Routes of the HTTP application that another package serves, and what runs behind them."""

    def add_to(self, app: App) -> None: ...
    async def run(self) -> None: ...


MakeMount = Callable[[Methods, HttpAccess, Metrics, int], Mount]


class Server:
    """Use as an async context manager; `grpc_address` and `http_address` are the addresses it listens on."""

    def __init__(self, settings: Settings, mount: MakeMount | None = None) -> None:
        """`mount` makes further routes of the HTTP application, such as `/mcp`."""
        self._make_mount = mount
        self._is_stopped = False
        self.settings = settings
        self._allowed_hosts = contextlib.ExitStack()
        self._authenticator = _authenticator(settings)
        owner = _lease_owner(settings)
        self.core = core = ServerCore(settings, owner, self._authenticator)
        self.metrics, self.database, self.journal, self.hub = core.metrics, core.database, core.journal, core.hub
        self.audit, self.artifacts, self.wallet, self.keys = core.audit, core.artifacts, core.wallet, core.keys
        self.aliases, self.task_broker, self.matcher = core.aliases, core.task_broker, core.matcher
        self._tls = ServerTls(settings.tls, self.metrics) if settings.tls.is_on else None
        self.listeners = CatalogListeners(self.database, self.wallet)
        begin = RunStarter(self.journal)
        self.spooling = SpoolingDispatch(
            begin,
            begin.replays,
            self._emit,
            partial(self.wallet.use, to="a listener's spool in this server"),
            self.metrics,
            partial(WriterDownstreams, self.database),
            self._check_readiness,
        )
        self.ingress = Ingress(
            Listeners(self.listeners, LISTENERS_S),
            self.spooling,
            self._emit,
            self.metrics,
            body_timeout_s=settings.ingress_body_timeout_s,
            readiness=self._check_readiness,
        )
        self.hosting = RuntimeSupervisor(self.journal, self.wallet.use, owner)
        self._scrubber = Scrubber(
            self.database,
            owner,
            entries_per_s=settings.scrub_entries_per_s,
            interval_h=settings.scrub_interval_h,
            archive=core.archive,
        )
        self._max_message_bytes = _max_message_bytes(settings)
        self._methods: Mapping[str, UnaryMethod] = {}
        self._all_methods = Methods({}, {})
        self.grpc_address = ""
        self.grpc_client_address = ""
        self.http_address = ""
        self._readiness = Readiness(self.database, self.metrics.background)
        self._health = HealthService(self._readiness)
        self._grpc: grpc.aio.Server | None = None
        self._http: HttpServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._loop_lag = LoopLag(self.metrics)
        self._process_lock: ProcessLock | None = None

    def _check_readiness(self, listener: Listener) -> DatabaseReadiness:
        return DatabaseReadiness(self.database, listener.subscription.path, listener.subscription_id, "ingress")

    async def start(self) -> None:
        """Open the database, then listen for gRPC and HTTP."""
        if self.settings.unencrypted:
            addresses = " and ".join(self.settings.unencrypted)
            log.warning("insecure is set: other machines reach %s without TLS, tokens cross in plain text", addresses)
        if self.settings.tls_client_ca and not self.settings.tls_clients:
            log.warning("tls_client_ca is set and tls_clients is empty: certificates give no tenant and no scopes")
        self._allowed_hosts.enter_context(allowing(self.settings.http_allow))
        self._process_lock = self.database.lock(self._holder(), exclusive=False)
        if self._process_lock is not None:
            self._process_lock.acquire()
        try:
            await self.database.open()
        except BaseException:
            self._release_store()
            raise
        try:
            await self.core.start()
            if self._authenticator is not None:
                await self._authenticator.keys.start()
            await self._open_grpc()
            if self.settings.http_listen:
                self._open_http()
        except BaseException:
            await self.stop()
            raise
        self._loop_lag.start()
        if self._tls is not None:
            self._tls.start()
        await self.hosting.start()
        self.spooling.recover(self.listeners)
        self.core.start_tasks()
        supervise = self.metrics.background.supervise
        self._tasks.append(asyncio.create_task(supervise("counter", self._run_counter)))
        self._tasks.append(asyncio.create_task(supervise("scrubber", self._scrubber.run)))

    async def stop(self) -> None:
        """Stop accepting requests, finish commits, end streams with a status, close the database. Idempotent."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._loop_lag.close()
        if self._tls is not None:
            await self._tls.close()
        await self._health.enter_graceful_shutdown()
        stopping = []
        if self._grpc is not None:
            stopping.append(asyncio.create_task(self._grpc.stop(self.settings.shutdown_grace_s)))
        if self._http is not None:
            self._http.request_stop()
        await asyncio.sleep(0)  # both listeners stop accepting before streams are asked to end
        self.core.end_append_streams()
        await self.hosting.close(self.settings.shutdown_grace_s)
        await self.core.end_streams()
        await asyncio.gather(*stopping)
        await self._readiness.close()
        for task in self._tasks:
            if task.get_name() != "http":
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.core.stop_tasks()
        await self._scrubber.close()
        if self._authenticator is not None:
            await self._authenticator.keys.close()
        await self.ingress.close()
        await self.spooling.close()
        await self.core.close()
        self._release_store()
        self._allowed_hosts.close()

    def _holder(self) -> Holder:
        """This server, as another process that wants the store sees it."""
        _, port = parse_address("listen", self.settings.listen)
        secure = "s" if self.settings.tls.is_on else ""
        return Holder("tape serve", f"tape{secure}://{self.settings.listen}" if port else "")

    def _release_store(self) -> None:
        if self._process_lock is not None:
            self._process_lock.release()

    async def __aenter__(self) -> Server:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _open_grpc(self) -> None:
        server = grpc.aio.server(options=grpc_options(self._max_message_bytes))
        methods = self.core.bind_methods(self._info)
        self._methods, self._all_methods = methods.unary, methods
        server.add_generic_rpc_handlers((handlers(methods),))
        standard = StandardServices(server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, standard)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflection.aio.ReflectionServicer(names), standard)
        has_client_port = bool(self.settings.tls_client_listen)
        demands_certificate = bool(self.settings.tls_client_ca) and not has_client_port
        self.grpc_address = self._add_port(server, "listen", wants_certificate=demands_certificate)
        if has_client_port:
            self.grpc_client_address = self._add_port(server, "tls_client_listen", wants_certificate=True)
        await server.start()
        self._grpc = server
        await self._health.serve("", SERVICE)

    def _info(self) -> pb.ServerInfo:
        """How this server can be called."""
        ports = [_port_of(address) for address in (self.grpc_address, self.grpc_client_address)]
        return pb.ServerInfo(
            version=__version__,
            grpc_ports=filter(None, ports),
            http_port=_port_of(self.http_address),
            call_protocols=(PROTOCOL,),
            max_message_bytes=self._max_message_bytes,
        )

    def _add_port(self, server: Any, name: str, *, wants_certificate: bool) -> str:
        """Add the address of a setting to the gRPC server; returns the address with its port."""
        host, port = parse_address(name, getattr(self.settings, name))
        bind(name, host, port).close()  # gRPC does not report why it cannot bind; this raises the reason
        if self._tls is None:
            return join(host, server.add_insecure_port(join(host, port)))
        credentials = server_credentials(self._tls, wants_certificate=wants_certificate)
        return join(host, server.add_secure_port(join(host, port), credentials))

    def _open_http(self) -> None:
        host, port = parse_address("http_listen", self.settings.http_listen)
        listening = bind("http_listen", host, port)
        listening.listen()  # the kernel queues connections from here on, before the task below has started
        self.http_address = join(host, listening.getsockname()[1])
        self._http = HttpServer(
            self._http_app(),
            self.metrics,
            limits=_http_limits(self.settings),
            tls=self._tls,
            grace_s=self.settings.shutdown_grace_s,
        )
        self._tasks.append(asyncio.create_task(self._http.serve([listening]), name="http"))

    def _http_app(self) -> ASGIApp:
        settings = self.settings
        access = HttpAccess(self.core.access, self.core.admission, anonymous_network=settings.anonymous == "network")
        sse = SseFormat()
        limits = LiveLimits(
            settings.subscriber_buffer_size,
            settings.max_subscribers_per_session,
            settings.idle_timeout_s,
            settings.drop_window_s,
        )
        self.broadcast = Broadcast(self.hub, sse, limits)
        stream = EventStream(self.broadcast, sse, access, self.audit, settings.keepalive_s)
        internal = InternalAccess(access)
        endpoints = Endpoints(
            stream,
            QueryRoutes(self.hub, access, self.audit),
            PublishRoutes(self.journal, access),
            ArtifactRoutes(self.artifacts, access, self.audit),
            InfoRoutes(access),
            IngressRoutes(self.ingress),
            CallRoutes(self.journal, self._methods, access, self.metrics, self._max_message_bytes),
            ApiRoutes(self.journal, internal, self.wallet, self.listeners, self._key_routes()).add_to,
        )
        if self._make_mount is not None:
            mount = self._make_mount(self._all_methods, access, self.metrics, settings.max_payload_bytes)
            endpoints = endpoints._replace(add_api=_both(endpoints.add_api, mount.add_to))
            self._tasks.append(asyncio.create_task(self.metrics.background.supervise("mcp", mount.run)))
        return build_app(self._readiness, self.metrics, endpoints, settings.origins)

    def _key_routes(self) -> KeyRoutes:
        is_open_to_network = self.core.access.is_open and self.settings.anonymous == "network"
        return KeyRoutes(self.database, self.keys, self.settings.auth_max_lifetime_s, is_refused=is_open_to_network)

    async def _emit(self, events: Sequence[SubscriptionEvent]) -> None:
        await self.journal.append([event.draft() for event in events])

    async def _run_counter(self) -> None:
        while True:
            try:
                while await fold(self.database):
                    pass
                self.metrics.indexed.set(await self.database.read(read_watermark))
            except TapeError as error:
                log.warning("counter failed, retrying in %.0f s: %s", COUNTING_S, error)
            await asyncio.sleep(COUNTING_S)


def _both(first: Callable[[App], None], second: Callable[[App], None]) -> Callable[[App], None]:
    def add(app: App) -> None:
        first(app)
        second(app)

    return add


def grpc_options(max_message_bytes: int) -> list[tuple[str, int]]:
    """Options of the gRPC server. gRPC silently ignores a name that it does not know."""
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
        # Clients send a keepalive ping every 6 seconds while calls are open, also on idle streams. gRPC closes a
        # connection that pings more often than this ("too_many_pings"); its default is 5 minutes.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 3_000),
    ]


def _lease_owner(settings: Settings) -> str:
    """The owner of this process's leases. A restarted server is recognized by its id, else by host and address."""
    if settings.server_id:
        return server_owner(settings.server_id)
    _, port = parse_address("listen", settings.listen)
    # Port 0 is a new port at every start: two servers of this host may both have it.
    return server_owner(f"{socket.gethostname()}/{settings.listen}") if port else new_owner()


def _port_of(address: str) -> int:
    """The port of `host:port`; 0 of an address that is not listened on."""
    return int(address.rpartition(":")[2] or 0)


def _max_message_bytes(settings: Settings) -> int:
    return max(settings.grpc_max_message_bytes, settings.max_payload_bytes + MESSAGE_SLACK_BYTES)


def _http_limits(settings: Settings) -> HttpLimits:
    return HttpLimits(
        settings.http_max_header_bytes,
        settings.http_max_url_bytes,
        settings.http_header_timeout_s,
        settings.http_body_timeout_s,
        settings.http_max_connections,
    )


def _authenticator(settings: Settings) -> Authenticator | None:
    if not settings.auth_jwks:
        return None
    from tape.engine.security.identity import Authenticator  # the libraries of tokens
    from tape.engine.security.jwks import KeySet

    keys = KeySet(settings.auth_jwks, settings.auth_refresh_s, settings.auth_max_stale_s)
    for name in ("auth_issuer", "auth_audience"):
        if not getattr(settings, name):
            log.warning(
                "%s is not set: tokens that the same keys sign for other systems are valid here too."
                " The next minor version will demand it.",
                name,
            )
    return Authenticator(keys, settings.auth_issuer, settings.auth_audience, settings.auth_max_lifetime_s)
