-- What each version's files are, how large, and when they were deleted.

alter table policy_versions add column export_digest text;            -- of all files together, as their manifest has it
alter table policy_versions add column checkpoint_digest text;
alter table policy_versions add column export_bytes bigint not null default 0;
alter table policy_versions add column checkpoint_bytes bigint not null default 0;
alter table policy_versions add column export_deleted_at timestamptz;
alter table policy_versions add column checkpoint_deleted_at timestamptz;
