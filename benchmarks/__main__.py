"""All benchmarks, one after the other: `python -m benchmarks [NAME...]`."""

from __future__ import annotations

import runpy
import sys

STORE = ("store_rollouts", "store_spans", "store_reads", "store_memory")
NAMES = (
    *("runner_memory", "attempt_start", "relay", "orchestration", "gateway", "step_overhead", "redaction"),
    "trace_triplets",
    "traced_spans",
    *STORE,
)


def main() -> None:
    """Run those that are named, or all."""
    wanted = sys.argv[1:] or NAMES
    for name in wanted:
        if name not in NAMES:
            raise SystemExit(f"there is no benchmark {name!r}; there are: {', '.join(NAMES)}")
    for name in wanted:
        print(f"== {name}", flush=True)
        sys.argv = [name]
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")


if __name__ == "__main__":
    main()
