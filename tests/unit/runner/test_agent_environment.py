"""What of its environment a runner hands on to agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from relight.errors import ConfigError
from relight.runner.agent_environment import agent_environment, read_env_file


def test_settings_of_proxies_and_hubs_reach_agents_and_their_tokens_do_not() -> None:
    own = {"HF_ENDPOINT": "https://hub.example", "HF_HUB_OFFLINE": "1", "REQUESTS_CA_BUNDLE": "/ca.pem"}
    made = agent_environment(own | {"HF_TOKEN": "secret", "RELIGHT_TOKEN": "secret"}, [])
    assert made.items() >= own.items()
    assert "secret" not in made.values()


def test_a_proxy_is_not_asked_for_the_runners_relay() -> None:
    made = agent_environment({"https_proxy": "http://proxy:3128", "NO_PROXY": "internal.example"}, [])
    assert made["https_proxy"] == "http://proxy:3128"
    assert made["NO_PROXY"] == "internal.example,127.0.0.1,localhost"
    assert made["no_proxy"] == "127.0.0.1,localhost"
    assert "NO_PROXY" not in agent_environment({}, [])


def test_a_file_gives_variables_and_names_of_such(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("# of the tools\nexport SEARCH_KEY='a b'\nREGION=eu # near\n\nMULTI=\"1\\n2\"\nPASSED\nEMPTY=\n")
    assert read_env_file(path) == {
        "SEARCH_KEY": "a b",
        "REGION": "eu",
        "MULTI": "1\n2",
        "PASSED": None,
        "EMPTY": "",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("A=1\n'oops\n", 'line 2: "\'oops" is no NAME=VALUE; quote the value, or remove it'),
        ("A=1\nRELIGHT_TOKEN=x\n", "line 2: RELIGHT_TOKEN is no variable for agents"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_none_is_refused_by_its_line(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / ".env"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_env_file(path)
    assert says in str(caught.value)
