"""An agent that attacks what is around it, each attack by name; it prints how each ended. Loaded by path."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from relight.confinement.seccomp import REFUSED
from relight.emitter import emit_message

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_PIDFD_OPEN = 434
_SEIZE, _SUBREAPER, _TIOCSTI = 0x4206, 36, 0x5412
CREATE = 0o1600
NAMESPACES = {
    "sees_the_runner": "ENOENT",
    "connects_to_a_socket_by_path": "ECONNREFUSED",
    "writes_to_shared_memory_of_others": "ENOENT",
    "finds_a_shared_segment": "ENOENT",
}
"""Attacks that layer 2 alone refuses, with its answers."""
SOCKETS = {
    "connects_by_multipath_tcp": "EPROTONOSUPPORT",
    "sends_by_udp_lite": "EPROTONOSUPPORT",
    "sends_by_fast_open": "ENOTSUP",
    "opens_a_socket_to_the_machines_host": "EAFNOSUPPORT",
    "sends_a_datagram": "EPROTONOSUPPORT",
}
"""Attacks around the rules for TCP ports, with the filter's answers; the last one where `network` is `gateway`."""
MULTIPATH_TCP = 262
COLUMN = {"x86_64": 0, "aarch64": 1}.get(os.uname().machine, 0)


def _call(number, *arguments):
    result = _libc.syscall(ctypes.c_long(number), *[ctypes.c_long(value) for value in arguments])
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def shared_segment(key, flags):
    """The number of System V shared memory."""
    found = _libc.shmget(key, 1, flags)
    if found < 0:
        raise OSError(ctypes.get_errno(), "no segment")
    return found


def remove_segment(segment):
    """Remove System V shared memory."""
    _libc.shmctl(segment, 0, None)


def _number(name):
    return REFUSED[name][COLUMN]


def traces(task):
    _call(_number("ptrace"), _SEIZE, task["runner"], 0, 0)


def reads_memory_by_call(task):
    held = ctypes.create_string_buffer(8)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(held), 8)
    _call(_number("process_vm_readv"), task["runner"], ctypes.addressof(vector), 1, ctypes.addressof(vector), 1, 0)


def takes_a_descriptor(task):
    _call(_number("pidfd_getfd"), _call(_PIDFD_OPEN, task["neighbour"], 0), 0, 0)


def reads_the_runners_memory(task):
    Path(f"/proc/{task['runner']}/mem").open("rb").close()


def reads_the_runners_environment(task):
    assert Path(f"/proc/{task['runner']}/environ").read_bytes()


def reads_the_fork_servers_environment(task):
    assert Path(f"/proc/{os.getppid()}/environ").read_bytes()


def reads_a_neighbours_memory(task):
    Path(f"/proc/{task['neighbour']}/mem").open("rb").close()


def signals_the_runner(task):
    os.kill(task["runner"], 0)


def signals_the_fork_server(task):
    os.kill(os.getppid(), 0)


def signals_a_neighbour(task):
    os.kill(task["neighbour"], signal.SIGCONT)


def reads_a_neighbours_scratch(task):
    os.listdir(task["scratch"])


def writes_to_a_neighbours_scratch(task):
    Path(task["scratch"], "forged").touch()


def reads_the_token(task):
    assert Path(task["home"], "token").read_text()


def reads_the_tokens_link(task):
    link = Path(os.environ["HOME"], "link")
    link.symlink_to(Path(task["home"], "token"))
    assert link.read_text()


def reads_env_files(task):
    assert Path(task["project"], ".env").read_text()


def reads_the_git_folder(task):
    assert Path(task["project"], ".git", "config").read_text()


def writes_to_the_project(task):
    Path(task["project"], "agent.py").open("a").close()


def creates_in_the_project(task):
    Path(task["project"], "data", f"new-{os.getpid()}").touch()


def writes_beside_its_scratch(task):
    Path(os.environ["HOME"]).parent.joinpath(f"new-{os.getpid()}").touch()


