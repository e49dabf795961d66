-- What all migrations add up to; a test holds them together. For people: a new store runs the migrations.

-- A lane: the first offset kept, the next offset to come, bytes ever appended.
CREATE TABLE lanes (
    lane bigint PRIMARY KEY, slot integer NOT NULL, `first` bigint NOT NULL, `end` bigint NOT NULL,
    bytes_end bigint NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Consecutive messages of a lane, encoded together.
CREATE TABLE batches (
    lane bigint, base bigint, part integer, parts integer NOT NULL, `count` integer NOT NULL,
    published_ms bigint NOT NULL, bytes_end bigint NOT NULL, size bigint NOT NULL, meta longblob NOT NULL,
    body longblob NOT NULL, PRIMARY KEY (lane, base, part)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- A group's cursor on a lane.
CREATE TABLE `groups` (
    lane bigint, group_id bigint, `next` bigint NOT NULL, committed bigint NOT NULL, PRIMARY KEY (lane, group_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Offsets in one consumer's hands.
CREATE TABLE leases (
    lane bigint, group_id bigint, lease_id bigint, deadline_ms bigint NOT NULL,
    consumer longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    entries longblob NOT NULL,
    session longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT (''), PRIMARY KEY (lane, group_id,
    lease_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Offsets of one chunk that come back later.
CREATE TABLE waiting (
    lane bigint, group_id bigint, chunk bigint, entries longblob NOT NULL, PRIMARY KEY (lane, group_id, chunk)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Offsets that died together, [start, end).
CREATE TABLE dead (
    lane bigint, group_id bigint, start bigint, `end` bigint NOT NULL, attempts bigint NOT NULL,
    reason longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    error longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    consumer longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, dead_ms bigint NOT NULL,
    PRIMARY KEY (lane, group_id, start)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- An id that was published, and where it went.
CREATE TABLE dedup (
    lane bigint, `key` varbinary(255), `offset` bigint NOT NULL, expires_ms bigint NOT NULL,
    PRIMARY KEY (lane, `key`), KEY dedup_by_expiry (lane, expires_ms)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Something promised to happen elsewhere.
CREATE TABLE outbox (
    id bigint PRIMARY KEY, lane bigint NOT NULL, `offset` bigint NOT NULL, document longblob NOT NULL,
    slot integer NOT NULL, KEY outbox_by_lane (lane), KEY outbox_by_slot (slot, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- A declared queue, group, exchange …
CREATE TABLE catalog (
    kind varbinary(255), id bigint, parent bigint NOT NULL,
    namespace longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    name longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    document longblob NOT NULL, version bigint NOT NULL, PRIMARY KEY (id, kind), KEY catalog_by_version (version)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Something that happened under a trace id.
CREATE TABLE traces (
    namespace varbinary(1020), trace_id varbinary(1020), at_ms bigint, id bigint,
    kind longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    queue longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, queue_id bigint NOT NULL, lane bigint, `offset` bigint,
    name longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    detail longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    consumer longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, PRIMARY KEY (namespace, trace_id, at_ms,
    id),
    KEY traces_by_time (at_ms)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Who owns a slot, under which epoch, and how that came.
CREATE TABLE slots (
    slot integer PRIMARY KEY, epoch bigint NOT NULL, owner longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- An open store, and the generation of its commits (`store/sql/lost_answer.py`).
CREATE TABLE writers (
    writer varbinary(64) PRIMARY KEY, generation bigint NOT NULL, seen datetime(6) NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Batches that end at or below `below` are gone and not swept yet; those of a base below `above` are removed.
CREATE TABLE leftovers (
    lane bigint PRIMARY KEY, above bigint NOT NULL, below bigint NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Locked by commits that change rows of no lane (1), and by changes of membership (2).
CREATE TABLE shared (id integer PRIMARY KEY) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- A node that has joined and not left.
CREATE TABLE nodes (
    incarnation bigint PRIMARY KEY, name longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    url longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    version longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    lease_ms bigint NOT NULL, joined_ms bigint NOT NULL, seen_ms bigint NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Which node owns a slot. Apart from `slots`, whose rows are locked by commits under way.
CREATE TABLE slot_owners (
    slot integer PRIMARY KEY, node bigint NOT NULL, meant_for bigint NOT NULL, since_ms bigint NOT NULL,
    why longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The last incarnation and id given away, the catalog's version, and up to which deletions are forgotten.
CREATE TABLE counters (name varbinary(64) PRIMARY KEY, value bigint NOT NULL)
ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- What the nodes of this store know and nobody else does.
CREATE TABLE cluster (id integer PRIMARY KEY, secret varbinary(64) NOT NULL)
ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- What was deleted from the catalog during the last hour.
CREATE TABLE catalog_deleted (
    kind varbinary(255), id bigint, parent bigint NOT NULL,
    namespace longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    name longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    document longblob NOT NULL, version bigint NOT NULL, deleted_ms bigint NOT NULL, PRIMARY KEY (id, kind),
    KEY catalog_deleted_by_version (version), KEY catalog_deleted_by_time (deleted_ms)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- What applications have put here in transactions of their own.
CREATE TABLE enqueued (
    id bigint AUTO_INCREMENT PRIMARY KEY,
    namespace longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT ('default'),
    queue longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    exchange longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    `key` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, payload longblob NOT NULL,
    `partition` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    headers longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    priority integer NOT NULL DEFAULT 0, delay_ms bigint NOT NULL DEFAULT 0,
    not_before_ms bigint NOT NULL DEFAULT 0, ttl_ms bigint,
    dedup_id longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    content_type longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    correlation_id longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    trace_id longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, mandatory boolean NOT NULL DEFAULT true,
    enqueued_ms bigint NOT NULL DEFAULT (timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6)) DIV 1000),
    error longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, failed_ms bigint,
    KEY enqueued_by_failure (failed_ms, id),
    CONSTRAINT one_of_queue_and_exchange CHECK ((queue IS NULL) <> (exchange IS NULL)),
    CONSTRAINT namespace_has_1_to_255_characters CHECK (char_length(namespace) BETWEEN 1 AND 255),
    CONSTRAINT queue_has_1_to_255_characters CHECK (char_length(queue) BETWEEN 1 AND 255),
    CONSTRAINT exchange_has_1_to_255_characters CHECK (char_length(exchange) BETWEEN 1 AND 255),
    CONSTRAINT key_has_at_most_255_characters CHECK (char_length(`key`) <= 255),
    CONSTRAINT partition_has_at_most_1024_characters CHECK (char_length(`partition`) <= 1024),
    CONSTRAINT dedup_id_has_at_most_255_characters CHECK (char_length(dedup_id) <= 255),
    CONSTRAINT content_type_has_at_most_255_characters CHECK (char_length(content_type) <= 255),
    CONSTRAINT correlation_id_has_at_most_255_characters CHECK (char_length(correlation_id) <= 255),
    CONSTRAINT trace_id_has_at_most_255_characters CHECK (char_length(trace_id) <= 255),
    CONSTRAINT priority_is_0_to_255 CHECK (priority BETWEEN 0 AND 255),
    CONSTRAINT delay_ms_is_0_to_316224000000 CHECK (delay_ms BETWEEN 0 AND 316224000000),
    CONSTRAINT not_before_ms_is_0_to_253402300799999 CHECK (not_before_ms BETWEEN 0 AND 253402300799999),
    CONSTRAINT ttl_ms_is_0_to_316224000000 CHECK (ttl_ms BETWEEN 0 AND 316224000000),
    CONSTRAINT payload_has_at_most_16_mib CHECK (octet_length(payload) <= 16777216),
    CONSTRAINT headers_are_a_json_object CHECK (json_valid(headers) AND json_type(headers) = 'OBJECT'),
    CONSTRAINT headers_have_at_most_262144_bytes CHECK (octet_length(headers) <= 262144)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
