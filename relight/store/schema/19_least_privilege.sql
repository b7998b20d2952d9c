-- What needs the owner of the tables, for services that connect as another role: making and dropping the partition of a
-- day. Both run as the owner, with the search path that the schema was installed with.

alter function ensure_partition_v1(text, date) security definer;
alter function ensure_partition_v1(text, date) set search_path from current;

-- Drop the partition of a day with its rows, if it is there.
create function drop_partition_v1(p_name text) returns void language plpgsql
security definer set search_path from current as $$
begin
    if p_name !~ '^(bodies|generations|call_failures|spans)_\d{8}$' then
        raise exception 'only partitions of days are dropped, given %', p_name;
    end if;
    execute format('drop table if exists %I', p_name);
end $$;

-- Which files were applied is the owner's to write.
do $$
declare
    other name;
begin
    for other in
        select distinct grantee from information_schema.role_table_grants
        where table_schema = current_schema() and table_name = 'migrations' and grantee not in (current_user, 'PUBLIC')
    loop
        execute format('revoke insert, update, delete on migrations from %I', other);
    end loop;
end $$;
