"""Lua scripts: each is one atomic step on the server.

A script that refuses returns the reason in one word, and has written nothing: it checks everything first. Its first
write is one that Redis refuses if it has no memory left, so that it cannot stop half way. Scripts that remove begin
with a removal, and so work without memory too.

All keys of a script are in one slot, and the scripts use only commands that Redis and Valkey have in common.
"""

from __future__ import annotations

from hashlib import sha1
from typing import Final

from stateroom.store.redis.layout import CHANGING, HEAD

GRACE_SECONDS = 3600.0
"""Seconds that the keys of a session stay after its expiry, if nobody sweeps."""

MAX_TTL_SECONDS = 1e12
"""The longest time to live, in seconds: longer than any session's."""

_HEAD, _CHANGING = (", ".join(f"'{field}'" for field in fields) for fields in (HEAD, CHANGING))


class Script:
    """A Lua script, and the digest under which the server keeps it."""

    def __init__(self, text: str) -> None:
        self.text: Final = text.strip()
        self.digest: Final = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


# A note says what the index must know of a session: its birth, the number of this note, its expiry, whether it is
# closed. The caller passes it on to the index.
_NOTE = """
local function note(birth, expires, closed)
  redis.call('HSET', KEYS[1], 'indexed', expires)
  return {birth, redis.call('HINCRBY', KEYS[1], 'placed', 1), expires, closed}
end
"""

# A session has a time to live, a while beyond its expiry, for stores that nobody sweeps. It never gets shorter. It
# follows from the caller's clock or the server's, whichever leaves more time. A fork must not live longer than `held`,
# until when its ancestors do: a script that would let it answers 'hold', for how many milliseconds its parent is to
# live, and its origin. See `Lifetimes.hold`.
_TTL = f"""
local GRACE = {GRACE_SECONDS * 1000:.0f}
local function lifetime(expires, now)
  local left = tonumber(expires) - math.min(tonumber(now), tonumber(redis.call('TIME')[1]))
  return math.min(math.max(left, 0), {MAX_TTL_SECONDS:.0f}) * 1000 + GRACE
end
local function later(milliseconds)
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000) + milliseconds
end
local function hold(milliseconds, more, held)
  held = held or redis.call('HGET', KEYS[1], 'held')
  if held and tonumber(held) < later(milliseconds) then
    return {{'hold', string.format('%.0f', milliseconds + more), redis.call('HGET', KEYS[1], 'head')}}
  end
end
local function live(milliseconds)
  if redis.call('PTTL', KEYS[1]) < milliseconds then
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', milliseconds))
  end
end
"""

# KEYS: session. ARGV: milliseconds. Lets a session live so long at least; returns until when.
KEEP = Script(
    _TTL
    + """
if redis.call('EXISTS', KEYS[1]) == 0 then return 'unknown' end
local milliseconds = tonumber(ARGV[1])
local held = hold(milliseconds, GRACE)
if held then return held end
live(milliseconds)
return string.format('%.0f', later(milliseconds))
"""
)

# KEYS: session. ARGV: until when its ancestors live.
HELD = Script(
    """
local held = redis.call('HGET', KEYS[1], 'held')
if held and tonumber(held) < tonumber(ARGV[1]) then redis.call('HSET', KEYS[1], 'held', ARGV[1]) end
"""
)

# KEYS: session, and its snapshots if one is given. ARGV: revision before, revision, fence, at, entry, expiry or '',
# 'c:' and the call id or ''; and if there is more than that: whether it closes, the snapshot's revision or '', its
# body, the phase and the reward (see `optional`), digests and blobs.
APPEND = Script(
    _NOTE
    + _TTL
    + """
local key = KEYS[1]
local kept = redis.call('HMGET', key, 'revision', 'fence', 'expires', 'closed', 'indexed', ARGV[7])
if not kept[1] then return 'unknown' end
if kept[4] == '1' then return 'closed' end
if tonumber(kept[3]) <= tonumber(ARGV[4]) then return 'expired' end
if kept[6] then return 'duplicate' end
if kept[1] ~= ARGV[1] or kept[2] ~= ARGV[3] then return 'conflict' end
local fields = {'revision', ARGV[2], 'e:' .. ARGV[2], ARGV[5]}
local function set(field, value)
  fields[#fields + 1] = field
  fields[#fields + 1] = value
end
local expires, milliseconds = kept[3], false
if ARGV[6] ~= '' then
  expires = ARGV[6]
  milliseconds = lifetime(expires, ARGV[4])
  local held = hold(milliseconds, milliseconds)
  if held then return held end
  set('expires', expires)
end
if ARGV[7] ~= '' then set(ARGV[7], ARGV[2]) end
local closed = ARGV[8] == '1'
if closed then set('closed', '1') end
if ARGV[11] and ARGV[11] ~= '' then set('phase', string.sub(ARGV[11], 2)) end
if ARGV[12] and ARGV[12] ~= '' then set('reward', string.sub(ARGV[12], 2)) end
redis.call('HSET', key, unpack(fields))
if ARGV[9] and ARGV[9] ~= '' then
  redis.call('HSET', key, 's:' .. ARGV[9], ARGV[10])
  redis.call('ZADD', KEYS[2], ARGV[9], ARGV[9])
end
if milliseconds then live(milliseconds) end
for at = 13, #ARGV, 2 do
  redis.call('HSETNX', key, 'b:' .. ARGV[at], ARGV[at + 1])
end
if closed or tonumber(expires) < tonumber(kept[5]) then
  return note(redis.call('HGET', key, 'birth'), expires, ARGV[8] or '0')
end
"""
)

