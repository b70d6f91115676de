"""The documents that the design of subscriptions shows, and the smallest ones of each kind."""

from __future__ import annotations

CONTINUOUS_PULL = """\
# Continuous pull on a dedicated in-cluster pool (Mode B) — IoT scale.
apiVersion: noetl.io/v1
kind: Subscription
metadata:
  name: iot-sensor-stream
  path: subscriptions/iot-sensor-stream
spec:
  source: pubsub                          # pubsub | nats | kafka | webhook
  mode: pull
  activation: continuous                  # continuous (Mode B) | scheduled (Mode A)
  auth: "pubsub_iot"                       # Secrets Wallet alias — no default (no-default-connection.md)
  subscription: "projects/acme/subscriptions/sensors"

  runtime:
    target: dedicated-pool                # dedicated-pool | cloud-run | local
    pool: iot                             # dedicated runtime pool name
    batch: 500
    max_in_flight: 1000                   # outstanding un-acked / un-spooled cap (backpressure)

  dispatch:
    playbook: domain/ingest_sensor_reading
    payload_from: message.json            # message.body | message.json | message.attributes
    execution_pool: iot                   # default downstream segment

  headers:                                # §7 — header-directive layer (optional; default off)
    normalize: true
    directives:                           # the ALLOWLIST — only these keys act as instructions
      - header: "x-noetl-pool"
        controls: dispatch.execution_pool
        allowed: ["iot", "priority"]
      - header: "x-idempotency-key"
        controls: idempotency_key
    trace:
      propagate: w3c                      # honor traceparent / tracestate / baggage
      baggage_allowlist: ["tenant"]
    passthrough: data                     # non-allowlisted headers → message.headers (data only)

  spool:                                  # §8 — store-and-forward (optional; default off)
    mode: hybrid                          # off | buffer_and_ack | hybrid
    backend: gcs                          # gcs | s3 | nats_object | local_disk
    bucket: "gs://acme-noetl-spool/iot"
    auth: "gcs_spool"
    circuit: { trip_after: 5, probe_after_ms: 30000 }
    ordering: per_key
    ordering_key: "device_id"
    retention: { max_age_hours: 72, max_bytes: "50Gi", on_full: stop_acking }
    drain: { on_recovery: ordered_then_live, rate_per_sec: 200, max_replay_attempts: 10 }

  scaling:
    keda: { trigger: pubsub, min: 1, max: 20, lag_threshold: 500 }
"""

SCHEDULED_DRAIN = """\
# Scheduled bounded drain (Mode A) — ships first, no new runtime.
apiVersion: noetl.io/v1
kind: Subscription
metadata: { name: orders-drain, path: subscriptions/orders-drain }
spec:
  source: nats
  mode: pull
  activation: scheduled                   # orchestrator drives a bounded fetch on cadence
  cadence: "*/1 * * * *"                  # or KEDA on consumer lag
  auth: "nats_main"
  stream: "ORDERS"
  consumer: "orders-drain"                # durable consumer must already exist
  runtime: { target: dedicated-pool, pool: subscription, batch: 50, timeout_ms: 3000 }
  dispatch: { playbook: domain/process_order, payload_from: message.json }
  # headers + spool omitted → defaults off; a scheduled drain naturally
  # stop-acks (the source holds the backlog) — see §8.5.
"""

PUBSUB_PUSH = """\
# Push: Pub/Sub push fronted by the gateway (Mode C).
apiVersion: noetl.io/v1
kind: Subscription
metadata: { name: billing-events, path: subscriptions/billing-events }
spec:
  source: pubsub
  mode: push
  ingress:
    gateway_path: /ingress/billing-events
    verify:
      type: pubsub_oidc                   # Google-signed OIDC JWT on the push request
      audience: "https://gw.noetl.acme/ingress/billing-events"
      service_account: "pubsub-push@acme.iam.gserviceaccount.com"
  dispatch:
    playbook: domain/handle_billing_event
    payload_from: message.json
    execution_pool: subscription
  spool:
    mode: buffer_and_ack                  # push/webhook can't redeliver → buffer is the durability tier
    backend: gcs
    bucket: "gs://acme-noetl-spool/billing"
    auth: "gcs_spool"
"""

WEBHOOK_PUSH = """\
# Push: generic inbound webhook (Mode C), HMAC-verified.
apiVersion: noetl.io/v1
kind: Subscription
metadata: { name: stripe-webhook, path: subscriptions/stripe-webhook }
spec:
  source: webhook
  mode: push
  ingress:
    gateway_path: /ingress/stripe
    verify:
      type: hmac_sha256                   # signature over the raw body
      header: "Stripe-Signature"
      secret: "stripe_webhook_secret"     # Wallet alias — NOT an env var
  dispatch: { playbook: domain/handle_stripe_event, payload_from: message.body }
  spool: { mode: buffer_and_ack, backend: gcs, bucket: "gs://acme-noetl-spool/stripe", auth: "gcs_spool" }
"""

