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
    code = f"import sys, relight.gpu_worker.worker; print([name for name in {HEAVY!r} if name in sys.modules])"
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
    table = {re.findall(r"`(\w+)", row[0])[0]: set(re.findall(r"`(\w+)", row[2])) for row in rows}
    assert len(table) == len(rows), "a package has two rows"
    return table


BY_NAME = re.compile(r"\bimport_module\(|\b__import__\(|\bsys\.modules\b|\bresolve_name\(")
"""Gives a module whose name is a text."""


def modules_of(node: ast.AST, package: tuple[str, ...], itself: set[str], names_modules: bool) -> list[str]:
    """The modules that a part of a file in this package imports, or names as text; `itself`: its names of relight."""
    if isinstance(node, ast.ImportFrom):
        above = package[: len(package) + 1 - node.level] if node.level else ()
        module = ".".join([*above, *([node.module] if node.module else [])])
        return [f"relight.{alias.name}" for alias in node.names] if module == "relight" else [module]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in itself:
        return [f"relight.{node.attr}"]
    if names_modules and isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.findall(r"^relight\.[\w.]+", node.value)
    return []


def imports_of(path: Path, text: str) -> set[str]:
    """What a file imports of the packages and modules right under `relight`, also by a name in a text."""
    names_modules = BY_NAME.search(text) is not None
    package, nodes = path.relative_to(ROOT).parts[:-1], [*ast.walk(ast.parse(text))]
    aliases = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    itself = {"relight", *(alias.asname for alias in aliases if alias.name == "relight" and alias.asname)}
    modules = [name for node in nodes for name in modules_of(node, package, itself, names_modules)]
    return {name.split(".")[1] for name in modules if name.startswith("relight.")} - {"__version__"}


def imports_by_package() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in (ROOT / "relight").rglob("*.py"):
        package = path.relative_to(ROOT / "relight").with_suffix("").parts[0]
        if package != "__init__":
            found.setdefault(package, set()).update(imports_of(path, path.read_text()) - {package, "errors"})
    return found


def test_packages_import_what_the_architecture_says_and_nothing_else() -> None:
    assert imports_by_package() == table_of_imports() | {"errors": set()}


@pytest.mark.parametrize(
    "line",
    [
        "import relight.store.base as base",
        "from relight import store",
        "from ..store.base import LightningStore",
        "from .. import store",
        "def late(): from relight.store import base",
        "import relight; relight.store",
        "import relight as r; r.store",
        'import_module("relight.store.base")',
        '__import__("relight.store")',
        'sys.modules["relight.store.base"]',
        'pkgutil.resolve_name("relight.store.base:LightningStore")',
    ],
)
def test_an_import_is_found_however_it_is_written(line: str) -> None:
    assert imports_of(ROOT / "relight" / "adapter" / "rows.py", line) == {"store"}


def test_no_package_imports_one_that_imports_it() -> None:
    graph = TopologicalSorter(imports_by_package())
    graph.prepare()  # raises CycleError, with the cycle