# KEYS: session. ARGV: now, expiry.
TOUCH = Script(
    _NOTE
    + _TTL
    + """
local kept = redis.call('HMGET', KEYS[1], 'birth', 'expires', 'closed', 'indexed')
if not kept[1] then return 'unknown' end
if kept[3] == '1' then return 'closed' end
if tonumber(kept[2]) <= tonumber(ARGV[1]) then return 'expired' end
local milliseconds = lifetime(ARGV[2], ARGV[1])
local held = hold(milliseconds, milliseconds)
if held then return held end
redis.call('HSET', KEYS[1], 'expires', ARGV[2])
live(milliseconds)
if tonumber(ARGV[2]) < tonumber(kept[4]) then return note(kept[1], ARGV[2], '0') end
"""
)

# Creates a session if a birth is given, else adds to the existing one, which must be an earlier moment.
# KEYS: session, snapshots, forks, void. ARGV: birth or '', origin, first, base, until when the ancestors of a new fork
# live or '', how many entries and snapshots; then the changing fields of the head (see `optional`), entries (revision,
# entry, 'c:' and the call id or ''), snapshots (revision, body) and blobs (digest, body).
PUT = Script(
    _NOTE
    + _TTL
    + f"local names = {{{_CHANGING}}}"
    + """
local key = KEYS[1]
local birth, origin, first, base, ancestors = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local head, fields, missing = {}, {}, {}
for at, name in ipairs(names) do
  if ARGV[7 + at] == '' then
    missing[#missing + 1] = name
  else
    head[name] = string.sub(ARGV[7 + at], 2)
    fields[#fields + 1] = name
    fields[#fields + 1] = head[name]
  end
end
local entries = 8 + #names
local snapshots = entries + 3 * tonumber(ARGV[6])
local blobs = snapshots + 2 * tonumber(ARGV[7])
local kept = redis.call('HMGET', key, 'head', 'created', 'revision', 'base', 'birth')
if birth ~= '' then
  if kept[1] then return 'taken' end
  if redis.call('EXISTS', KEYS[4]) == 1 then return 'void' end
else
  if not kept[1] then return 'unknown' end
  if kept[1] ~= origin or kept[2] ~= head.created then return 'other' end
  if tonumber(kept[3]) > tonumber(head.revision) then return 'other' end
  if tonumber(kept[4]) < tonumber(base) then base = kept[4] end
end
local milliseconds = lifetime(head.expires, head.created)
local held = hold(milliseconds, milliseconds, ancestors ~= '' and ancestors)
if held then return held end
redis.call('HSET', key, 'head', origin, 'first', first, 'base', base, unpack(fields))
if #missing > 0 then redis.call('HDEL', key, unpack(missing)) end
if birth ~= '' then redis.call('UNLINK', KEYS[2], KEYS[3]) end -- of one with this id, whose time to live has ended
for at = entries, snapshots - 1, 3 do
  redis.call('HSETNX', key, 'e:' .. ARGV[at], ARGV[at + 1])
  if ARGV[at + 2] ~= '' then redis.call('HSETNX', key, ARGV[at + 2], ARGV[at]) end
end
for at = snapshots, blobs - 1, 2 do
  redis.call('HSETNX', key, 's:' .. ARGV[at], ARGV[at + 1])
  redis.call('ZADD', KEYS[2], ARGV[at], ARGV[at])
end
for at = blobs, #ARGV, 2 do
  redis.call('HSETNX', key, 'b:' .. ARGV[at], ARGV[at + 1])
end
if ancestors ~= '' then redis.call('HSET', key, 'held', ancestors) end
live(milliseconds)
if birth ~= '' then
  redis.call('HSET', key, 'birth', birth, 'placed', 0, 'indexed', head.expires)
else
  return note(kept[5], head.expires, head.closed)
end
"""
)

