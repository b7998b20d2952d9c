-- What training writes: policy versions, the ledger and training rows. A run may train several policies, each with its
-- own versions, ledger and rows.

-- A row appears when the version's files are complete (rule 13).
create table policy_versions (
    run                   text not null references runs,
    policy                text not null default 'policy',
    version               int not null check (version >= 0),
    fence                 bigint not null default 0,
    weights_hash          text not null,
    export_path           text not null,              -- what engines load
    export_digest         text,                       -- of all files together, as their manifest says
    export_bytes          bigint not null default 0,
    export_deleted_at     timestamptz,
    checkpoint_path       text,                       -- weights, optimizer and random state; null: not checkpointed
    checkpoint_digest     text,
    checkpoint_bytes      bigint not null default 0,
    checkpoint_deleted_at timestamptz,
    forks                 int not null default 0,     -- runs that were forked from it; such a version is not deleted
    published_at          timestamptz not null default now(),
    checkpointed_at       timestamptz,
    primary key (run, policy, version)
);

create function version_event() returns trigger language plpgsql as $$
begin
    insert into events (kind, run, step, data)
    values ('version', new.run, new.version, jsonb_build_object(
        'policy', new.policy, 'version', new.version, 'weights_hash', new.weights_hash,
        'checkpointed', new.checkpointed_at is not null));
    return null;
end $$;
create trigger version_published after insert on policy_versions for each row execute function version_event();

-- The ledger: which attempts a step trained on. Unique in a run, written before the weights change.
create table step_rollouts (
    run          text not null references runs,
    policy       text not null default 'policy',
    step         int not null,
    rollout_id   text not null references rollouts,
    attempt_id   text not null references attempts,
    group_number int not null,
    reward       double precision not null,
    grader       text not null default 'agent',
    advantage    double precision,
    primary key (run, policy, rollout_id),
    unique (run, policy, attempt_id)
);
create index step_rollouts_by_step on step_rollouts (run, step, policy);

create table training_rows (
    run              text not null,
    policy           text not null default 'policy',
    step             int not null,
    row_number       int not null,
    rollout_id       text not null,
    attempt_id       text not null,
    calls            int[] not null,                  -- numbers of the calls that it was made of
    group_number     int,                             -- rows of a group are in one mini-batch
    prompt_ids       int[] not null,
    response_ids     int[] not null,
    mask             smallint[] not null,             -- 1 for tokens that the policy wrote
    advantage        double precision not null,
    weight           double precision not null,
    temperature      double precision,                -- of its calls; null: the step's
    sampled_logprobs real[] not null,
    trainer_logprobs real[],
    primary key (run, policy, step, row_number)
);
