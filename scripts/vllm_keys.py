"""Write `relight/types/vllm_keys.json` from the sources of the vLLM that is installed."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "relight" / "types" / "vllm_keys.json"
_FLAG_SOURCES = ("engine/arg_utils.py", "entrypoints/openai/cli_args.py")
_FRONTEND_CLASSES = ("BaseFrontendArgs", "FrontendArgs")


def make_table() -> dict[str, Any] | None:
    """Version and arguments of vLLM's server, without importing it; None where it is not installed."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return None
    package = Path(spec.submodule_search_locations[0])
    names = {
        name
        for source in _FLAG_SOURCES
        for name in _flags_in(ast.parse((package / source).read_text(encoding="utf-8")))
    }
    choices = {name: values for name, values in _choices(package).items() if name in names}
    return {"version": _version(), "keys": sorted(names), "choices": choices}


def _choices(package: Path) -> dict[str, list[str]]:
    """The allowed values of arguments that have a fixed set."""
    sources = [*sorted((package / "config").glob("*.py")), package / "engine" / "arg_utils.py"]
    trees = [ast.parse(source.read_text(encoding="utf-8")) for source in sources]
    literals = {
        node.targets[0].id: node.value
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_literal(node.value)
    }
    engine = next(node for node in trees[-1].body if isinstance(node, ast.ClassDef) and node.name == "EngineArgs")
    fields = {item.target.id: item.annotation for item in engine.body if _is_field(item)}  # pyright: ignore
    found = {name: list(_words(annotation, literals)) for name, annotation in sorted(fields.items())}
    return {name: [str(word) for word in words] for name, words in found.items() if words and None not in words}


def _is_literal(node: ast.expr) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal"


def _words(node: ast.expr, literals: Mapping[str, ast.expr]) -> Iterator[str | None]:
    """The words of an annotation; None among them where it takes others too."""
    match node:
        case ast.Constant(value=None):
            return
        case ast.Name(id=name) if name in literals:
            yield from _words(literals[name], literals)
        case ast.BinOp(left=left, right=right):
            yield from _words(left, literals)
            yield from _words(right, literals)
        case ast.Subscript(slice=inner) if _is_literal(node):
            for part in inner.elts if isinstance(inner, ast.Tuple) else [inner]:
                yield from [str(part.value)] if isinstance(part, ast.Constant) else _words(part, literals)
        case _:
            yield None


def _version() -> str:
    """Version of the package, under any of its names."""
    installed = importlib.metadata.packages_distributions()["vllm"][0]
    return importlib.metadata.version(installed).partition("+")[0]


def _flags_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith("--"):
                    yield str(argument.value)[2:].replace("-", "_")
        elif isinstance(node, ast.ClassDef) and node.name in _FRONTEND_CLASSES:
            yield from (item.target.id for item in node.body if _is_field(item))  # pyright: ignore


def _is_field(item: ast.stmt) -> bool:
    return isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)


def main() -> None:
    table = make_table()
    if table is None:
        raise SystemExit("vLLM is not installed here: install `relight[gpu]`, or `relight[cpu]` without a GPU")
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(f"{TABLE}: {len(table['keys'])} arguments of vLLM {table['version']}")


if __name__ == "__main__":
    main()
