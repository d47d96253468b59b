-- What is queried has a column of its own; the whole of a record is its body (JSON).

CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    gateway BLOB NOT NULL,
    key BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    -- The change sequence when a sandbox was last swept: numbers are never given twice.
    seq INTEGER NOT NULL,
    -- The newest change of any sandbox that was swept: who asks from before must list anew.
    swept_seq INTEGER NOT NULL,
    -- Up to which change the sweep has looked for operations to forget.
    trimmed_seq INTEGER NOT NULL
) STRICT;

CREATE TABLE sandboxes (
    id BLOB PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    driver TEXT NOT NULL,
    phase TEXT NOT NULL,
    tombstone_at INTEGER,
    revision INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    -- How many operations run or wait. They are in the body.
    in_line INTEGER NOT NULL,
    -- Whether compute may exist.
    may_exist INTEGER NOT NULL,
    -- What it holds of the gateway's capacity.
    running INTEGER NOT NULL,
    cpu_millis INTEGER NOT NULL,
    memory_bytes INTEGER NOT NULL,
    disk_bytes INTEGER NOT NULL,
    -- Whether it has anything in line, may have compute, or holds capacity.
    active INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;

-- Each index that a step changes is one more page to write and to wait for: a column belongs in
-- one only where a query needs it there.

-- A name is held until its delete has ended.
CREATE UNIQUE INDEX sandboxes_name ON sandboxes (tenant, name) WHERE tombstone_at IS NULL;
CREATE INDEX sandboxes_phase ON sandboxes (tenant, phase, id);
CREATE INDEX sandboxes_driver ON sandboxes (driver) WHERE tombstone_at IS NULL;
CREATE INDEX sandboxes_seq ON sandboxes (seq);
CREATE INDEX sandboxes_deleting ON sandboxes (id) WHERE phase = 'deleting';
CREATE INDEX sandboxes_tombstones ON sandboxes (tombstone_at) WHERE tombstone_at IS NOT NULL;
-- Sleeping sandboxes that hold nothing are not in it: a sum, a recovery and a look at what is awake
-- cost what is in use.
CREATE INDEX sandboxes_active
    ON sandboxes (id, may_exist, running, cpu_millis, memory_bytes, disk_bytes)
    WHERE active = 1;

CREATE TABLE labels (
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    sandbox BLOB NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    PRIMARY KEY (key, value, sandbox)
) STRICT, WITHOUT ROWID;
CREATE INDEX labels_sandbox ON labels (sandbox);

-- A row is written when an operation is accepted, and again when it ends. In between it is as its
-- sandbox has it.
CREATE TABLE operations (
    id BLOB PRIMARY KEY,
    sandbox BLOB NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    tenant TEXT NOT NULL,
    -- NULL: in line.
    ended_at INTEGER,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX operations_sandbox ON operations (sandbox, id);

-- The ledger. A row outlives its operation: it is the receipt.
CREATE TABLE effects (
    sandbox BLOB NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    fence INTEGER NOT NULL,
    serial INTEGER NOT NULL,
    kind TEXT NOT NULL,
    native_ref TEXT NOT NULL,
    -- NULL: not settled.
    outcome TEXT,
    recorded_at INTEGER NOT NULL,
    PRIMARY KEY (sandbox, fence, serial)
) STRICT, WITHOUT ROWID;

CREATE TABLE debts (
    sandbox BLOB NOT NULL,
    fence INTEGER NOT NULL,
    serial INTEGER NOT NULL,
    reference TEXT NOT NULL,
    kind TEXT NOT NULL,
    due_at INTEGER NOT NULL,
    PRIMARY KEY (sandbox, fence, serial, reference)
) STRICT, WITHOUT ROWID;
CREATE INDEX debts_due ON debts (due_at);

-- By the day on which a key expires: what is over is one range, and no index of times is written.
CREATE TABLE idempotency (
    day INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    method TEXT NOT NULL,
    key TEXT NOT NULL,
    body_hash BLOB NOT NULL,
    sandbox BLOB NOT NULL,
    -- NULL: there was nothing to do.
    operation BLOB,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (day, tenant, method, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE process_results (
    sandbox BLOB NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    process BLOB NOT NULL,
    exited_at INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (sandbox, process)
) STRICT;
CREATE INDEX process_results_newest ON process_results (sandbox, exited_at);
CREATE INDEX process_results_age ON process_results (exited_at);
