-- Inspections: retries of rollouts whose batch is closed. Rollouts of their own, which nothing but views looks at.

alter table rollouts drop constraint rollouts_kind_check,
    add constraint rollouts_kind_check check (kind in ('train', 'eval', 'external', 'preflight', 'inspect')),
    add column inspects text references rollouts;     -- the rollout that this one repeats
create index rollouts_inspections on rollouts (inspects) where inspects is not null;

-- The workflow of a rollout: `rollout/<id>`, and `rollout/<id>/inspect-<k>` of its inspections `<id>.inspect-<k>`.
create function workflow_of_v1(p_rollout text) returns text language sql immutable as $$
    select 'rollout/' || regexp_replace(p_rollout, '\.(inspect-[0-9]+)$', '/\1')
$$;
