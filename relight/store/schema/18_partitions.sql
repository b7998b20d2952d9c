-- Daily partitions of bodies, generations, call failures and spans.

-- Make the partition of a day, before rows of that day exist. False: it exists, or the default partition has such rows.
create function ensure_partition_v1(p_table text, p_day date) returns boolean language plpgsql as $$
declare
    part text := format('%s_%s', p_table, to_char(p_day, 'YYYYMMDD'));
begin
    if to_regclass(quote_ident(part)) is not null then
        return false;
    end if;
    execute format('create table %I (like %I including all)', part, p_table);
    execute format('alter table %I attach partition %I for values from (%L) to (%L)', p_table, part, p_day, p_day + 1);
    return true;
exception when check_violation then
    return false;
end $$;
