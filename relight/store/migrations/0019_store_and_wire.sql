-- What 0.3 takes and no promise of ours needs refused: resources that are added after they were named, and the end of an
-- attempt that a newer one has superseded.

-- The resources of a new rollout: those that are named, also where they are added later; else the newest.
create or replace function resolve_resources_v1(p_given text) returns text language sql stable as $$
    select coalesce(p_given, (select resources_id from resources order by update_time desc, sequence desc limit 1))
$$;

-- Change one attempt; keys that are there are set. One that was superseded may end, which moves no rollout: it has lost
-- its fence, and its rollout's one open attempt is another.
create or replace function update_attempt_v1(item jsonb) returns attempts language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    r rollouts := lock_queued_v1(item ->> 'rollout_id');
    a attempts := find_attempt_v1(item ->> 'rollout_id', item ->> 'attempt_id');
begin
    if item ? 'status' and item ->> 'status' <> a.status then
        if a.sequence_id < r.attempts then
            if item ->> 'status' in ('preparing', 'running') then
                raise exception 'attempt % has been superseded: it may end, but not run again', a.attempt_id
                    using errcode = 'RL409';
            end if;
        elsif a.ended_at is not null and (a.status <> 'unresponsive' or is_over_v1(r.status)) then
            raise exception 'attempt % has ended as %', a.attempt_id, a.status using errcode = 'RL409';
        end if;
        a := settle_attempt_v1(r, a, item ->> 'status', null);
    end if;
    if item ?| array['worker_id', 'last_heartbeat_time', 'metadata'] then
        update attempts set
            worker_id = case when item ? 'worker_id' then item ->> 'worker_id' else worker_id end,
            last_heartbeat = case when item ? 'last_heartbeat_time'
                then to_timestamp((item ->> 'last_heartbeat_time')::double precision) else last_heartbeat end,
            metadata = case when item ? 'metadata' then item -> 'metadata' else metadata end
        where attempt_id = a.attempt_id returning * into a;
        if item ? 'last_heartbeat_time' and a.lease_until is not null then
            update attempts set lease_until = lease_end_v1(r.config, a) where attempt_id = a.attempt_id;
        end if;
    end if;
    return a;
end $$;

-- Spans that an attempt's runner did not keep.
alter table attempts add column spans_dropped int not null default 0;

create or replace function attempt_json_v1(a attempts) returns jsonb language sql stable as $$
    select jsonb_build_object(
        'rollout_id', a.rollout_id, 'attempt_id', a.attempt_id, 'sequence_id', a.sequence_id, 'status', a.status,
        'start_time', unix_v1(a.started_at), 'last_heartbeat_time', unix_v1(a.last_heartbeat),
        'end_time', case when a.status not in ('preparing', 'running') then unix_v1(a.ended_at) end,
        'worker_id', a.worker_id, 'metadata', a.metadata, 'failure_class', a.failure_class, 'error', a.error,
        'reward', a.reward, 'spans_dropped', a.spans_dropped)
$$;

-- Names of data sets that were sent over HTTP. The rows are those of `datasets`, by hash, as runs pin them.
create table dataset_names (
    name       text primary key check (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    dataset_id text not null references datasets,
    upload     text not null,                         -- that named it: asked for again, it is done already
    updated_at timestamptz not null default now()
);
create index dataset_names_by_set on dataset_names (dataset_id);

-- Pieces of uploads that are not whole yet.
create table dataset_pieces (
    upload     text not null,
    piece      int not null check (piece >= 0),
    row_count  int not null,
    body       bytea not null,                        -- zlib-compressed rows in canonical JSON, each with its newline
    created_at timestamptz not null default now(),
    primary key (upload, piece)
);
create index dataset_pieces_by_age on dataset_pieces (created_at);
