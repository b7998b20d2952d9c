"""Dumps a database with the current schema and a small finished run: `python -m tests.dumps.make`.

Run it when a release closes the schema, and keep the file: databases out there look like it, and every later schema
has to be reached from it (tests/integration/operations/test_dumps.py). Plain SQL without psql's own commands.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from pathlib import Path

from relight.stack.postgres_server import binaries_folder
from relight.store.database import Database, migrations
from tests.support.postgres import create_database, postgres_server
from tests.support.small_run import play_small_run

FOLDER = Path(__file__).parent


def dump(url: str) -> str:
    """A database as SQL statements that any client can send."""
    command = [str(binaries_folder() / "pg_dump"), "--inserts", "--no-owner", "--no-privileges", url]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kept = (line for line in text.splitlines() if line and not line.startswith(("\\", "--")))
    return "\n".join(kept) + "\n"


async def _fill(url: str, folder: Path) -> None:
    database = await Database.connect(url)
    try:
        await play_small_run(database, folder)
    finally:
        await database.close()


def main() -> None:
    """Write `schema-<version>.sql`."""
    with tempfile.TemporaryDirectory(prefix="relight-dump-") as folder:
        Path(folder).chmod(0o755)
        with postgres_server(Path(folder)) as server:
            url = asyncio.run(create_database(server))
            asyncio.run(_fill(url, Path(folder)))
            target = FOLDER / f"schema-{migrations()[-1][0]:04d}.sql"
            target.write_text(dump(url).replace(folder, "/runs"))
    print(f"{target} {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
