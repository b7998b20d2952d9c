"""What a run file may say of sampling."""

from __future__ import annotations

from typing import Any

import pytest

from relight.errors import ConfigError
from relight.types.run_file import parse_run_file

FILE: dict[str, Any] = {"agent": "calculator", "model": "model", "data": "tasks.jsonl"}


def test_temperatures_of_single_calls_and_kernels_that_take_one_for_all_exclude_each_other() -> None:
    fused = {"verl": {"model": {"use_fused_kernels": True, "fused_kernel_options": {"impl_backend": "torch"}}}}
    with pytest.raises(
        ConfigError, match=r"`sampling.agent_chooses` can't be used with `verl.model.use_fused_kernels`"
    ):
        parse_run_file(FILE | fused | {"sampling": {"agent_chooses": True}})
    parse_run_file(FILE | fused)
    parse_run_file(FILE | {"sampling": {"agent_chooses": True}})
