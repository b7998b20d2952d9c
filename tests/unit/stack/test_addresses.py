"""Which addresses the stack takes: given ones as they are, else those of the last time, else the usual or any."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from temporalio.client import Client

from relight.errors import StackError
from relight.settings import resolve
from relight.stack import addresses, ports, stack_file, temporal_server
from relight.stack.process_factory import ProcessFactory, StackRequest

POSTGRES = "postgresql://relight@/postgres?host=/x"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "RELIGHT_POSTGRES_URL", "RELIGHT_STORE_URL", "RELIGHT_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "no-temporal.toml"))


def test_the_last_addresses_are_used_again_if_they_are_free(tmp_path: Path) -> None:
    last = {name: ports.any_free() for name in addresses.USUAL_PORTS}
    stack_file.write_stack(tmp_path, {"ports": last})
    decided = addresses.decide({"home": tmp_path}, POSTGRES)
    assert decided.ports == last
    assert decided.settings.store_url == f"http://127.0.0.1:{last['store']}"
    assert decided.settings.temporal_address == f"127.0.0.1:{last['temporal']}"
    assert decided.settings.postgres_url == POSTGRES
    assert decided.own_postgres
    assert decided.own_temporal


def test_a_port_that_is_now_in_use_is_replaced(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        stack_file.write_stack(tmp_path, {"ports": {"store": taken}})
        decided = addresses.decide({"home": tmp_path}, POSTGRES)
    assert decided.ports["store"] != taken
    assert len(set(decided.ports.values())) == len(decided.ports)


def test_addresses_of_the_last_stack_do_not_count_as_given(tmp_path: Path) -> None:
    stack_file.write_stack(
        tmp_path, {"settings": {"temporal_address": "127.0.0.1:1", "postgres_url": "postgresql://x"}}
    )
    decided = addresses.decide({"home": tmp_path}, POSTGRES)
    assert decided.own_temporal
    assert decided.own_postgres
    assert decided.settings.postgres_url == POSTGRES


def test_servers_that_are_given_are_used_and_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example:7233")
    monkeypatch.setenv("RELIGHT_POSTGRES_URL", "postgresql://u:secret@db/relight")
    decided = addresses.decide({"home": tmp_path}, None)
    assert not decided.own_temporal
    assert not decided.own_postgres
    assert decided.settings.temporal_address == "temporal.example:7233"
    assert decided.settings.temporal_ui_url is None
    assert "secret" not in str(addresses.shown_settings(decided))


def test_a_temporal_profile_counts_as_a_given_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = tmp_path / "temporal.toml"
    profile.write_text('[profile.default]\naddress = "cloud.example:7233"\n')
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(profile))
    decided = addresses.decide({"home": tmp_path}, POSTGRES)
    assert not decided.own_temporal
    assert decided.settings.temporal_address == "cloud.example:7233"


def test_a_given_address_that_is_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(StackError, match="in use"):
            addresses.decide({"home": tmp_path, "gateway_url": url}, POSTGRES)


def test_child_processes_with_an_embedded_server_get_no_settings_of_another(tmp_path: Path) -> None:
    decided = addresses.decide({"home": tmp_path}, POSTGRES)
    seen = addresses.environment(decided, {"TEMPORAL_API_KEY": "secret", "TEMPORAL_TLS": "true", "PATH": "/bin"})
    assert "TEMPORAL_API_KEY" not in seen
    assert "TEMPORAL_TLS" not in seen
    assert seen["TEMPORAL_ADDRESS"] == decided.settings.temporal_address
    assert seen["RELIGHT_HOME"] == str(tmp_path)
    assert seen["PATH"] == "/bin"


@pytest.mark.parametrize("given", ["", "temporal.example:7233"])
def test_child_and_other_processes_of_a_home_know_whether_the_temporal_server_is_embedded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", given)
    decided = addresses.decide({"home": tmp_path}, POSTGRES)
    stack_file.write_stack(tmp_path, {"settings": addresses.shown_settings(decided)})
    child = resolve({}, addresses.environment(decided, {})).settings
    other = resolve({"home": tmp_path}, {}).settings
    elsewhere = resolve({"home": tmp_path}, {"TEMPORAL_ADDRESS": "elsewhere.example:7233"}).settings
    assert child.temporal_address == other.temporal_address == decided.settings.temporal_address
    assert child.temporal_embedded == other.temporal_embedded == decided.settings.temporal_embedded == (not given)
    assert not elsewhere.temporal_embedded


async def test_the_stack_reaches_a_given_server_with_its_keys_and_its_own_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None]] = []

    async def connect(target_host: str, *, api_key: str | None = None, **_: object) -> None:
        asked.append((target_host, api_key))

    async def polls(*_: object) -> bool:
        return True

    monkeypatch.setattr(Client, "connect", connect)
    monkeypatch.setattr(temporal_server, "polls", polls)
    monkeypatch.setenv("TEMPORAL_API_KEY", "secret")
    for address in ("cloud.example:7233", ""):
        monkeypatch.setenv("TEMPORAL_ADDRESS", address)
        decided = addresses.decide({"home": tmp_path}, POSTGRES)
        (part,) = ProcessFactory(StackRequest(), decided, None, None, print).make("orchestrator")
        assert await part.ready(1)
    assert asked == [("cloud.example:7233", "secret"), (decided.settings.temporal_address, None)]
