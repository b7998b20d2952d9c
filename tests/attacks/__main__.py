"""Plays all attacks: `make abuse`.

On agents' confinement: a line for each attack, with what came of it, which layer refuses it (without that one it ends
otherwise), and without which layer it succeeds. On the services: a line for each, with the tests that play it, which
boundary refuses it, and what comes of it without that. Exits with 1 if one succeeds with everything in its place, or
can't be played.
"""

from __future__ import annotations

import json
import sys

from tests.attacks import agents, services


def main() -> int:
    """Play them as this user."""
    confined, served = agents.rows(agents.played("this user")), services.played()
    tried = [row for row in (*confined, *served) if row["held"] is not None]
    if "--json" in sys.argv:
        print(json.dumps({"agents": confined, "services": served}))
    else:
        print("\n".join([*agents.lines(confined), "", *services.lines(served), ""]))
        skipped = len(confined) + len(served) - len(tried)
        print(f"{sum(row['held'] for row in tried)} of {len(tried)} attacks held; skipped: {skipped}")
    return 0 if all(row["held"] for row in tried) else 1


if __name__ == "__main__":
    sys.exit(main())
