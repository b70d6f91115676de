"""Programs with nothing but a service key in TAPE_TOKEN: a gateway receives, a worker runs, a client looks."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from pathlib import Path
from typing import Any

import pytest

from tape.client import AsyncTapeClient
from tape.errors import ScopeRequired
from tape.proto import tape_pb2
from tests.forked import tape
from tests.server.test_ingress import PLAYBOOK, PUSH, SECRET
from tests.services import ServerProcess
from tests.system.test_gateway import GatewayProcess
from tests.web import call


def make_key(store: str, name: str, scopes: str) -> str:
    made = tape("keys", "create", name, "--tenant", "shop", "--scope", scopes, "--store", store)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


async def test_a_delivery_becomes_a_finished_run_with_service_keys_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TAPE_INTERNAL_API_TOKEN", raising=False)
    store, wallet = f"sqlite:{tmp_path / 'tape.db'}", str(tmp_path / "wallet.key")
    secret = ("wallet", "set", "orders_secret", "--tenant", "shop", "--store", store, "--wallet-key", wallet)
    assert tape(*secret, stdin=SECRET).returncode == 0
    operator = make_key(store, "ops", "operator")
    gateway_key = make_key(store, "gateway", "gateway,runtime")
    worker_key = make_key(store, "worker", "worker")
    with ServerProcess(store, "--wallet-key", wallet, "--require-keys") as server:
        address = server.http_url.removeprefix("http://")

        async def api(path: str, body: Any) -> Any:
            answer = await call(address, "POST", path, body, authorization=f"Bearer {operator}")
            assert answer.status == 200, answer.body
            return answer.json()

        await api("/api/catalog/register", {"content": PLAYBOOK.format(path="domain/ingest_order")})
        await api("/api/catalog/register", {"content": PUSH})
        registered = await api("/api/subscriptions/register", {"path": "subscriptions/orders"})
        await api(f"/api/subscriptions/{registered['subscription_id']}/activate", {"force": True})
        monkeypatch.setenv("TAPE_TOKEN", gateway_key)
        with GatewayProcess(server.http_url) as gateway:
            body = b'{"id": 1}'
            signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
            accepted = await call(gateway.address, "POST", "/ingress/orders", body, x_signature=signature)
        assert accepted.status == 202, accepted.body
        monkeypatch.setenv("TAPE_TOKEN", worker_key)
        ran = await asyncio.to_thread(tape, "worker", "--pool", "subscription", "--once", "--url", server.url)
        assert ran.returncode == 0, ran.stderr
        async with AsyncTapeClient(server.url) as client:  # it reads TAPE_TOKEN
            run = await client.get_run(accepted.json()["execution_id"])
            assert (run.tenant_id, run.status) == ("shop", tape_pb2.RUN_STATUS_TERMINAL)
            with pytest.raises(ScopeRequired):
                await client.redrive_tasks()
