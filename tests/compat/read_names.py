"""Prints the public names of the installed Agent Lightning by module, as JSON; `names_of_0_3.json` is what it prints.

Of the package all that `dir` lists, its modules included; of a module what its `__all__` lists, else what it defines
(type variables left out).
"""

from __future__ import annotations

import importlib
import json
import logging
import typing
import warnings
from types import ModuleType

MODULES = (
    "adapter adapter.triplet algorithm client config emitter env_var execution instrumentation litagent "
    "litagent.decorator litagent.litagent llm_proxy logging reward runner semconv server store store.base tracer "
    "tracer.base trainer types types.resources types.tracer utils.otel"
)
PARTS = {"reward": ("emitter.reward",), "types": ("types.core", "types.resources", "types.tracer")}
"""Modules that export all names of others."""


def module(name: str) -> ModuleType:
    """A module of the package."""
    return importlib.import_module(f"agentlightning.{name}")


def names_of(name: str) -> list[str]:
    """The public names of a module."""
    found = module(name)
    if name in PARTS:
        return [each for part in PARTS[name] for each in names_of(part)]
    if name == "semconv":  # constants do not say where they are defined
        return [each for each in vars(found) if each[0].isupper() and each not in ("Enum", "BaseModel")]
    defined = [
        each
        for each, value in vars(found).items()
        if not each.startswith("_")
        and getattr(value, "__module__", None) == found.__name__
        and not isinstance(value, typing.TypeVar)
    ]
    return getattr(found, "__all__", None) or defined


def main() -> None:
    """Print them."""
    warnings.simplefilter("ignore")
    logging.disable()
    package = importlib.import_module("agentlightning")
    top = sorted(name for name in dir(package) if not name.startswith("_"))
    named = {f"agentlightning.{name}": sorted(names_of(name)) for name in MODULES.split()}
    print(json.dumps({"agentlightning": top, **named}))


if __name__ == "__main__":
    main()