def connects_to_a_closed_port(task):
    socket.create_connection(("127.0.0.1", task["closed_port"]), timeout=5).close()


def connects_by_ipv6(task):
    with socket.socket(socket.AF_INET6) as client:
        client.connect(("::ffff:127.0.0.1", task["closed_port"]))


def connects_by_multipath_tcp(task):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, MULTIPATH_TCP) as client:
        client.connect(("127.0.0.1", task["closed_port"]))


def sends_by_fast_open(task):
    with socket.socket() as client:
        client.sendto(b"x", socket.MSG_FASTOPEN, ("127.0.0.1", task["closed_port"]))


def sends_by_udp_lite(task):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_UDPLITE) as client:
        client.sendto(b"x", ("127.0.0.1", task["closed_port"]))


def sends_a_datagram(task):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"x", ("127.0.0.1", task["closed_port"]))


def opens_a_socket_to_the_machines_host(task):
    socket.socket(socket.AF_VSOCK).close()


def listens_on_a_fixed_port(task):
    with socket.socket() as server:
        server.bind(("127.0.0.1", task["free_port"]))


def connects_to_an_abstract_socket(task):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + task["abstract"])


def raises_its_hard_limit(task):
    _soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard + 1))
    except ValueError as error:  # Python's word for EPERM here
        raise PermissionError(errno.EPERM, str(error)) from error


def types_into_a_terminal(task):
    fcntl.ioctl(0, _TIOCSTI, b"x")


def leaves_its_own_tree(task):
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    if _libc.prctl(_SUBREAPER, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "refused")


def calls_by_x32_numbers(task):
    _call(0x40000000 | 39)


def calls_as_32_bits(task):
    """getpid by `int 0x80`, in a child, since a kernel without 32-bit calls ends it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
        function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
        os.write(writer, str(function()).encode())
        os._exit(0)
    os.close(writer)
    said = os.read(reader, 20)
    os.waitpid(child, 0)
    if not said:
        raise OSError(errno.ENOSYS, "no 32-bit calls")
    if int(said) < 0:
        raise OSError(-int(said), "refused")


def gains_by_a_program(task):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("NoNewPrivs"))
    if line.split()[1] == "1":
        raise PermissionError(errno.EPERM, line)


def attacks_from_another_program(task):
    code = "import sys; open(sys.argv[1]).read()"
    done = subprocess.run(
        [sys.executable, "-c", code, f"{task['home']}/token"], capture_output=True, text=True, check=False
    )
    if "Error: [Errno " in done.stderr:
        number = int(done.stderr.rpartition("[Errno ")[2].partition("]")[0])
        raise OSError(number, "refused")


def sees_the_runner(task):
    os.stat(f"/proc/{task['runner']}")


def connects_to_a_socket_by_path(task):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(task["socket"])


def writes_to_shared_memory_of_others(task):
    with open(task["shared_memory"], "r+") as file:
        file.write("forged")


def finds_a_shared_segment(task):
    shared_segment(task["runner"], 0)


def adds_to_its_ruleset(task):
    held = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    if not [link for link in held if "landlock" in os.readlink(link)]:
        raise PermissionError(errno.EPERM, "no ruleset is open")


def _refused_call(name):
    def refused(task):
        _call(_number(name), -1, -1, -1, -1, -1)

    return refused


CALLS = {f"calls_{name}": _refused_call(name) for name, numbers in REFUSED.items() if numbers[COLUMN] is not None}
ATTACKS = CALLS | {
    name: value
    for name, value in list(globals().items())
    if callable(value)
    and not name.startswith(("_", "shared_", "remove_"))
    and getattr(value, "__module__", "") == __name__
}


def _tried(attack, task):
    try:
        attack(task)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "done"


def agent(task):
    if task.get("wait"):
        emit_message(json.dumps({"pid": os.getpid(), "scratch": os.environ["HOME"]}))
        while not Path(task["project"], "go").exists():
            time.sleep(0.01)
        return 1.0
    print(json.dumps({name: _tried(ATTACKS[name], task) for name in task["attacks"]}))
    return 1.0
