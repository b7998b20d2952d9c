"""`relight config`: every value with its source, no secret in sight."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import Client

from relight.cli.config import setting_rows
from relight.errors import ConfigError
from relight.settings import Settings, resolve
from relight.stack import stack_file
from relight.temporal.connection import connect_temporal


def rows(flags: dict[str, object], environ: dict[str, str]) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in setting_rows(resolve(flags, environ))}


def test_every_setting_is_shown() -> None:
    assert set(rows({}, {})) == set(Settings.model_fields)


def test_a_flag_overrides_the_environment_the_stack_and_the_default_in_this_order(tmp_path: Path) -> None:
    stack_file.write_stack(
        tmp_path, {"settings": {"store_url": "http://s", "gateway_url": "http://s", "gpu_queue": "s"}}
    )
    environ = {"RELIGHT_STORE_URL": "http://e", "RELIGHT_GATEWAY_URL": "http://e"}
    found = rows({"home": tmp_path, "store_url": "http://f"}, environ)
    assert (found["store_url"]["value"], found["store_url"]["source"]) == ("http://f", "flag")
    assert found["gateway_url"]["source"] == "environment RELIGHT_GATEWAY_URL"
    assert found["gpu_queue"]["source"] == str(tmp_path / "stack.json")
    assert found["runner_queue"]["source"] == "default"


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    environ = {"RELIGHT_TOKEN": "hunter1", "RELIGHT_POSTGRES_URL": "postgresql://user:hunter2@db:5432/relight"}
    found = rows({"home": tmp_path}, environ)
    assert "hunter" not in str(found)
    assert found["postgres_url"]["value"] == "postgresql://user:***@db:5432/relight"


def test_temporals_own_variable_is_named() -> None:
    found = rows({}, {"TEMPORAL_ADDRESS": "temporal:7233"})
    assert found["temporal_address"]["source"] == "environment TEMPORAL_ADDRESS"


PROFILES = """
[profile.default]
address = "here.example:7233"

[profile.cloud]
address = "cloud.example:7233"
namespace = "relight.a1b2c"
api_key = "hunter3"
"""


def test_settings_of_a_temporal_profile_are_shown_with_its_name_and_file(tmp_path: Path) -> None:
    """In the order in which it is used: after the environment's own variable, before the stack's file."""
    file = tmp_path / "temporal.toml"
    file.write_text(PROFILES)
    stack_file.write_stack(tmp_path, {"settings": {"temporal_address": "127.0.0.1:9", "temporal_namespace": "stack"}})
    environ = {"TEMPORAL_CONFIG_FILE": str(file)}
    found = rows({"home": tmp_path}, environ)
    assert found["temporal_address"]["value"] == "here.example:7233"
    assert found["temporal_address"]["source"] == f"Temporal profile 'default' of {file}"
    assert (found["temporal_namespace"]["value"], found["temporal_namespace"]["source"]) == (
        *("stack",),
        str(tmp_path / "stack.json"),
    )
    found = rows({"home": tmp_path}, environ | {"TEMPORAL_PROFILE": "cloud", "TEMPORAL_ADDRESS": "named.example:1"})
    assert (found["temporal_address"]["value"], found["temporal_namespace"]["value"]) == (
        "named.example:1",
        "relight.a1b2c",
    )
    assert "hunter" not in str(found)


@pytest.mark.parametrize(("text", "profile"), [(PROFILES, "clod"), ("[profile", "default")])
def test_a_profile_that_is_not_there_or_cannot_be_read_is_named(tmp_path: Path, text: str, profile: str) -> None:
    file = tmp_path / "temporal.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"Temporal profile '{profile}' of {file}: .*TEMPORAL_PROFILE"):
        resolve({"home": tmp_path}, {"TEMPORAL_CONFIG_FILE": str(file), "TEMPORAL_PROFILE": profile})


async def test_what_is_shown_is_what_is_connected_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the stack's address happens to be the default, and where there is no profile."""
    file = tmp_path / "temporal.toml"
    file.write_text(PROFILES)
    asked: list[tuple[str, str]] = []

    async def connect(target_host: str, *, namespace: str, **_: object) -> None:
        asked.append((target_host, namespace))

    monkeypatch.setattr(Client, "connect", connect)
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(file))
    for profile in ("default", "cloud"):
        monkeypatch.setenv("TEMPORAL_PROFILE", profile)
        await connect_temporal(resolve({"home": tmp_path}).settings)
        await connect_temporal(resolve({"home": tmp_path, "temporal_address": "127.0.0.1:7233"}).settings)
    assert asked == [
        ("here.example:7233", "default"),
        ("127.0.0.1:7233", "default"),
        ("cloud.example:7233", "relight.a1b2c"),
        ("127.0.0.1:7233", "relight.a1b2c"),
    ]


KEYS_ALONE = """
[profile.default]
api_key = "hunter4"

[profile.default.tls]
server_name = "cloud.example"
"""
STACKS_OWN = {"temporal_address": "127.0.0.1:9", "temporal_embedded": True}
EXTERNAL = {"temporal_address": "stack.example:9", "temporal_embedded": False}


@pytest.mark.parametrize(
    ("stack", "environ", "address", "with_keys"),
    [
        (STACKS_OWN, {}, "127.0.0.1:9", False),
        (STACKS_OWN, {"TEMPORAL_TLS": "true", "TEMPORAL_API_KEY": "hunter5"}, "127.0.0.1:9", False),
        (STACKS_OWN, {"TEMPORAL_ADDRESS": "named.example:1"}, "named.example:1", True),
        (STACKS_OWN, {"TEMPORAL_PROFILE": "whole"}, "whole.example:1", True),
        (EXTERNAL, {}, "stack.example:9", True),
        ({}, {}, "127.0.0.1:7233", True),
    ],
)
async def test_tls_and_api_keys_of_temporals_own_configuration_are_for_any_server_but_the_embedded_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stack: dict[str, object],
    environ: dict[str, str],
    address: str,
    with_keys: bool,
) -> None:
    file = tmp_path / "temporal.toml"
    whole = '\n[profile.whole]\naddress = "whole.example:1"\napi_key = "hunter6"\ntls.server_name = "x"\n'
    file.write_text(KEYS_ALONE + whole)
    stack_file.write_stack(tmp_path, {"settings": stack})
    asked: list[tuple[str, bool, bool]] = []

    async def connect(target_host: str, *, api_key: str | None = None, tls: object = None, **_: object) -> None:
        asked.append((target_host, bool(api_key), bool(tls)))

    monkeypatch.setattr(Client, "connect", connect)
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "TEMPORAL_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TEMPORAL_CONFIG_FILE": str(file), **environ}.items():
        monkeypatch.setenv(name, value)
    await connect_temporal(resolve({"home": tmp_path}).settings)
    assert asked == [(address, with_keys, with_keys)]
