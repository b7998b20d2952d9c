-- Data sets by name, and the pieces of uploads.

-- name: keep_piece
-- A piece that is sent again replaces the earlier one.
insert into dataset_pieces (upload, piece, row_count, body) values ($1, $2, $3, $4)
on conflict (upload, piece) do update set row_count = excluded.row_count, body = excluded.body, created_at = now()

-- name: drop_old_pieces
-- Pieces of abandoned uploads.
delete from dataset_pieces where upload in (
    select upload from dataset_pieces group by upload having max(created_at) < now() - make_interval(secs => $1))

-- name: drop_pieces
delete from dataset_pieces where upload = $1

-- name: list_pieces
select piece, row_count from dataset_pieces where upload = $1 order by piece for update

-- name: read_piece
select body from dataset_pieces where upload = $1 and piece = $2

-- name: lock_dataset_name
-- One change of a name at a time; held until the transaction ends.
select pg_advisory_xact_lock(hashtextextended('dataset/' || $1, 0))

-- name: insert_dataset_once
insert into datasets (dataset_id, source, row_count) values ($1, $2, $3) on conflict do nothing returning dataset_id

-- name: insert_tasks_at
insert into tasks (dataset_id, position, task)
select $1, $2 + ordinality - 1, task::jsonb from unnest($3::text[]) with ordinality as rows (task, ordinality)

-- name: name_dataset
insert into dataset_names (name, dataset_id, upload) values ($1, $2, $3)
on conflict (name) do update set dataset_id = excluded.dataset_id, upload = excluded.upload, updated_at = now()

-- name: unname_dataset
delete from dataset_names where name = $1

-- name: view_datasets
-- $1: the data set of this name; null: all after $2.
select n.name, n.dataset_id, n.upload, n.updated_at, d.row_count as rows,
       array(select run from runs where n.dataset_id in (train_dataset, eval_dataset) order by created_at)
       || array(select c.run from commands c where c.action = 'start' and c.done_at is null
                and array['store:' || n.name, 'dataset:' || n.dataset_id]
                    && array[c.value -> 'file' -> 'data' ->> 'train', c.value -> 'file' -> 'data' ->> 'evaluation']
          ) as runs
from dataset_names n join datasets d using (dataset_id)
where case when $1::text is null then n.name > $2 else n.name = $1 end
order by n.name limit $3

-- name: read_tasks
select task from tasks where dataset_id = $1 order by position limit $2

-- name: find_named_dataset
select d.dataset_id, d.row_count from dataset_names n join datasets d using (dataset_id) where n.name = $1

-- name: row_without_field
-- The first row that lacks one of these fields, or has null there.
select t.position, f.field, jsonb_exists(t.task, f.field) as given
from tasks t cross join unnest($2::text[]) with ordinality f (field, number)
where t.dataset_id = $1 and t.task ->> f.field is null
order by t.position, f.number limit 1

-- name: lock_dataset
-- From here on no run can begin with it; waits for a run that is beginning with it.
select from datasets where dataset_id = $1 for update

-- name: hold_datasets
-- Locks those that exist until the transaction ends.
select count(*) from (select from datasets where dataset_id = any($1) for key share) held

-- name: drop_unused_dataset
-- Deletes rows that no name, no run and no requested start needs.
delete from datasets d where dataset_id = $1
  and not exists (select from dataset_names n where n.dataset_id = d.dataset_id)
  and not exists (select from runs r where d.dataset_id in (r.train_dataset, r.eval_dataset))
  and not exists (select from commands c where c.action = 'start' and c.done_at is null
                  and 'dataset:' || d.dataset_id in (c.value -> 'file' -> 'data' ->> 'train',
                                                     c.value -> 'file' -> 'data' ->> 'evaluation'))
