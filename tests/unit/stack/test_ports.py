"""Ports: free ones are found, taken ones are named with their holder."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from subprocess import PIPE

import pytest

from relight.errors import StackError
from relight.stack import ports


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_that_something_listens_on_is_not_free(taken: int) -> None:
    assert not ports.is_free(taken)


def test_a_port_that_the_kernel_picked_is_free() -> None:
    assert ports.is_free(ports.any_free())


def test_the_first_wanted_port_that_is_free_is_chosen(taken: int) -> None:
    free = ports.any_free()
    assert ports.choose([taken, free]) == free


def test_a_port_that_was_given_to_another_part_is_not_chosen_again() -> None:
    free = ports.any_free()
    assert ports.choose([free], taken=[free]) != free


def test_a_port_that_another_stack_chose_is_not_chosen_even_while_nothing_listens_on_it() -> None:
    free = ports.any_free()
    program = f"from relight.stack import ports; print(ports.choose([{free}]), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdout is not None
        assert int(other.stdout.readline()) == free
        assert ports.choose([free]) != free
        other.communicate("\n")
    assert ports.choose([free]) == free


def test_the_holder_of_a_port_is_found(taken: int) -> None:
    assert ports.holder(taken) == os.getpid()


def test_a_free_port_has_no_holder() -> None:
    assert ports.holder(ports.any_free()) is None


def test_an_address_in_use_is_refused_with_its_holder_and_its_source(taken: int) -> None:
    with pytest.raises(StackError) as caught:
        ports.require_free(f"http://127.0.0.1:{taken}", "store", "environment RELIGHT_STORE_URL")
    message = caught.value.message
    assert f"port {taken}" in message
    assert "environment RELIGHT_STORE_URL" in message
    assert f"pid {os.getpid()}" in message


def test_an_address_of_another_machine_is_refused_without_blaming_a_process() -> None:
    with pytest.raises(StackError, match=r"can't listen on 192\.0\.2\.1:4747"):
        ports.require_free("http://192.0.2.1:4747", "store", "flag")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://10.0.0.7:4748", ("10.0.0.7", 4748)),
        ("https://store.example", ("store.example", 443)),
        ("http://[::1]:80/x", ("::1", 80)),
    ],
)
def test_host_and_port_of_a_url(url: str, expected: tuple[str, int]) -> None:
    assert ports.address(url) == expected


def test_a_process_that_came_second_to_a_port_does_not_count_as_its_server(taken: int) -> None:
    assert ports.listens(os.getpid(), taken)
    assert not ports.listens(os.getppid(), taken)
