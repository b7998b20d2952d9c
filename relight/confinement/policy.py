"""What the agents of one fork server may reach beyond what every program needs: files, folders and TCP ports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from glob import glob
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import orjson

from relight.errors import ConfigError
from relight.types.names import Network

INTERNET_PORTS = (53, 80, 443)
ANY = "any"
READ_ONLY = ":ro"
GPU_DEVICES = ("/dev/nvidia*", "/dev/kfd", "/dev/dri")
"""Of NVIDIA's driver, and of AMD's and others'."""
GPU_TABLES = ("/sys/bus/pci", "/sys/class/drm", "/sys/class/kfd", "/sys/devices", "/sys/module")
"""Where the libraries for GPUs look for them."""
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy")
DEFAULT_PORTS: Mapping[str, int] = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


@dataclass(frozen=True, kw_only=True)
class ConfinementPolicy:
    """A policy, as the runner hands it to a fork server."""

    hidden: Sequence[str] = ()
    """Folders that agents can't read wherever they are, such as the home folder with the admin token."""
    user_home: str
    """The user's own home folder, whose hidden entries agents can't read."""
    readable: Sequence[str] = ()
    writable: Sequence[str] = ()
    ports: Sequence[int] | None = None
    """TCP ports to connect to; None: all."""
    gateway_ports: Sequence[int] | None = None
    """Those of an attempt whose run file has `network: gateway`; None: all of `ports`."""
    datagrams: bool = True
    """Whether agents have UDP."""
    own_ports: Sequence[int] = ()
    """TCP ports to listen on, beside those that the kernel chooses."""

    def as_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**orjson.loads(text))


def policy(
    *,
    home: Path,
    network: Network = "internet",
    allow_path: Iterable[str] = (),
    allow_net: Iterable[str] = (),
    urls: Iterable[str] = (),
    ports: Iterable[int] = (),
    gpu_devices: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> ConfinementPolicy:
    """The policy for a runner's agents.

    Args:
        home: Relight's home folder, which agents can't read.
        network: `internet` allows UDP, the ports of the web, and those of a proxy that `environ` names; `gateway`
            allows none of these.
        allow_path: further files and folders, to write to unless they end with `:ro`.
        allow_net: further TCP ports, or `any`.
        urls: services that agents may call, such as the gateway.
        ports: further TCP ports that agents connect to, such as those of the runner's relays.
        gpu_devices: patterns of the GPUs' device files, such as `GPU_DEVICES`; none: agents may use no GPU.

    Raises:
        ConfigError: a path does not exist or holds the home folder, a port is none, or there is no GPU.
    """
    readable, writable = _paths(allow_path, home)
    opened = [entry for entry in allow_net if entry != ANY]
    services = {*map(_port, opened), *ports, *(_port_of(url) for url in urls)}
    web = {*INTERNET_PORTS, *_proxy_ports(environ or {})} if network == "internet" else set[int]()
    return ConfinementPolicy(
        hidden=(str(home.resolve()),),
        user_home=str(Path("~").expanduser().resolve()),
        readable=[*readable, *(GPU_TABLES if gpu_devices else ())],
        writable=[*writable, *_devices(gpu_devices)],
        ports=None if ANY in allow_net else sorted(services | web),
        gateway_ports=None if ANY in allow_net else sorted(services),
        datagrams=network == "internet" or ANY in allow_net,
        own_ports=sorted(map(_port, opened)),
    )


def _paths(given: Iterable[str], home: Path) -> tuple[list[str], list[str]]:
    readable: list[str] = []
    writable: list[str] = []
    for entry in given:
        path = Path(entry.removesuffix(READ_ONLY)).expanduser().resolve()
        if not path.exists():
            raise ConfigError(f"--allow-path {entry}: there is no {path}; create it, or name another")
        if home.resolve().is_relative_to(path):
            raise ConfigError(f"--allow-path {entry} holds the home folder {home} with its token; name narrower paths")
        (readable if entry.endswith(READ_ONLY) else writable).append(str(path))
    return readable, writable


def _devices(patterns: Sequence[str]) -> list[str]:
    """The device files of GPUs, and folders of such."""
    found = sorted(path for pattern in patterns for path in glob(pattern))
    if patterns and not found:
        raise ConfigError(f"--gpu: this machine has none of {', '.join(patterns)}; run without it, or load the driver")
    return found


def _port(text: str) -> int:
    if text.isdecimal() and 0 < int(text) < 2**16:
        return int(text)
    raise ConfigError(f"--allow-net {text}: give a port from 1 to 65535, or {ANY!r}")


def _port_of(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or DEFAULT_PORTS.get(parts.scheme, 80)


def _proxy_ports(environ: Mapping[str, str]) -> Iterable[int]:
    given: list[Any] = [environ.get(name) or environ.get(name.upper()) for name in PROXIES]
    return [_port_of(url if "://" in url else f"http://{url}") for url in given if url]
