"""Rulesets on kernels of each ABI, and confinement where the kernel lacks Landlock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relight.confinement import landlock, seccomp

RESTRICTED = """
import json, socket, sys
from pathlib import Path
from relight.confinement import landlock, privileges

landlock.abi = lambda: int(sys.argv[1])
listening = socket.create_server(("127.0.0.1", 0))
ruleset = landlock.Ruleset()
for path, access in (("/", landlock.READ_DIR), (sys.argv[2] + "/open", landlock.ALL)):
    ruleset.allow(landlock.open_path(path), access)
ruleset.allow_ports(landlock.CONNECT_TCP, [443])
privileges.give_up_new_privileges()
ruleset.restrict()

def tried(work):
    try:
        work()
    except PermissionError:
        return "refused"
    return "done"

print(json.dumps({
    "read": tried(lambda: Path(sys.argv[2], "closed").read_text()),
    "write": tried(lambda: Path(sys.argv[2], "open", "new").write_text("")),
    "connect": tried(lambda: socket.socket().connect(listening.getsockname())),
}))
"""
WITHOUT = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from relight.confinement import domain, landlock
from relight.confinement.policy import policy

landlock.abi = lambda: 0
confined = domain.Domain(policy(home=Path(sys.argv[1])), sys.argv[1], [])
held = confined.enter()
confined.prepare(0)
confined.enter_attempt(0)
print(json.dumps(asdict(held) | {"home": str(Path.home())}))
"""


def _run(code: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("version", range(1, 8))
def test_a_ruleset_takes_what_a_kernel_of_its_abi_can_take(tmp_path: Path, version: int) -> None:
    if landlock.abi() < version:
        pytest.skip(f"this kernel has Landlock's ABI {landlock.abi()}")
    (tmp_path / "open").mkdir()
    (tmp_path / "closed").write_text("secret")
    found = _run(RESTRICTED, str(version), str(tmp_path))
    network = "refused" if version >= landlock.NETWORK_ABI else "done"
    assert found == {"read": "refused", "write": "done", "connect": network}


def test_without_landlock_the_rest_holds_and_is_all_that_is_said_to(tmp_path: Path) -> None:
    found = _run(WITHOUT, str(tmp_path))
    filtered = seccomp.architecture() is not None
    nothing = {"files": False, "ports": False, "signals": False, "namespaces": False}
    assert found == nothing | {"system_calls": filtered, "home": f"{tmp_path}/0"}


@pytest.mark.parametrize("machine", sorted(seccomp.ARCHITECTURES))
def test_a_filter_has_whole_instructions_for_each_architecture(machine: str) -> None:
    on = seccomp.ARCHITECTURES[machine]
    rows = seccomp.program(on)
    assert len(rows) % 8 == 0
    assert len(rows) // 8 < 4096  # the kernel's limit
    for numbers in seccomp.REFUSED.values():
        number = numbers[on.column]
        assert number is None or number.to_bytes(4, "little") in rows
