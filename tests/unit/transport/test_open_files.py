"""How many connections the services may hold."""

from __future__ import annotations

import subprocess
import sys

LIMITED = """
import resource
from relight.transport.open_files import allow_open_files
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
allow_open_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 65_536), hard))
"""


def test_a_service_may_hold_as_many_connections_as_its_host_allows() -> None:
    assert subprocess.check_output([sys.executable, "-c", LIMITED], text=True) == "True\n"