# KEYS: parent, its forks. ARGV: the fork's member, the revision that it forks from, its expiry, when it was created.
# Returns until when the parent lives: longer than the fork.
ADOPT = Script(
    _TTL
    + """
local revision = redis.call('HGET', KEYS[1], 'revision')
if not revision then return 'unknown' end
if tonumber(revision) < tonumber(ARGV[2]) then return 'revision' end
local milliseconds = 2 * lifetime(ARGV[3], ARGV[4])
local held = hold(milliseconds, GRACE)
if held then return held end
redis.call('SADD', KEYS[2], ARGV[1])
live(milliseconds)
return string.format('%.0f', later(milliseconds))
"""
)

# KEYS: session. ARGV: holder, now, until. Returns the head, or the reason.
LEASE = Script(
    f"""
local kept = redis.call('HMGET', KEYS[1], 'revision', 'holder', 'leased_until')
if not kept[1] then return 'unknown' end
if kept[2] ~= ARGV[1] then
  if kept[2] and tonumber(kept[3]) > tonumber(ARGV[2]) then return 'leased' end
  redis.call('HINCRBY', KEYS[1], 'fence', 1)
end
redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'leased_until', ARGV[3])
return redis.call('HMGET', KEYS[1], {_HEAD})
"""
)

# KEYS: session. ARGV: holder, no time at all.
RELEASE = Script(
    """
local kept = redis.call('HMGET', KEYS[1], 'revision', 'holder')
if not kept[1] then return 'unknown' end
if kept[2] == ARGV[1] then
  redis.call('HDEL', KEYS[1], 'holder')
  redis.call('HSET', KEYS[1], 'leased_until', ARGV[2])
end
"""
)

# KEYS: session, snapshots. ARGV: up to which revision or '', after which or '' for the newest snapshot's.
# Returns the head's fields, the snapshot's revision and body, and the entries.
READ = Script(
    f"""
local key = KEYS[1]
local head = redis.call('HMGET', key, {_HEAD})
if not head[1] then return 'unknown' end
local range = redis.call('HMGET', key, 'first', 'base', 'revision')
local first, base, last = tonumber(range[1]), tonumber(range[2]), tonumber(range[3])
if ARGV[1] ~= '' then last = math.min(last, tonumber(ARGV[1])) end
local after, snapshot, body = 0, false, false
if ARGV[2] ~= '' then
  after = tonumber(ARGV[2])
else
  local newest = ARGV[1] ~= '' and ARGV[1] or '+inf'
  snapshot = redis.call('ZREVRANGEBYSCORE', KEYS[2], newest, '-inf', 'LIMIT', 0, 1)[1] or false
  if snapshot then
    after = tonumber(snapshot)
    body = redis.call('HGET', key, 's:' .. snapshot)
  end
end
local entries = {{}}
if first <= base and after < first and first <= last then
  entries[1] = redis.call('HGET', key, 'e:' .. string.format('%.0f', first)) or nil
end
local from = math.max(after, base) + 1
while from <= last do
  local fields = {{}}
  for revision = from, math.min(from + 999, last) do
    fields[#fields + 1] = 'e:' .. string.format('%.0f', revision)
  end
  for _, entry in ipairs(redis.call('HMGET', key, unpack(fields))) do
    if entry then entries[#entries + 1] = entry end
  end
  from = from + 1000
end
return {{head, snapshot, body, entries}}
"""
)

# KEYS: session. ARGV: 'c:' and the call id.
FIND_CALL = Script(
    """
local kept = redis.call('HMGET', KEYS[1], 'revision', ARGV[1])
if not kept[1] then return 'unknown' end
if kept[2] then return {redis.call('HGET', KEYS[1], 'e:' .. kept[2])} end
"""
)

# Removes a session, or lets it expire at once if it has forks. KEYS: session, snapshots, forks. ARGV: no time at all.
DELETE = Script(
    _NOTE
    + """
local kept = redis.call('HMGET', KEYS[1], 'birth', 'closed', 'head')
if not kept[1] then return 'unknown' end
if redis.call('SCARD', KEYS[3]) > 0 then
  redis.call('HSET', KEYS[1], 'expires', ARGV[1])
  return note(kept[1], ARGV[1], kept[2])
end
redis.call('UNLINK', KEYS[1], KEYS[2])
return {'removed', kept[1], kept[3]}
"""
)

