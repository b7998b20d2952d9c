"""Confines the fork server before it imports agents, and each process that it forks for them.

The fork server's own domain holds what all its agents may do. A forked process adds a second one, in which of all
scratch folders only its own is writable. Its ruleset is built when its scratch folder is first used, and used again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relight.confinement import landlock, privileges, scratch, seccomp
from relight.confinement.allowed_paths import AllowedPath, allowed_paths
from relight.confinement.policy import ConfinementPolicy
from relight.types.names import Network


@dataclass(frozen=True)
class HeldProtections:
    """Which protections hold in a process."""

    files: bool = False
    ports: bool = False
    signals: bool = False
    system_calls: bool = False
    namespaces: bool = False
    """Processes, memory and mounts outside are not even seen."""

    @classmethod
    def by_landlock(cls, system_calls: bool) -> HeldProtections:
        version = landlock.abi()
        return cls(version > 0, version >= landlock.NETWORK_ABI, version >= landlock.SCOPE_ABI, system_calls)


class Domain:
    """The confinement of one fork server's processes."""

    def __init__(self, policy: ConfinementPolicy, root: str, references: Iterable[str]) -> None:
        self.root = root
        """The folder of all its scratch folders."""
        self._policy = policy
        self._allowed: Sequence[AllowedPath] = allowed_paths(policy, references) if landlock.abi() else []
        self._attempts: dict[tuple[int, Network], landlock.Ruleset] = {}

    def enter(self) -> HeldProtections:
        """Confine this process, which has one thread, for good."""
        privileges.set_dumpable(False)
        privileges.give_up_new_privileges()
        privileges.drop_capabilities()
        filtered = seccomp.install(datagrams=self._policy.datagrams)
        if landlock.abi():
            ruleset = self._ruleset([AllowedPath(self.root, landlock.ALL)], self._policy.ports)
            ruleset.restrict()
            ruleset.close()
        return HeldProtections.by_landlock(filtered)

    def _ruleset(self, own: Iterable[AllowedPath], ports: Sequence[int] | None) -> landlock.Ruleset:
        """`ports` are those to connect to; None: it leaves TCP as it is."""
        ruleset = landlock.Ruleset(network=ports is not None)
        for allowed in (*self._allowed, *own):
            if (descriptor := landlock.open_path(allowed.path)) is not None:
                ruleset.allow(descriptor, allowed.access)
                os.close(descriptor)
        ruleset.allow_ports(landlock.CONNECT_TCP, {*(ports or ()), *self._policy.own_ports})
        ruleset.allow_ports(landlock.BIND_TCP, {0, *self._policy.own_ports})
        return ruleset

    def folder(self, slot: int) -> str:
        """The scratch folder of the processes that use this slot, one after the other."""
        return f"{self.root}/{slot}"

    def prepare(self, slot: int, network: Network = "internet") -> None:
        """Before the fork: make the scratch folder, and its ruleset if it has none."""
        folder = self.folder(slot)
        scratch.make(folder)
        if landlock.abi() and (slot, network) not in self._attempts:
            own = [AllowedPath(f"{self.root}/{scratch.IMPORT}", landlock.READ), AllowedPath(folder, landlock.ALL)]
            ports = self._policy.gateway_ports if network == "gateway" else None
            self._attempts[slot, network] = self._ruleset(own, ports)

    def enter_attempt(self, slot: int, network: Network = "internet") -> None:
        """After the fork, in the child: confine it, and use its scratch folder."""
        if landlock.abi():
            self._attempts[slot, network].restrict()
            privileges.set_dumpable(True)  # its own domain closes its memory to others, and /proc shows it to itself
        if network == "gateway" and self._policy.gateway_ports is not None:
            seccomp.install(datagrams=False)
        for ruleset in self._attempts.values():  # a process that holds one could add to it
            ruleset.close()
        scratch.use(self.folder(slot))
