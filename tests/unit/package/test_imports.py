"""What importing a part of Relight loads, and what it must not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("torch", "vllm", "verl", "transformers", "ray")
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "relight").rglob("*.py")
    if path.name != "__main__.py"
)
LIGHT = [name for name in MODULES if not name.startswith("relight.gpu_worker")]
RUNNER_LIMIT_MIB = 150


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_outside_the_gpu_worker_loads_torch_vllm_or_verl() -> None:
    code = f"""
import importlib, sys
for name in {LIGHT!r}:
    importlib.import_module(name)
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    assert run(code) == "[]"


def test_the_gpu_worker_process_itself_loads_no_torch() -> None:
    code = f"import sys, relight.gpu_worker.service; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert run(code) == "[]"


@pytest.mark.parametrize("module", ["relight", "relight.runner.template_process"])
def test_what_agents_run_in_loads_no_temporal_and_no_database_driver(module: str) -> None:
    code = f"import sys, {module}; print([n for n in ('temporalio', 'asyncpg', 'grpc', 'aiohttp') if n in sys.modules])"
    assert run(code) == "[]"


def test_a_runner_needs_less_than_150_mib_before_the_agents_own_imports() -> None:
    code = """
import relight.runner.worker
from pathlib import Path
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(int(peak.split()[1]) // 1024)
"""  # getrusage would count what the test's own process was before the exec
    assert int(run(code)) < RUNNER_LIMIT_MIB


def test_every_public_name_is_there() -> None:
    import relight

    assert all(hasattr(relight, name) for name in relight.__all__)
