"""What importing a part of Relight loads, and what it must not."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
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


@pytest.mark.parametrize("module", ["relight", "relight.runner.fork_server_process"])
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


def table_of_imports() -> dict[str, set[str]]:
    """The table "Packages" of docs/architecture.md: what each package imports of the others."""
    lines = (ROOT / "docs" / "architecture.md").read_text().split("## Packages\n")[1].split("\n## ")[0].splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("| `")]
    return {re.findall(r"`(\w+)", row[0])[0]: set(re.findall(r"`(\w+)", row[2])) for row in rows}


def modules_of(node: ast.AST, names_modules: bool) -> list[str]:
    """The modules that a part of a file imports, or names as text."""
    if isinstance(node, ast.ImportFrom) and node.module == "relight":
        return [f"relight.{alias.name}" for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if names_modules and isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.findall(r"^relight\.[\w.]+", node.value)
    return []


def imports_of(path: Path) -> set[str]:
    """What a file imports of the packages and modules right under `relight`; commands name some as text."""
    nodes = ast.walk(ast.parse(path.read_text()))
    modules = [name for node in nodes for name in modules_of(node, names_modules="cli" in path.parts)]
    return {name.split(".")[1] for name in modules if name.startswith("relight.")}


def imports_by_package() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in (ROOT / "relight").rglob("*.py"):
        package = path.relative_to(ROOT / "relight").with_suffix("").parts[0]
        if package != "__init__":
            found.setdefault(package, set()).update(imports_of(path) - {package, "errors"})
    return found


def test_packages_import_what_the_architecture_says_and_nothing_else() -> None:
    assert imports_by_package() == table_of_imports() | {"errors": set()}


def test_no_package_imports_one_that_imports_it() -> None:
    graph = TopologicalSorter(imports_by_package())
    graph.prepare()  # raises CycleError, with the cycle
