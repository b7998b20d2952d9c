"""What agents may reach: paths, gaps in a project, ports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relight.confinement import landlock, protections, sandbox, scratch
from relight.confinement.allowed_paths import Gaps, opened
from relight.confinement.domain import HeldProtections
from relight.confinement.policy import ConfinementPolicy, policy
from relight.errors import ConfigError


def _ports(home: Path, **options: Any) -> set[int] | None:
    ports = policy(home=home, **options).ports
    return None if ports is None else set(ports)


def test_the_webs_ports_a_proxys_and_the_services_are_open_by_default(tmp_path: Path) -> None:
    urls = ["http://127.0.0.1:4748", "https://gateway.example"]
    environ = {"HTTPS_PROXY": "http://user@proxy.example:3128", "all_proxy": "proxy.example:1080"}
    assert _ports(tmp_path, urls=urls, ports=[40001], environ=environ) == {
        *(53, 80, 443),
        *(4748, 40001),
        *(3128, 1080),
    }


def test_the_network_of_the_gateway_leaves_the_web_out(tmp_path: Path) -> None:
    environ = {"https_proxy": "http://proxy.example:3128"}
    options: dict[str, Any] = {"network": "gateway", "urls": ["http://127.0.0.1:4748"], "environ": environ}
    assert _ports(tmp_path, **options) == {4748}
    assert _ports(tmp_path, allow_net=["5432"], **options) == {4748, 5432}
    assert _ports(tmp_path, allow_net=["any"], **options) is None
    assert not policy(home=tmp_path, network="gateway").datagrams
    assert policy(home=tmp_path, network="gateway", allow_net=["any"]).datagrams


def test_an_allowed_port_may_be_listened_on_too(tmp_path: Path) -> None:
    assert policy(home=tmp_path, allow_net=["8000"]).own_ports == [8000]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"allow_net": ["0"]}, "--allow-net 0: give a port from 1 to 65535"),
        ({"allow_net": ["http"]}, "--allow-net http: give a port"),
        ({"allow_path": ["/no/such"]}, "--allow-path /no/such: there is no /no/such"),
        ({"allow_path": ["/"]}, "--allow-path / holds the home folder"),
    ],
)
def test_what_can_not_be_allowed_is_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        policy(home=tmp_path, **options)


def test_an_allowed_path_is_writable_unless_it_says_otherwise(tmp_path: Path) -> None:
    for name in ("home", "read", "write"):
        (tmp_path / name).mkdir()
    made = policy(home=tmp_path / "home", allow_path=[f"{tmp_path}/read:ro", f"{tmp_path}/write"])
    assert (made.readable, made.writable) == ([f"{tmp_path}/read"], [f"{tmp_path}/write"])
    assert ConfinementPolicy.from_json(made.as_json()).ports == made.ports


def _tree(folder: Path) -> Path:
    for name in (".git/config", ".env", ".env.local", ".hidden", "var/relight/token", "var/data", "src/agent.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "link").symlink_to(folder / "var" / "relight")
    return folder


def _read(folder: Path, *, user_home: str = "/nowhere") -> set[str]:
    gaps = Gaps([str(folder / "var" / "relight")], [str(folder)], user_home)
    return {grant.path.removeprefix(f"{folder}/") for grant in opened(str(folder), gaps) if grant.access != 8}


def test_a_project_is_read_without_its_hidden_entries_wherever_the_home_folder_is(tmp_path: Path) -> None:
    assert _read(_tree(tmp_path)) == {".hidden", "src", "var/data"}


def test_in_a_users_own_home_no_hidden_entry_is_read(tmp_path: Path) -> None:
    assert _read(_tree(tmp_path), user_home=str(tmp_path)) == {"src", "var/data"}


def test_a_folder_with_gaps_can_be_listed_and_not_read(tmp_path: Path) -> None:
    gaps = Gaps([], [str(tmp_path)], "/nowhere")
    (root,) = list(opened(str(tmp_path), gaps))
    assert (root.path, root.access) == (str(tmp_path), landlock.READ_DIR)


def test_the_variable_of_an_allowed_cache_leads_to_it(tmp_path: Path) -> None:
    own = {"HOME": str(tmp_path)}
    hub = str(tmp_path / ".cache" / "huggingface")
    assert scratch.kept_caches(own, []) == {"PYTHONUSERBASE": f"{tmp_path}/.local"}
    assert scratch.kept_caches(own, [hub])["HF_HOME"] == hub


def test_the_line_names_what_holds_and_what_does_not() -> None:
    assert protections.describe(HeldProtections(files=True, system_calls=True)) == (
        "agents are confined in: files, system calls; not here, as the kernel lacks it: TCP ports, signals and "
        "abstract sockets; not in: sockets by path, UDP"
    )
    assert protections.describe(HeldProtections()).startswith("agents are confined in: nothing; not here")


async def test_what_holds_is_tried_by_a_process_of_its_own() -> None:
    held = await protections.probe()
    assert held.files == (landlock.abi() > 0)
    assert held.signals == (landlock.abi() >= landlock.SCOPE_ABI)


def test_a_socket_that_gives_the_machine_away_is_named(tmp_path: Path) -> None:
    (tmp_path / "docker.sock").touch()
    assert sandbox.open_sockets([f"{tmp_path}/docker.sock", f"{tmp_path}/podman.sock"]) == [f"{tmp_path}/docker.sock"]


def test_what_a_run_may_take_away_is_the_web(tmp_path: Path) -> None:
    made = policy(home=tmp_path, urls=["http://127.0.0.1:4748"], allow_net=["5432"])
    assert made.gateway_ports == [4748, 5432]
    assert policy(home=tmp_path, allow_net=["any"]).gateway_ports is None


def test_gpus_are_opened_with_what_their_libraries_read(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    made = policy(home=tmp_path / "home", gpu_devices=(f"{tmp_path}/nvidia*",))
    assert made.writable == [f"{tmp_path}/nvidia0"]
    assert "/sys/devices" in made.readable
    with pytest.raises(ConfigError, match=r"--gpu: this machine has none of .*/amd\*; run without it"):
        policy(home=tmp_path / "home", gpu_devices=(f"{tmp_path}/amd*",))
