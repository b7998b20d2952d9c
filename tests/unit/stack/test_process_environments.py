"""What each part of the stack gets of the environment of `relight up`."""

from __future__ import annotations

import pytest

from relight.stack import process_factory
from relight.stack.process_factory import GATEWAY, GPU_WORKER, ORCHESTRATOR, RUNNER, STORE, TEMPORAL, needed

SECRETS = {
    "RELIGHT_POSTGRES_URL": "postgresql://u:secret@db/x",
    "OPENAI_API_KEY": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "GITHUB_TOKEN": "secret",
}
PLAIN = {
    "PATH": "/bin",
    "LC_ALL": "C",
    "https_proxy": "http://proxy:3128",
    "RELIGHT_LOG_LEVEL": "debug",
    "SEARCH_URL": "x",
}


@pytest.mark.parametrize(
    ("part", "gets"),
    [
        (TEMPORAL, set[str]()),
        (STORE, {"AWS_SECRET_ACCESS_KEY"}),
        (GATEWAY, {"OPENAI_API_KEY"}),
        (ORCHESTRATOR, {"AWS_SECRET_ACCESS_KEY"}),
        (GPU_WORKER, {"AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN"}),
        (RUNNER, set[str]()),
    ],
)
def test_a_part_gets_the_secrets_that_it_needs(part: str, gets: set[str]) -> None:
    given = needed(SECRETS | PLAIN, part)
    assert SECRETS.keys() & given.keys() == gets
    assert {"PATH", "LC_ALL", "https_proxy"} <= given.keys()


def test_a_runner_gets_what_it_is_to_pass_on() -> None:
    assert "OPENAI_API_KEY" in needed(SECRETS, RUNNER, ["OPENAI_API_KEY"])
    assert "SEARCH_URL" not in needed(PLAIN, RUNNER)
    assert needed(PLAIN, RUNNER, ["SEARCH_URL"])["SEARCH_URL"] == "x"


def test_a_gpu_worker_keeps_temporals_key() -> None:
    assert "TEMPORAL_API_KEY" in needed({"TEMPORAL_API_KEY": "k"}, GPU_WORKER)


def test_every_part_but_postgres_has_a_list() -> None:
    listed = {*process_factory.PREFIXES, GPU_WORKER, process_factory.POSTGRES}
    assert listed == set(process_factory.NAMES)
