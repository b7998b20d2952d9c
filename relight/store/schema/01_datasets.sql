-- Data sets: their rows by hash, names that clients gave them, and uploads that are not complete.

create table datasets (
    dataset_id text primary key,                      -- SHA-256 of the rows
    source     text not null,
    row_count  int not null,
    created_at timestamptz not null default now()
);

create table tasks (
    dataset_id text not null references datasets on delete cascade,
    position   int not null,
    task       jsonb not null,
    primary key (dataset_id, position)
);

-- Names of data sets that were sent over HTTP. Runs pin the hash, so a name may be given to other rows.
create table dataset_names (
    name       text primary key check (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    dataset_id text not null references datasets,
    upload     text not null,                         -- that gave the name: repeated, it changes nothing
    updated_at timestamptz not null default now()
);
create index dataset_names_by_set on dataset_names (dataset_id);

-- Pieces of uploads that are not complete.
create table dataset_pieces (
    upload     text not null,
    piece      int not null check (piece >= 0),
    row_count  int not null,
    body       bytea not null,                        -- zlib-compressed rows in canonical JSON, each with its newline
    created_at timestamptz not null default now(),
    primary key (upload, piece)
);
create index dataset_pieces_by_age on dataset_pieces (created_at);
