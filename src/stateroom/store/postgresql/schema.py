"""The tables and functions in the database, created and migrated under a lock.

Sessions are in four tables. What must be one atomic step and one round trip is a function. Each migration runs once, in
order; the table `stateroom_migrations` lists those that ran. Names that begin with `@.` are in the store's schema.

Ids and other texts are stored as bytes (see `statements`); `SET bytea_output = escape` makes psql show them as text.
"""

from __future__ import annotations

from zlib import crc32

from stateroom.errors import ForeignStore, StoreUnavailable
from stateroom.store.postgresql.binary import TEXT, array, text, whole
from stateroom.store.postgresql.connection import LONG_ANSWER_SECONDS, PostgresLink, transaction
from stateroom.store.postgresql.statements import in_schema
from stateroom.store.records import check_version

TABLES = """
-- In the order of the fields of a `Head`, so that one is a row.
CREATE TABLE @.sessions (
    id bytea PRIMARY KEY,
    environment bytea NOT NULL,
    owner bytea NOT NULL,
    created float8 NOT NULL,
    expires float8 NOT NULL,
    revision bigint NOT NULL,
    closed boolean NOT NULL,
    parent bytea,
    parent_revision bigint NOT NULL,
    fence bigint NOT NULL,
    holder bytea,
    leased_until float8 NOT NULL,
    phase bytea,
    reward float8
) WITH (fillfactor = 50);  -- a commit moves the head within its page, so that no index is touched

CREATE INDEX sessions_by_age ON @.sessions (created, id);
CREATE INDEX sessions_by_expiry ON @.sessions (expires, closed);
CREATE INDEX sessions_by_owner ON @.sessions (owner, created, id);
CREATE INDEX sessions_by_reward ON @.sessions (reward, created, id) WHERE reward IS NOT NULL;
CREATE INDEX sessions_by_parent ON @.sessions (parent) WHERE parent IS NOT NULL;

CREATE TABLE @.entries (
    session bytea NOT NULL,
    revision bigint NOT NULL,
    at float8 NOT NULL,
    kind bytea NOT NULL,
    call_id bytea,
    body bytea NOT NULL,
    PRIMARY KEY (session, revision)
);
CREATE UNIQUE INDEX entries_by_call ON @.entries (session, call_id) WHERE call_id IS NOT NULL;

CREATE TABLE @.snapshots (
    session bytea NOT NULL,
    revision bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (session, revision)
);

CREATE TABLE @.blobs (
    session bytea NOT NULL,
    digest bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (session, digest)
);

-- Bodies may be compressed or encrypted already: the server must not try.
ALTER TABLE @.entries ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE @.snapshots ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE @.blobs ALTER COLUMN body SET STORAGE EXTERNAL;
"""

APPEND = """
-- Adds an entry to a session. Returns 'done' if it was added, else why not.
CREATE FUNCTION @.append_one(
    wanted bytea, next_revision bigint, given_fence bigint, given_kind bytea, given_at float8, given_body bytea,
    given_call_id bytea, new_expires float8, closes boolean, new_phase bytea, new_reward float8,
    snapshot_revision bigint, snapshot_body bytea, blob_digests bytea[], blob_bodies bytea[]
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    refusal text;
BEGIN
    UPDATE @.sessions
    SET revision = next_revision, expires = coalesce(new_expires, expires), closed = closes,
        phase = coalesce(new_phase, phase), reward = coalesce(new_reward, reward)
    WHERE id = wanted AND revision = next_revision - 1 AND fence = given_fence AND NOT closed AND expires > given_at
        AND NOT EXISTS (SELECT FROM @.entries WHERE session = wanted AND call_id = given_call_id);
    IF NOT FOUND THEN
        SELECT CASE
            WHEN closed THEN 'closed'
            WHEN expires <= given_at THEN 'expired'
            WHEN EXISTS (SELECT FROM @.entries WHERE session = wanted AND call_id = given_call_id) THEN 'duplicate'
            ELSE 'conflict'
        END INTO refusal FROM @.sessions WHERE id = wanted;
        RETURN coalesce(refusal, 'unknown');
    END IF;
    INSERT INTO @.entries (session, revision, kind, at, body, call_id)
    VALUES (wanted, next_revision, given_kind, given_at, given_body, given_call_id);
    IF snapshot_body IS NOT NULL THEN
        INSERT INTO @.snapshots (session, revision, body) VALUES (wanted, snapshot_revision, snapshot_body)
        ON CONFLICT DO NOTHING;
    END IF;
    IF blob_digests IS NOT NULL THEN
        INSERT INTO @.blobs (session, digest, body)
        SELECT wanted, given.* FROM unnest(blob_digests, blob_bodies) AS given
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN 'done';
END $$;

-- The same for several sessions, one entry for each; returns a word for each. `last_blobs` says where the blobs of
-- each end. Every worker sorts the ids in the same order, and heads are locked in it, so that batches never deadlock.
CREATE FUNCTION @.append(
    ids bytea[], revisions bigint[], fences bigint[], kinds bytea[], times float8[], bodies bytea[], call_ids bytea[],
    expiries float8[], closings boolean[], phases bytea[], rewards float8[],
    snapshot_revisions bigint[], snapshot_bodies bytea[], blob_digests bytea[], blob_bodies bytea[], last_blobs bigint[]
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    words text := '';
    first_blob bigint := 1;
BEGIN
    FOR i IN 1 .. cardinality(ids) LOOP
        words := words || ' ' || @.append_one(
            ids[i], revisions[i], fences[i], kinds[i], times[i], bodies[i], call_ids[i], expiries[i], closings[i],
            phases[i], rewards[i], snapshot_revisions[i], snapshot_bodies[i],
            blob_digests[first_blob:last_blobs[i]], blob_bodies[first_blob:last_blobs[i]]
        );
        first_blob := last_blobs[i] + 1;
    END LOOP;
    RETURN words;
END $$;
"""

