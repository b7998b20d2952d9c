"""`relight config`: every value with its source, no secret in sight."""

from __future__ import annotations

from pathlib import Path

from relight.cli.config import setting_rows
from relight.settings import Settings, resolve
from relight.worker import stack_file


def rows(flags: dict[str, object], environ: dict[str, str]) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in setting_rows(resolve(flags, environ))}


def test_every_setting_is_shown() -> None:
    assert set(rows({}, {})) == set(Settings.model_fields)


def test_a_flag_beats_the_environment_beats_the_stack_beats_the_default(tmp_path: Path) -> None:
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


def test_temporal_s_own_variable_is_named() -> None:
    found = rows({}, {"TEMPORAL_ADDRESS": "temporal:7233"})
    assert found["temporal_address"]["source"] == "environment TEMPORAL_ADDRESS"
