"""The named queries under `relight/store/sql`, and the functions of the schema."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import relight
from relight.store.database import migrations, queries
from relight.store.maintenance.check import PREFIX
from relight.store.queue import query_tables as composed
from relight.store_api.metrics import QUERIES


def test_every_named_query_is_used() -> None:
    code = "\n".join(file.read_text() for file in Path(relight.__file__).parent.rglob("*.py"))
    by_prefix = {name for name in queries() if name.startswith(PREFIX)} | {f"metrics_{name}" for name in QUERIES}
    assert queries().keys() - by_prefix - set(re.findall(r"\"(\w+)\"", code)) == set()


def test_every_function_of_the_schema_is_called() -> None:
    schema = re.sub(r"--.*", "", "\n".join(text for _, _, text in migrations()))
    sources = (table.source for table in vars(composed).values() if isinstance(table, composed.Table))
    words = Counter(re.findall(r"\w+", "\n".join([schema, *queries().values(), *sources])))
    functions = re.findall(r"create (?:or replace )?function (\w+)", schema)
    assert functions
    assert [name for name in functions if words[name] == 1] == []
