"""Prometheus metrics. One registry per server, no global state."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tape.base.telemetry.background import BackgroundTasks

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_BATCHES = (1, 5, 10, 25, 50, 100, 250, 500, 1000)


class Metrics:
    """All instruments of one process."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry = registry or CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tape_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"tape_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"tape_{name}", text, buckets=buckets, registry=registry)

        self.queued = gauge("write_queue_operations", "Operations waiting to be written")
        self.overloaded = counter("write_overloaded", "Operations refused because the write queue was full")
        self.commits = counter("commits", "Transactions committed by this process")
        self.commit_failures = counter("commit_failures", "Transactions that failed, by error", "error")
        self.commit_seconds = histogram("commit_seconds", "Time from begin to durable", _SECONDS)
        self.commit_operations = histogram("commit_operations", "Operations sharing one commit", _SIZES)
        self.store_connects = counter("store_connects", "Connections the writer opened")
        self.wal_bytes = gauge("wal_bytes", "Size of the write-ahead log of a SQLite store")
        self.wal_restarts = counter(
            "wal_restarts", "Waits for readers to empty the write-ahead log, by done or starved", "outcome"
        )
        self.wal_interrupted_reads = counter(
            "wal_interrupted_reads", "Statements executed again because a full write-ahead log interrupted them"
        )
        self.dead_connections = counter(
            "store_dead_connections", "Connections closed because PostgreSQL did not answer on them"
        )
        self.stuck_backends = counter(
            "store_stuck_backends", "Statements that PostgreSQL neither finished nor ended at their time limit"
        )
        self.listen_reconnects = counter("listen_reconnects", "Times the listening connection was lost")
        self.witness_up = gauge("witness_up", "Whether the witness can be written: 1, else 0", "witness")
        self.tail_lost = counter("tail_lost_entries", "Acknowledged entries that were lost, as the witness knew")

        self.head = gauge("journal_head", "Newest global_seq known to this process")
        self.indexed = gauge("journal_indexed", "Newest global_seq in the indexes by subject and session")
        self.epoch = gauge("epoch", "Epoch of the journal: one more than how often the database lost entries")
        self.cuts_closed = counter(
            "cuts_closed", "Times this process found that the database lost entries, and went on"
        )
        self.entries = counter("journal_entries", "Entries appended by this process")
        self.foreign_entries = counter("journal_foreign_entries", "Entries of other processes passed on")
        self.journal_gaps = counter("journal_gaps", "Gaps that readers met, by reason", "reason")
        self.damaged_entries = gauge("journal_damaged_entries", "Entries recorded as damaged or missing")
        self.recovered_entries = counter(
            "journal_recovered_entries", "Entries read although their checksum or index is damaged, each time", "part"
        )

        self.scrubbed = gauge("scrubbed_seq", "Newest global_seq that the scrubber has verified in this round")
        self.scrub_rounds = counter("scrub_rounds", "Times this server has scrubbed the whole journal")
        self.scrub_round_age = gauge("scrub_round_age_seconds", "Time since the end of the last round; NaN before it")
        self.scrub_damaged = counter(
            "scrub_damaged_entries", "Entries that the scrubber found damaged, by location", "location"
        )
        self.scrub_checksums = counter("scrub_checksums", "Checksums that were filled in or repaired", "outcome")

        self.subscriptions = gauge("subscriptions", "Open subscriptions")
        self.delivered = counter("subscription_entries", "Entries handed to subscriptions")
        self.fell_behind = counter("subscriptions_fell_behind", "Times a slow subscription went back to the journal")
        self.read_retries = counter("subscription_read_retries", "Failed journal reads that were retried")

        self.call_connections = gauge("call_connections", "Open connections of the call protocol")
        self.live_subscriptions = gauge("live_subscriptions", "Open HTTP streams")
        self.live_delivered = counter("live_entries", "Entries for HTTP streams, one for each stream")
        self.live_dropped = counter("live_dropped", "Entries that slow HTTP streams lost, as their gap frames report")
        self.live_reaped = counter("live_reaped", "HTTP streams closed because the client did not read")
        self.mcp_calls = counter("mcp_calls", "Tool calls at /mcp by tool and outcome", "tool", "outcome")
        self.http_requests = counter("http_requests", "HTTP requests by route and status", "route", "status")

        self.redactions = counter(
            "redactions", "Secrets found in payloads, by rule and what was done", "rule", "action"
        )
        self.malformed_entries = counter(
            "malformed_entries", "Entries that a reader skipped because of their payload, by reader", "reader"
        )
        self.tls_expires = gauge(
            "tls_expires_seconds", "Time until the certificate of the listeners expires", "certificate"
        )
        self.tls_reloads = counter("tls_reloads", "Changed TLS files that were loaded, by ok or failed", "outcome")
        self.tls_handshakes_failed = counter(
            "tls_handshakes_failed",
            "HTTP connections closed before the end of their TLS handshake, by reason",
            "reason",
        )

        self.predicate_errors = counter("predicate_errors", "Entries passed over because a predicate failed on them")
        self.predicate_seconds = counter("predicate_seconds", "CPU time of predicates, by what evaluates them", "kind")
        self.predicate_over_budget = counter(
            "predicate_over_budget", "Times a stream, reaction or query used its CPU budget up", "kind"
        )

        self.reactions = gauge("reactions", "Reactions that this server knows")
        self.lanes = gauge("reaction_lanes", "Matcher partitions that this server has leased")
        self.reaction_lag = gauge("reaction_lag", "Entries between the head and what this server has matched")
        self.matched_entries = counter("reaction_entries", "Entries looked at by the matcher")
        self.evaluated = counter("reaction_predicates", "Predicates evaluated by the matcher")
        self.reaction_errors = counter("reaction_predicate_errors", "Predicates of reactions that failed on an entry")
        self.reaction_missed = counter(
            "reaction_entries_missed", "Entries that were removed or damaged before matching"
        )
        self.matcher_restarts = counter("reaction_restarts", "Matcher restarts: leases, registry changes, errors")
        self.reaction_tasks = counter("reaction_tasks", "Tasks made by the matcher")
        self.reaction_runs = counter("reaction_runs", "Runs begun by the matcher")
        self.reaction_suppressed = counter("reaction_suppressed", "Matches on entries of a reaction's own work")
        self.tasks_claimed = counter("tasks_claimed", "Tasks handed out by this server")
        self.tasks_settled = counter("tasks_settled", "Reports on tasks, by resulting status", "status")
        self.tasks_refused = counter("tasks_refused", "Rejected reports on tasks: the worker's lease had expired")
        self.tasks_stranded = counter("tasks_stranded", "Tasks that waited for nothing and were made due")
        self.tasks_purged = counter("tasks_purged", "Done and dropped tasks removed after their time")
        self.dispatchers = gauge("dispatchers", "Open task streams")

        self.scheduler_fired = counter("scheduler_fired", "Due work of gates, timers and schedules", "kind", "outcome")
        self.scheduler_overdue = gauge(
            "scheduler_overdue_seconds", "How long the oldest due work waits; 0 if nothing is due", "kind"
        )

        self.messages_received = counter("subscription_messages_received", "Messages fetched from sources", "source")
        self.message_executions = counter(
            "subscription_executions", "Dispatched messages, by outcome", "source", "outcome"
        )
        self.directives_applied = counter(
            "subscription_directives_applied", "Headers that changed how a message is handled", "controls"
        )
        self.batch_dispatches = counter("subscription_batch_dispatch", "Batches that were dispatched", "source")
        self.batch_messages = counter("subscription_batch_messages", "Messages in those batches", "source")
        self.rate_limited = counter(
            "subscription_rate_limited", "Times a limit began to delay messages", "source", "reason"
        )
        self.dead_lettered = counter("subscription_dead_lettered", "Messages that became dead letters", "source")
        self.spooled = counter("subscription_spooled", "Messages stored in a spool", "source")
        self.circuit_transitions = counter(
            "subscription_circuit_transitions", "Circuits that opened or closed", "downstream", "transition"
        )
        self.replayed = counter("subscription_replayed", "Messages of spools that became runs", "source")
        self.dropped = counter(
            "subscription_dropped", "Messages that were not kept and are left to their source", "source", "reason"
        )
        self.quarantined = counter("subscription_quarantined", "Damaged spool messages in quarantine", "source")
        self.control_unwritten = counter(
            "subscription_control_unwritten", "Failed writes of circuit states or events, which are retried", "source"
        )
        self.spool_bytes = gauge("subscription_spool_bytes", "Size of what waits in a spool", "source", "subscription")
        self.spool_items = gauge("subscription_spool_items", "Messages that wait in a spool", "source", "subscription")
        self.spool_oldest = gauge(
            "subscription_spool_oldest_age_seconds", "How long the oldest waits in a spool", "source", "subscription"
        )
        self.held = gauge(
            "subscription_held", "1 while a subscription is held: its configuration lets no run start", "subscription"
        )
        self.source_lag = gauge("subscription_source_lag", "Messages that wait at the source", "subscription")
        self.ingress_received = counter("ingress_received", "Deliveries for a listener", "subscription")
        self.ingress_rejected = counter("ingress_rejected", "Deliveries refused, by reason", "subscription", "reason")
        self.ingress_handshakes = counter(
            "ingress_handshakes", "Handshakes of providers that were answered", "subscription", "kind"
        )
        self.ingress_dispatched = counter("ingress_dispatched", "Deliveries accepted durably", "subscription")
        self.auth_rejected = counter("auth_rejected", "Tokens and service keys refused, by reason", "reason")
        self.service_keys = gauge("service_keys", "Valid service keys that this server knows")
        self.wallet_reveals = counter("wallet_reveals", "Secrets asked for, by `ok` or an error's code", "outcome")

        self.executes = counter("execute_outcomes", "Playbooks to execute, by what became of them", "entry", "outcome")
        self.execute_batch_size = histogram("execute_batch_size", "Executions in one batch request", _BATCHES)

        task_restarts = counter("background_task_restarts", "Background tasks restarted after an error", "task")
        self.background = BackgroundTasks(task_restarts)

        self.loop_lag_seconds = histogram("loop_lag_seconds", "How late the event loop ran what was due", _SECONDS)
        self.tenant_limited = counter("tenant_limited", "Calls and streams refused by a limit per tenant", "limit")
        self.calls_delayed = counter("calls_delayed", "Calls that waited because their tenant had more than its share")
        self.rpcs = counter("rpcs", "RPCs by method and status", "method", "status")

    def render(self) -> bytes:
        """The registry in Prometheus' text format."""
        return generate_latest(self.registry)
