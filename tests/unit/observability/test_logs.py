"""Log lines: `time level action key=value`."""

from __future__ import annotations

import logging
import re
import sys

import pytest

from relight.errors import ConfigError
from relight.observability import logs
from relight.observability.logs import Line, LineFormatter


def formatted(message: object, level: int = logging.INFO, **extra: object) -> str:
    record = logging.makeLogRecord(
        {"msg": message, "levelno": level, "levelname": logging.getLevelName(level), **extra}
    )
    return LineFormatter().format(record)


def test_a_line_has_time_level_action_and_values() -> None:
    line = formatted(Line("attempt_opened", rollout="r-1", number=2))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info attempt_opened rollout=r-1 number=2", line)


def test_values_with_spaces_quotes_and_newlines_stay_on_one_line() -> None:
    line = formatted(Line("failed", reason='it said "no"\nand left', empty=""))
    assert line.endswith(r'failed reason="it said \"no\"\nand left" empty=""')
    assert "\n" not in line


def test_values_of_extra_become_keys() -> None:
    line = formatted("runner serves x", action="runner_up", agent="x")
    assert line.endswith(' info runner_up agent=x msg="runner serves x"')


def test_a_traceback_follows_on_lines_of_its_own() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        line = formatted("oops", logging.ERROR, exc_info=sys.exc_info())
    assert line.splitlines()[0].endswith("Z error oops")
    assert line.splitlines()[-1] == "ValueError: broken"


def test_a_level_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match="'loud' does not exist; use one of debug, info, warning, error"):
        logs.configure("loud")


def test_private_attributes_of_libraries_are_left_out() -> None:
    assert formatted("hello", _ray_timestamp_ns=1, agent="x").endswith(" info hello agent=x")
