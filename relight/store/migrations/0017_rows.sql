-- What decides how a row trains: the temperature of its calls, and the group with which it shares a mini-batch.

alter table training_rows add column temperature double precision;   -- null: the step's own
alter table training_rows add column group_number int;

update training_rows t set group_number = s.group_number
from step_rollouts s where s.run = t.run and s.rollout_id = t.rollout_id;

-- An engine that was ended on purpose is not dead.
alter table engines drop constraint engines_state_check;
alter table engines add constraint engines_state_check
    check (state in ('starting', 'ready', 'loading', 'dead', 'stopped'));
