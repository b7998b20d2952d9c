"""The roles of the embedded Postgres, and their passwords.

`relight_owner` owns the schema and installs it. The services connect as `relight_service`, which reads and writes rows.
The superuser `relight` has no password, so no client can connect as it: the roles are made in Postgres' single-user
mode, before the server starts. A data folder without these roles (where every connection was trusted) gets them at its
next start.
"""

from __future__ import annotations

import secrets
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from string import Template

from relight.errors import StackError
from relight.processes.child import tied_to_parent
from relight.stack.stack_file import write_private

SUPERUSER, OWNER, SERVICE = "relight", "relight_owner", "relight_service"
PASSWORD_FILE = "postgres.pgpass"
HBA = """\
local all all scram-sha-256
host all all all scram-sha-256
"""
"""`pg_hba.conf`: who may connect, and how."""
PASSWORDS = Template("""
do $$$$ begin
    if to_regrole('$owner') is null then create role $owner; end if;
    if to_regrole('$service') is null then create role $service; end if;
end $$$$;

alter role $owner login password '$owner_password';

alter role $service login password '$service_password';

alter role $superuser password null;
""")
"""Single-user mode takes a blank line after a semicolon as the end of a command."""
PRIVILEGES = Template("""
do $$$$
declare
    item record;
begin
    execute format('alter database %I owner to $owner', current_database());
    execute format('revoke temporary on database %I from public', current_database());
    for item in
        select oid::regclass as name, relkind = 'c' as is_type from pg_class c
        where relnamespace = 'public'::regnamespace and relkind in ('r', 'p', 'v', 'S', 'c')
          and not exists (select from pg_depend where objid = c.oid and deptype in ('a', 'i') and relkind = 'S')
    loop
        execute format('alter %s %s owner to $owner', case when item.is_type then 'type' else 'table' end, item.name);
    end loop;
    for item in select oid::regprocedure as name from pg_proc where pronamespace = 'public'::regnamespace loop
        execute format('alter routine %s owner to $owner', item.name);
    end loop;
end $$$$;

alter default privileges for role $owner grant select, insert, update, delete on tables to $service;

alter default privileges for role $owner grant usage, select on sequences to $service;

grant select, insert, update, delete on all tables in schema public to $service;

grant usage, select on all sequences in schema public to $service;

do $$$$ begin
    if to_regclass('migrations') is not null then
        revoke insert, update, delete on migrations from $service;
    end if;
end $$$$;
""")
"""For one database: its owner is `relight_owner`, of what it holds too, and `relight_service` may use that.

Of a database whose schema is made later, `19_least_privilege.sql` takes the table `migrations` back."""


def privileges() -> str:
    """The SQL that gives the current database to its owner, and its use to the services."""
    return PRIVILEGES.substitute(owner=OWNER, service=SERVICE)


def ensure(binaries: Path, data: Path, password_file: Path, user: str | None) -> None:
    """Make the roles, with new passwords, unless that was done. The server of that data folder does not run.

    Raises:
        StackError: Postgres refuses.
    """
    hba = data / "pg_hba.conf"
    if hba.read_text() == HBA and _has_passwords(password_file):
        return
    passwords = {role: secrets.token_urlsafe(32) for role in (OWNER, SERVICE)}
    roles = {"owner": OWNER, "service": SERVICE, "superuser": SUPERUSER}
    sql = PASSWORDS.substitute(roles, owner_password=passwords[OWNER], service_password=passwords[SERVICE])
    execute_alone(binaries, data, user, sql + privileges())
    write_private(password_file, "".join(f"*:*:*:{role}:{password}\n" for role, password in passwords.items()))
    hba.write_text(HBA)  # last, so that an interrupted start does all of it again


def _has_passwords(file: Path) -> bool:
    try:
        return [line.split(":")[3] for line in file.read_text().splitlines()] == [OWNER, SERVICE]
    except (OSError, IndexError):
        return False


def execute_alone(binaries: Path, data: Path, user: str | None, sql: str) -> None:
    """Execute SQL as the superuser in single-user mode, without a server; it is in no command line and no log.

    Raises:
        StackError: a statement fails.
    """
    settings = {
        "exit_on_error": "on",
        "log_min_error_statement": "panic",  # a statement may have a password
        "scram_iterations": "1",  # these passwords can't be guessed: more would only make each connection slow
    }
    flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    command = [str(binaries / "postgres"), "--single", "-j", "-D", str(data), *flags, "postgres"]
    run_alone(command, user, data, f"can't make the roles of Postgres in {data}", sql)


def run_alone(command: Sequence[str], user: str | None, folder: Path, failure: str, given: str = "") -> None:
    """Run a program of Postgres to its end, with this standard input.

    Raises:
        StackError: it fails.
    """
    tied = tied_to_parent(command, signal.SIGKILL, user)
    done = subprocess.run(tied, cwd=folder, input=given, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StackError(f"{failure}: {done.stderr.strip()}")
