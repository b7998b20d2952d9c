-- Resources by id, and each of their versions: runs and rollouts pin an id and a version (rule 10).

-- The newest version of each.
create table resources (
    resources_id text primary key,
    version      int not null default 1,
    resources    jsonb not null,
    create_time  timestamptz not null default now(),
    update_time  timestamptz not null default now(),
    sequence     bigint generated always as identity  -- orders those of one update_time
);
create index resources_latest on resources (update_time desc, sequence desc);

create table resource_versions (
    resources_id text not null references resources on delete cascade,
    version      int not null,
    resources    jsonb not null,
    create_time  timestamptz not null,
    update_time  timestamptz not null,                -- when this version was made
    primary key (resources_id, version)
);

create function record_resource_version() returns trigger language plpgsql as $$
begin
    insert into resource_versions (resources_id, version, resources, create_time, update_time)
    values (new.resources_id, new.version, new.resources, new.create_time, new.update_time);
    return null;
end $$;
create trigger record_resource_version after insert or update of version on resources
    for each row execute function record_resource_version();

-- The resources of a new rollout: those that are named, also if they are added later; else the newest.
create function resolve_resources_v1(p_given text) returns text language sql stable as $$
    select coalesce(p_given, (select resources_id from resources order by update_time desc, sequence desc limit 1))
$$;