CREATE = """
-- Adds a session. Returns NULL if it was added; else 'taken', or 'unknown' if there is no such parent, or 'revision' if
-- that has not reached the revision. The parent is locked against removal, and nothing else.
CREATE FUNCTION @.create_session(
    head @.sessions, revisions bigint[], kinds bytea[], times float8[], bodies bytea[], call_ids bytea[],
    snapshot_revisions bigint[], snapshot_bodies bytea[], blob_digests bytea[], blob_bodies bytea[]
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    reached bigint;
BEGIN
    IF EXISTS (SELECT FROM @.sessions WHERE id = head.id) THEN
        RETURN 'taken';
    END IF;
    IF head.parent IS NOT NULL THEN
        SELECT revision INTO reached FROM @.sessions WHERE id = head.parent FOR KEY SHARE;
        IF reached IS NULL THEN
            RETURN 'unknown';
        ELSIF reached < head.parent_revision THEN
            RETURN 'revision';
        END IF;
    END IF;
    INSERT INTO @.sessions SELECT head.* ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN  -- another worker was quicker
        RETURN 'taken';
    END IF;
    INSERT INTO @.entries (session, revision, kind, at, body, call_id)
    SELECT head.id, given.* FROM unnest(revisions, kinds, times, bodies, call_ids) AS given;
    INSERT INTO @.snapshots (session, revision, body)
    SELECT head.id, given.* FROM unnest(snapshot_revisions, snapshot_bodies) AS given;
    INSERT INTO @.blobs (session, digest, body)
    SELECT head.id, given.* FROM unnest(blob_digests, blob_bodies) AS given;
    RETURN NULL;
END $$;
"""

LOAD = """
CREATE TYPE @.loaded AS (head @.sessions, revision bigint, kind bytea, at float8, body bytea, call_id bytea);

-- The first row is a session's head. A row with a body but no kind is its newest snapshot up to a revision, the newest
-- by default; the others are the entries since up to there, in order. All is of the moment of the query that asks.
CREATE FUNCTION @.load(wanted bytea, until bigint) RETURNS SETOF @.loaded LANGUAGE plpgsql STABLE AS $$
DECLARE
    head @.sessions;
    base bigint;
BEGIN
    SELECT * INTO head FROM @.sessions WHERE id = wanted;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    until := coalesce(until, head.revision);
    SELECT revision INTO base FROM @.snapshots
    WHERE session = wanted AND revision <= until ORDER BY revision DESC LIMIT 1;
    RETURN QUERY SELECT head, NULL::bigint, NULL::bytea, NULL::float8, NULL::bytea, NULL::bytea;
    RETURN QUERY SELECT NULL::@.sessions, revision, NULL::bytea, NULL::float8, body, NULL::bytea FROM @.snapshots
    WHERE session = wanted AND revision = base;
    RETURN QUERY SELECT NULL::@.sessions, entry.revision, kind, at, body, call_id FROM @.entries AS entry
    WHERE session = wanted AND entry.revision > coalesce(base, 0) AND entry.revision <= until ORDER BY entry.revision;
END $$;
"""

