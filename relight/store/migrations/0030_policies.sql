-- Which policy of its run a version, a consumed attempt, a training row, a lease or an engine is of. Keys have its name
-- beside the run's, so that a run may train several policies, each with its own versions, ledger and rows.

alter table policy_versions add column policy text not null default 'policy';
alter table policy_versions drop constraint policy_versions_pkey, add primary key (run, policy, version);

alter table step_rollouts add column policy text not null default 'policy';
alter table step_rollouts
    drop constraint step_rollouts_pkey, add primary key (run, policy, rollout_id),
    drop constraint step_rollouts_run_attempt_id_key, add unique (run, policy, attempt_id);
drop index step_rollouts_by_step;
create index step_rollouts_by_step on step_rollouts (run, step, policy);

alter table training_rows add column policy text not null default 'policy';
alter table training_rows drop constraint training_rows_pkey, add primary key (run, policy, step, row_number);

-- Leases that concern no policy have the default.
alter table leases add column policy text not null default 'policy';
alter table leases drop constraint leases_pkey, add primary key (name, policy);

alter table engines add column policy text not null default 'policy';          -- whose versions it holds
alter table engine_loads add column policy text not null default 'policy';

create or replace function version_event() returns trigger language plpgsql as $$
begin
    insert into events (kind, run, step, data)
    values ('version', new.run, new.version, jsonb_build_object(
        'policy', new.policy, 'version', new.version, 'weights_hash', new.weights_hash,
        'checkpointed', new.checkpointed_at is not null));
    return null;
end $$;

-- One look of the sweeper: the process that holds the lease judges what is overdue. Null: another one holds it.
create or replace function sweep_v1(p_holder text, p_seconds double precision, p_limit int) returns jsonb language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    found_id text;
    r rollouts;
    a attempts;
    due timestamptz;
    events jsonb := '[]';
    overdue jsonb := '[]';
begin
    insert into leases as l (name, fence, holder, expires_at)
    values ('sweeper', nextval('fences'), p_holder, clock_timestamp() + make_interval(secs => p_seconds))
    on conflict (name, policy) do update set holder = excluded.holder, expires_at = excluded.expires_at,
        fence = case when l.holder = excluded.holder then l.fence else excluded.fence end
    where l.holder = excluded.holder or l.expires_at < clock_timestamp();
    if not found then
        return null;
    end if;
    for found_id in
        select rollout_id from attempts
        where lease_until is not null and ended_at is null and lease_until <= clock_timestamp()
        order by lease_until limit p_limit
    loop
        select * into r from rollouts where rollout_id = found_id for no key update skip locked;
        continue when not found;
        select * into a from attempts where rollout_id = found_id and ended_at is null for no key update;
        continue when not found or a.lease_until is null;
        due := case when r.status in ('preparing', 'running') then lease_end_v1(r.config, a) end;
        if due <= clock_timestamp() then
            a := settle_attempt_v1(r, a, case when a.started_at + make_interval(
                    secs => (r.config ->> 'timeout_seconds')::double precision) <= clock_timestamp()
                then 'timeout' else 'unresponsive' end, 'found by the sweeper');
            events := events || worker_event_v1(a);
            overdue := overdue || jsonb_build_object('attempt_id', a.attempt_id, 'rollout_id', found_id, 'status', a.status);
        else
            update attempts set lease_until = due where attempt_id = a.attempt_id;
        end if;
    end loop;
    perform sync_ended_workers_v1(events);
    if overdue = '[]' then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    return overdue;
end $$;
