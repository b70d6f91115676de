"""The commands by panel, with the line that `tape --help` shows of each: the list is printed without importing them."""

from __future__ import annotations

PANELS: dict[str, dict[str, str]] = {
    "Journal": {
        "append": "Append one event, or one event per line of standard input.",
        "tail": "Print entries as they are appended, each once.",
        "values": "Read, write, watch and delete values.",
        "relay": "Deliver every entry to a sink, at least once and in order per run.",
        "mcp": "Serve the journal to desktop clients and coding agents (MCP over stdio).",
        "cel": "Check, evaluate and explain CEL predicates.",
    },
    "Runs": {
        "runs": "List runs, show one and its result, and cancel, retry or resume them.",
        "effects": "List open effects, oldest first.",
        "obligations": "List unresolved obligations, and resolve them by hand.",
        "inbox": "List gates that wait for a person, show one, and answer it.",
        "signal": "Resolve a gate.",
        "schedules": "Create, list, pause, trigger and delete schedules that begin runs.",
        "reactors": "Recover, compensate and reconcile runs, fire timers, dispatch the outbox.",
    },
    "Reactions": {
        "reactions": "List, show, explain, test and deregister reactions.",
        "tasks": "List and show tasks; redrive and drop dead letters.",
        "dead-letters": "List, show, redrive and drop dead letters of every origin.",
        "dispatch": "Register the reactions of modules and run their handlers.",
    },
    "Playbooks and subscriptions": {
        "playbooks": "Validate, run, register, list and show playbooks.",
        "execute": "Start a playbook and print the execution id.",
        "worker": "Claim the executions of a pool and run their playbooks.",
        "subscriptions": "Validate, register, show and control subscriptions.",
        "ingress": "Test how deliveries are verified; list and resend deliveries.",
        "subscription": "Run a pull subscription.",
        "subscribe": "Run a subscription without a server.",
        "spool": "List, show, drain, requeue and purge spooled messages.",
        "schema": "Print the JSON Schema of a kind of document.",
    },
    "Server and store": {
        "serve": "Run a server: the journal with its gRPC and HTTP endpoints.",
        "gateway": "Receive webhooks and Pub/Sub pushes for a server.",
        "info": "Show which store is used, its journal, size, witness and last backup.",
        "doctor": "Check the installation and the store, and name remedies.",
        "verify": "Verify every entry, and list what is wrong as ranges of entries.",
        "checkpoint": "Print a signed checkpoint of the newest entry.",
        "backup": "Back up the journal and all tables, beside a running server.",
        "restore": "Restore a backup into an empty store.",
        "prune": "Remove the oldest entries permanently.",
        "migrate": "Apply pending migrations.",
        "pipeline": "Run jobs on Spark: archive, rollup, report, match, backtest, fanout, ingest.",
    },
    "Access": {
        "keys": "Manage service keys, and revoke tokens.",
        "token": "Print a JWT for development.",
        "certs": "Make certificates for development.",
        "access": "Explain what a token may do, and move data between tenants.",
        "redact": "Show what redaction hides in payloads.",
        "wallet": "Manage secrets by alias, encrypted in the database.",
    },
    "Try it": {
        "demo": "Show failures and how Tape recovers from them, with real processes.",
    },
}

# Each is a module of this package with a function of that name, or with an `app` if it has subcommands.
COMMANDS = tuple(name for commands in PANELS.values() for name in commands)
