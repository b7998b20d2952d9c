"""What an agent's code can't do to its runner, its neighbours and the platform: each attack, as root and as nobody."""

from __future__ import annotations

import pytest

from tests.unit.confinement import attacks
from tests.unit.confinement.attacks import NAMESPACES
from tests.unit.confinement.conftest import ORDINARY, Attacked

FILES = {
    "reads_the_token",
    "reads_the_tokens_link",
    "reads_env_files",
    "reads_the_git_folder",
    "writes_to_the_project",
    "creates_in_the_project",
    "writes_beside_its_scratch",
    "attacks_from_another_program",
    "reads_a_neighbours_scratch",
    "writes_to_a_neighbours_scratch",
}
PORTS = {"connects_to_a_closed_port", "connects_by_ipv6", "listens_on_a_fixed_port"}
SIGNALS = {"signals_the_runner", "signals_the_fork_server", "signals_a_neighbour", "connects_to_an_abstract_socket"}
MEMORY = {
    "reads_the_runners_memory",
    "reads_the_runners_environment",
    "reads_the_fork_servers_environment",
    "reads_a_neighbours_memory",
}
SYSTEM_CALLS = {
    *attacks.CALLS,
    *("traces", "reads_memory_by_call", "takes_a_descriptor", "types_into_a_terminal", "leaves_its_own_tree"),
    *("calls_by_x32_numbers", "calls_as_32_bits"),
}
SOCKETS = set(attacks.SOCKETS)
PRIVILEGES = {"raises_its_hard_limit", "gains_by_a_program", "adds_to_its_ruleset"}
HELD_BY_NAMESPACES = {
    *NAMESPACES,
    *("reads_the_token", "reads_the_tokens_link", "attacks_from_another_program"),
    *("signals_the_runner", "reads_the_runners_memory", "reads_the_runners_environment"),
    *("traces", "reads_memory_by_call"),
}
"""What layer 2 refuses without layer 1."""
LAYERS = {"files": FILES | MEMORY, "ports": PORTS, "signals": SIGNALS, "system_calls": SYSTEM_CALLS | SOCKETS}
GIVE_WAY = (
    FILES | set(NAMESPACES) | PORTS | SIGNALS | {"sends_a_datagram", "leaves_its_own_tree", "gains_by_a_program"}
) - {"writes_beside_its_scratch"}
"""What succeeds without confinement, as any user."""
ALONE = {
    "files": FILES,
    "ports": PORTS,
    "signals": SIGNALS,
    "system_calls": {"sends_a_datagram", "leaves_its_own_tree"},
}
"""What succeeds without one layer, as any user, whatever the others do."""
OTHER_MACHINES = {"calls_by_x32_numbers", "calls_as_32_bits"}


def _refusal(attack: str) -> str:
    if attack in attacks.SOCKETS:
        return attacks.SOCKETS[attack]
    return "EACCES" if attack in FILES | MEMORY | PORTS else "EPERM"


def test_every_attack_belongs_to_a_layer() -> None:
    assert set(attacks.ATTACKS) == set(NAMESPACES).union(*LAYERS.values(), PRIVILEGES)


@pytest.mark.parametrize("attack", sorted(attacks.ATTACKS.keys() - NAMESPACES))
def test_an_attack_is_refused(attacked: Attacked, user: str, attack: str) -> None:
    found = attacked(user, "confined")
    layer = next((name for name, held in LAYERS.items() if attack in held), None)
    if layer is not None and not found["held"][layer]:
        pytest.skip(f"this kernel does not protect {layer}")
    if attack in OTHER_MACHINES and found["ended"][attack] == "ENOSYS":
        pytest.skip("this machine has no such calls")
    assert found["ended"][attack] == _refusal(attack)


def _in_namespaces(attacked: Attacked, user: str, policy: str) -> dict[str, str]:
    found = attacked(user, policy)
    if not found["held"]["namespaces"]:
        pytest.skip("this user can't make namespaces here")
    return found["ended"]


@pytest.mark.parametrize("attack", sorted(attacks.ATTACKS))
def test_an_attack_is_refused_in_namespaces(attacked: Attacked, user: str, attack: str) -> None:
    ended = _in_namespaces(attacked, user, "sandbox")[attack]
    assert ended == NAMESPACES[attack] if attack in NAMESPACES else ended != "done"


@pytest.mark.parametrize("attack", sorted(NAMESPACES))
def test_without_namespaces_layer_1_leaves_it_open(attacked: Attacked, user: str, attack: str) -> None:
    assert attacked(user, "confined")["ended"][attack] == "done"


@pytest.mark.parametrize("attack", sorted(HELD_BY_NAMESPACES))
def test_namespaces_alone_refuse_it(attacked: Attacked, user: str, attack: str) -> None:
    assert _in_namespaces(attacked, user, "namespaces")[attack] != "done"


@pytest.mark.parametrize("attack", sorted(GIVE_WAY))
def test_without_confinement_the_attack_succeeds(attacked: Attacked, user: str, attack: str) -> None:
    assert attacked(user, "open")["ended"][attack] == "done"


@pytest.mark.parametrize("attack", ["reads_the_runners_memory", "reads_the_runners_environment"])
def test_an_undumpable_runner_is_closed_to_its_own_user_without_any_other_layer(
    attacked: Attacked, attack: str
) -> None:
    if (found := attacked("this user", "open"))["uid"] == 0:
        assert found["ended"][attack] == "done"  # root may trace any process
        found = attacked(ORDINARY, "open")
    assert found["ended"][attack] == "EACCES"


@pytest.mark.parametrize("layer", sorted(ALONE))
def test_without_one_layer_the_attacks_that_it_holds_alone_succeed_and_no_others(
    attacked: Attacked, layer: str
) -> None:
    if not attacked("this user", "confined")["held"][layer]:
        pytest.skip(f"this kernel does not protect {layer}")
    done = {attack for attack, end in attacked("this user", layer)["ended"].items() if end == "done"}
    assert ALONE[layer] <= done - NAMESPACES.keys() <= LAYERS[layer]


def test_the_neighbour_of_an_attacker_ends_as_if_alone(attacked: Attacked, user: str) -> None:
    assert attacked(user, "confined")["neighbour"] == 1.0
    assert attacked(user, "sandbox")["neighbour"] == 1.0