REMOVE = """
-- Removes those of some locked sessions that no fork reads; returns their number.
CREATE FUNCTION @.remove(ids bytea[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    removed bytea[];
BEGIN
    WITH gone AS (
        DELETE FROM @.sessions AS head
        WHERE id = ANY (ids) AND NOT EXISTS (SELECT FROM @.sessions AS fork WHERE fork.parent = head.id)
        RETURNING id
    )
    SELECT coalesce(array_agg(id), '{}') INTO removed FROM gone;
    DELETE FROM @.entries WHERE session = ANY (removed);
    DELETE FROM @.snapshots WHERE session = ANY (removed);
    DELETE FROM @.blobs WHERE session = ANY (removed);
    RETURN cardinality(removed);
END $$;

-- Removes some sessions that have expired, except those that a fork reads, and those that another worker has locked;
-- returns their number. Only once the heads are locked is it certain that no fork comes.
CREATE FUNCTION @.sweep(now float8, most bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN @.remove(ARRAY(
        SELECT id FROM @.sessions AS head
        WHERE expires <= now AND NOT EXISTS (SELECT FROM @.sessions AS fork WHERE fork.parent = head.id)
        ORDER BY expires LIMIT most
        FOR UPDATE SKIP LOCKED
    ));
END $$;

-- Removes a session, or expires it at once if a fork reads it; returns whether there was one.
CREATE FUNCTION @.delete_session(wanted bytea) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM @.sessions WHERE id = wanted FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF @.remove(ARRAY[wanted]) = 0 THEN
        UPDATE @.sessions SET expires = 0 WHERE id = wanted;
    END IF;
    RETURN true;
END $$;
"""

MIGRATIONS = [TABLES + APPEND + CREATE + LOAD + REMOVE]
"""Each makes a version of the tables from the one before. A released one never changes."""

SET_UP = """
CREATE TABLE IF NOT EXISTS @.stateroom_migrations (version int PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now())
"""


async def set_up(link: PostgresLink, schema: str) -> None:
    """Check that the schema is ours, and bring it to our version; many workers may do so at once."""
    ((isolation,),) = await link.ask(b"SELECT current_setting('transaction_isolation')")
    if isolation != "read committed":
        raise StoreUnavailable(
            f"the default isolation level is {isolation!r}, but Stateroom needs 'read committed'; run "
            "ALTER ROLE ... SET default_transaction_isolation = 'read committed'"
        )
    if await _version(link, schema) == len(MIGRATIONS):
        return
    async with transaction(link):
        key = crc32(f"stateroom {schema}".encode())
        await link.ask(b"SELECT pg_advisory_xact_lock($1::bigint)", [whole(key)], LONG_ANSWER_SECONDS)
        version = await _version(link, schema)  # another worker may have been quicker
        if version == 0:
            await _begin(link, schema)
        for number, migration in enumerate(MIGRATIONS[version:], version + 1):
            await link.run(in_schema(migration, schema))
            await link.run(in_schema(f"INSERT INTO @.stateroom_migrations (version) VALUES ({number})", schema))


async def _version(link: PostgresLink, schema: str) -> int:
    """The version of the tables; 0 if there are none."""
    if not await _tables(link, schema, "stateroom_migrations"):
        return 0
    ((version,),) = await link.ask(in_schema("SELECT coalesce(max(version), 0) FROM @.stateroom_migrations", schema))
    check_version(f"the schema {schema!r}", version, len(MIGRATIONS))
    return int(version)


async def _begin(link: PostgresLink, schema: str) -> None:
    """Create the schema if it does not exist; it must not have tables with our names."""
    if not await link.ask(b"SELECT FROM pg_namespace WHERE nspname = $1", [schema.encode()]):
        await link.run(f'CREATE SCHEMA "{schema}"'.encode())
    taken = await _tables(link, schema, "sessions", "entries", "snapshots", "blobs")
    if taken:
        raise ForeignStore(
            f"the schema {schema!r} belongs to another program: it already has a table {taken[0]!r}; "
            "choose another schema with ?schema=NAME"
        )
    await link.run(in_schema(SET_UP, schema))


async def _tables(link: PostgresLink, schema: str, *names: str) -> list[str]:
    """Which of some tables exist. Reads the catalogue, because `to_regclass` may be cached."""
    rows = await link.ask(
        b"SELECT relname::text FROM pg_class JOIN pg_namespace AS space ON space.oid = relnamespace "
        b"WHERE nspname::text = $1 AND relname::text = ANY ($2::text[])",
        [schema.encode(), array(TEXT, map(text, names))],
    )
    return [name for (name,) in rows]
