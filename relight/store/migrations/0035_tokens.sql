-- Tokens of the store service beside the admin token: each with a role, an end, and a run or all of them.

create table tokens (
    token_hash text primary key,                      -- SHA-256 hex; the text itself is kept nowhere
    name       text not null,
    role       text not null check (role in ('viewer', 'runner', 'admin')),
    run        text,                                  -- null: all runs; one may be named that has yet to begin
    created_at timestamptz not null default now(),
    expires_at timestamptz,                           -- null: never
    revoked_at timestamptz
);
create unique index tokens_by_name on tokens (name) where revoked_at is null;

-- Tokens as they are shown.
create view shown_tokens as
select token_hash, name, role, run, created_at, expires_at, revoked_at, case
    when revoked_at is not null then 'revoked'
    when expires_at <= now() then 'expired'
    else 'valid'
end as state
from tokens;
