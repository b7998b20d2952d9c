"""Write `relight/observability/secret_rules.json` and its licence from gitleaks' published Go module.

    python scripts/secret_rules.py [--version v8.30.1]

Needs `go`, whose client checks the module against the public checksum database. Go's regular expressions are RE2's.
What changes: `[\\w.-]{0,50}?` before a vendor's name goes, since no secret depends on it; backslashes may stand before
quotes, as in JSON within a text; and any character that no token has may follow. Rules without use here are listed with
the reason.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import re2

MODULE = "github.com/zricethezav/gitleaks/v8"
VERSION = "v8.30.1"
RULES = Path(__file__).parents[1] / "relight" / "observability" / "secret_rules.json"
LICENCE = RULES.with_name("secret_rules.LICENSE")
BEGINNINGS = (r"(?i)[\w.-]{0,50}?", r"[\w.-]{0,50}?(?i:[\w.-]{0,50}?")
END = r"""(?:[\x60'"\s;]|\\[nr]|$)"""
END_HERE = r"(?:[^\w+/=-]|$)"
BEFORE, AFTER = r"""[\s'"]{0,3}(?:=|>|:{1,3}=""", r"""[\x60'"\s=]{0,5}"""
BEFORE_HERE, AFTER_HERE = r"""[\s'"\\]{0,6}(?:=|>|:{1,3}=""", r"""[\x60'"\s=\\]{0,8}"""
NAMED = "values under such names are found whatever their shape (`secret_names.py`)"
PUBLIC = "an identifier that its vendor calls public"
LEFT_OUT = {
    "generic-api-key": NAMED,
    "hashicorp-tf-password": NAMED,
    "freemius-secret-key": NAMED,
    "nuget-config-password": NAMED,
    "curl-auth-header": NAMED,
    "curl-auth-user": "commands have a rule of their own (`secret_shapes.py`)",
    "kubernetes-secret-yaml": "names and decoded values find the secrets in it",
    "private-key": "`secret_shapes.py` also finds keys that are cut or escaped",
    "sourcegraph-access-token": "it takes every git hash for a token",
    "facebook-access-token": "its `%` takes ordinary percent-encoded numbers for tokens",
    "flutterwave-public-key": PUBLIC,
    "lob-pub-api-key": PUBLIC,
    "mailgun-pub-key": PUBLIC,
    "sumologic-access-id": PUBLIC,
    "sendbird-access-id": PUBLIC,
}


def module_folder(version: str) -> Path:
    """The module's folder, downloaded by Go's own client."""
    answer = subprocess.run(
        ["go", "mod", "download", "-json", f"{MODULE}@{version}"], check=True, capture_output=True, cwd="/"
    )
    return Path(json.loads(answer.stdout)["Dir"])


def translated(rule: dict[str, Any]) -> dict[str, Any]:
    """One rule as the package reads it.

    Raises:
        ValueError: why the rule is of no use here.
    """
    name = rule["id"]
    if name in LEFT_OUT:
        raise ValueError(LEFT_OUT[name])
    if name.endswith("-client-id"):
        raise ValueError(PUBLIC)
    if "regex" not in rule:
        raise ValueError("it looks at files' names alone")
    pattern = rule["regex"]
    if pattern.startswith(BEGINNINGS[0]):
        pattern = f"(?i){pattern.removeprefix(BEGINNINGS[0])}"
    if pattern.startswith(BEGINNINGS[1]):
        pattern = f"(?i:{pattern.removeprefix(BEGINNINGS[1])}"
    assigned = BEFORE in pattern
    pattern = pattern.replace(BEFORE, BEFORE_HERE).replace(AFTER, AFTER_HERE).replace(END, END_HERE)
    try:
        re2.compile(pattern)
    except re2.error as error:
        raise ValueError(f"RE2 does not read it: {error}") from error
    return {
        "id": name,
        "pattern": pattern,
        "keywords": rule["keywords"],
        "entropy": rule.get("entropy", 0),
        "assigned": assigned,
    }


def table(config: dict[str, Any], version: str) -> dict[str, Any]:
    """All rules of gitleaks' configuration, and those left out with the reason."""
    rules: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for rule in config["rules"]:
        try:
            rules.append(translated(rule))
        except ValueError as error:
            left_out[rule["id"]] = str(error)
    return {"source": f"https://{MODULE}", "version": version, "licence": "MIT", "rules": rules, "left_out": left_out}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default=VERSION)
    version = parser.parse_args().version
    folder = module_folder(version)
    config = tomllib.loads((folder / "config" / "gitleaks.toml").read_text(encoding="utf-8"))
    written = table(config, version)
    RULES.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    LICENCE.write_bytes((folder / "LICENSE").read_bytes())
    print(f"{RULES}: {len(written['rules'])} rules of gitleaks {version}; {len(written['left_out'])} left out")


if __name__ == "__main__":
    main()