# Whether a session has expired, as the index says. KEYS: session. ARGV: birth, now.
# Returns a note if it has not, or is closed.
LOOK = Script(
    _NOTE
    + """
local kept = redis.call('HMGET', KEYS[1], 'birth', 'expires', 'closed')
if kept[1] ~= ARGV[1] then return 'gone' end
if kept[3] == '1' or tonumber(kept[2]) > tonumber(ARGV[2]) then return note(kept[1], kept[2], kept[3]) end
"""
)

# Removes a session if it has expired and no fork reads it. KEYS: session, snapshots, forks, void. ARGV: birth, now,
# how long a birth stays void.
EXPIRE = Script(
    _NOTE
    + """
local kept = redis.call('HMGET', KEYS[1], 'birth', 'expires', 'closed')
if kept[1] ~= ARGV[1] then
  redis.call('SET', KEYS[4], '', 'PX', ARGV[3])
  if not kept[1] then redis.call('UNLINK', KEYS[2], KEYS[3]) end
  return 'gone'
end
if tonumber(kept[2]) > tonumber(ARGV[2]) then return note(kept[1], kept[2], kept[3]) end
if redis.call('SCARD', KEYS[3]) > 0 then return 'held' end
redis.call('UNLINK', KEYS[1], KEYS[2])
return 'removed'
"""
)

# KEYS: session, snapshots. ARGV: revision. Returns nothing if it has no snapshot.
PRUNE = Script(
    """
local key = KEYS[1]
local kept = redis.call('HMGET', key, 'revision', 'first', 'base')
if not kept[1] then return 'unknown' end
if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then return end
local first, below = tonumber(kept[2]), tonumber(ARGV[1])
for _, snapshot in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. ARGV[1])) do
  redis.call('HDEL', key, 's:' .. snapshot)
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. ARGV[1])
local gone = 0
for revision = math.max(tonumber(kept[3]), first) + 1, below do
  gone = gone + redis.call('HDEL', key, 'e:' .. string.format('%.0f', revision))
end
if gone > 0 then
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 1, 2) == 'c:' then
      local revision = tonumber(redis.call('HGET', key, field))
      if revision > first and revision <= below then redis.call('HDEL', key, field) end
    end
  end
  redis.call('HSET', key, 'base', ARGV[1])
end
return gone
"""
)

# Removes a part that has no session. KEYS: session, part.
CLEAR = Script("if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('UNLINK', KEYS[2]) end")

# The number of entries, snapshots, blobs and other fields of a session, and their bytes. KEYS: session.
MEASURE = Script(
    """
local kinds = {e = 1, s = 2, b = 3}
local rows, bytes = {0, 0, 0, 0}, {0, 0, 0, 0}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  local kind = string.sub(field, 2, 2) == ':' and kinds[string.sub(field, 1, 1)] or 4
  rows[kind] = rows[kind] + 1
  bytes[kind] = bytes[kind] + redis.call('HSTRLEN', KEYS[1], field) + (kind == 4 and #field or 0)
end
return {rows[1], bytes[1], rows[2], bytes[2], rows[3], bytes[3], rows[4], bytes[4]}
"""
)

# The index. Its keys are in a slot of their own.

# KEYS: by age, by age in the environment, open or closed, origins. ARGV: member, created, expiry, origin.
ANNOUNCE = Script(
    """
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
redis.call('ZADD', KEYS[3], ARGV[3], ARGV[1])
redis.call('HSET', KEYS[4], ARGV[1], ARGV[4])
"""
)

# KEYS: by age, by age in the environment, open, closed, origins, notes. ARGV: member.
DISCARD = Script(
    """
for at = 1, 4 do
  redis.call('ZREM', KEYS[at], ARGV[1])
end
redis.call('HDEL', KEYS[5], ARGV[1])
redis.call('HDEL', KEYS[6], ARGV[1])
"""
)

# KEYS: by age, open, closed, notes. ARGV: member, the number of the note, expiry, closed.
PLACE = Script(
    """
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return end
local noted = redis.call('HGET', KEYS[4], ARGV[1])
if noted and tonumber(noted) >= tonumber(ARGV[2]) then return end
redis.call('HSET', KEYS[4], ARGV[1], ARGV[2])
local here, there = KEYS[2], KEYS[3]
if ARGV[4] == '1' then here, there = there, here end
redis.call('ZADD', here, ARGV[3], ARGV[1])
redis.call('ZREM', there, ARGV[1])
"""
)

# The value of a key, or its type if it is not text. KEYS: the version's.
VERSION_OF = Script(
    """
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'none' then return end
return kind == 'string' and redis.call('GET', KEYS[1]) or kind
"""
)

# The memory of all given keys.
MEMORY = Script(
    """
local bytes = 0
for _, key in ipairs(KEYS) do
  bytes = bytes + (redis.call('MEMORY', 'USAGE', key) or 0)
end
return bytes
"""
)