KAFKA_PULL = """\
# Kafka continuous pull on Cloud Run (Mode B, out-of-cluster).
apiVersion: noetl.io/v1
kind: Subscription
metadata: { name: edge-clickstream, path: subscriptions/edge-clickstream }
spec:
  source: kafka
  mode: pull
  activation: continuous
  auth: "kafka_edge"
  topic: "edge.clicks"
  group: "noetl-edge"
  runtime:
    target: cloud-run                     # runs OUTSIDE the main k8s cluster
    server_url: "https://api.noetl.acme"
    concurrency: 80                       # Cloud Run per-instance concurrency = backpressure knob
    max_instances: 50
  dispatch: { playbook: domain/ingest_click, payload_from: message.json, execution_pool: shared }
  spool: { mode: hybrid, backend: gcs, bucket: "gs://acme-noetl-spool/clicks", auth: "gcs_spool" }
"""

REDIRECT = """\
# Redirect example — one subscription, header-driven targets.
apiVersion: noetl.io/v1
kind: Subscription
metadata: { name: events, path: subscriptions/events }
spec:
  source: pubsub
  mode: push
  ingress:
    gateway_path: /ingress/events
    verify:
      type: pubsub_oidc
      audience: "https://gw.noetl.acme/ingress/events"
      service_account: "pubsub-push@acme.iam.gserviceaccount.com"
  dispatch:
    playbook: domain/handle_event           # DEFAULT target
    payload_from: message.json
    execution_pool: shared                   # DEFAULT pool
  headers:
    directives:
      - header: "x-noetl-route"
        controls: dispatch.playbook
        allowed: ["domain/handle_billing", "domain/handle_fraud", "domain/handle_event"]
      - header: "x-noetl-pool"
        controls: dispatch.execution_pool
        allowed: ["priority", "shared"]
    trace: { propagate: w3c }
"""

EXAMPLES = {
    "continuous pull": CONTINUOUS_PULL,
    "scheduled drain": SCHEDULED_DRAIN,
    "pubsub push": PUBSUB_PUSH,
    "webhook push": WEBHOOK_PUSH,
    "kafka pull": KAFKA_PULL,
    "redirect": REDIRECT,
}

# The allowlist that shows every kind of directive, for any spec.
DIRECTIVES = """\
headers:
  normalize: true                         # build message.headers from the source channel
  directives:                             # the ALLOWLIST — only these keys are instructions
    - header: "x-noetl-route"
      controls: dispatch.playbook          # header-driven redirect to a different target playbook
      allowed: ["domain/handle_billing", "domain/handle_fraud", "domain/handle_event"]
    - header: "x-noetl-pool"
      controls: dispatch.execution_pool    # route to a different worker pool / command segment
      allowed: ["iot", "priority", "shared"]
    - header: "x-priority"
      controls: priority
      map: { high: priority, normal: shared }
    - header: "x-idempotency-key"
      controls: idempotency_key            # feeds the dedup window (§10 OQ2) + spool item key
    - header: "content-type"
      controls: content_type               # parse hint for the playbook
  trace:
    propagate: w3c                          # honor traceparent / tracestate / baggage
    baggage_allowlist: ["tenant", "request_id"]
  passthrough: data                         # non-allowlisted headers → message.headers (data only)
"""

NATS = """\
kind: Subscription
metadata: {path: subscriptions/orders}
spec:
  source: nats
  mode: pull
  url: nats://127.0.0.1:4222
  stream: ORDERS
  consumer: orders
  dispatch: {playbook: domain/ingest_order}
"""

WEBHOOK = """\
kind: Subscription
metadata: {path: subscriptions/hook}
spec:
  source: webhook
  mode: push
  ingress:
    gateway_path: /ingress/hook
    verify: {type: hmac_sha256, header: x-signature, secret: hook_secret}
  dispatch: {playbook: domain/handle_hook}
"""

MQTT = """\
kind: Subscription
metadata: {path: subscriptions/orders}
spec:
  source: mqtt
  mode: pull
  url: mqtts://broker.example.com
  topic: orders/+/new
  client_id: tape-orders
  dispatch: {playbook: domain/ingest_order}
"""

SQS = """\
kind: Subscription
metadata: {path: subscriptions/orders}
spec:
  source: sqs
  mode: pull
  queue: orders.fifo
  region: eu-central-1
  dispatch: {playbook: domain/ingest_order}
"""

AMQP = """\
kind: Subscription
metadata: {path: subscriptions/orders}
spec:
  source: amqp
  mode: pull
  url: amqp://broker.example.com
  queue: orders
  dispatch: {playbook: domain/ingest_order}
"""
