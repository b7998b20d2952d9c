"""What clients import late is imported once, in the fork server."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import openai
from relight.runner.preload import import_lazy_parts
import_lazy_parts()
before = set(sys.modules)
openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="x").chat.completions.create
print(sorted(name for name in set(sys.modules) - before if name.startswith(("openai", "httpx"))))
"""


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_an_attempt_that_uses_openai_imports_no_further_module_of_it() -> None:
    assert run(CODE) == "[]"


def test_clients_that_no_agent_uses_are_not_imported() -> None:
    code = "import sys; from relight.runner.preload import import_lazy_parts as f; print(f(), 'openai' in sys.modules)"
    assert run(code) == "[] False"
