"""The Lua scripts that an engine runs: what must happen there at once, or not at all.

Each compares before it changes, so that it may run twice. They need Redis 7, or Valkey. The keys of shard N of a
cluster with the name NAME:

    {NAME:N}:state          a hash: version, epoch, stamp, renewals, node, address, secret, position ("EPOCH.NUMBER"),
                            ttl, successor, lineage, and how many shards there are; and what must be there: "files",
                            how many, and "tail", the file that was written last, with its bytes
    {NAME:N}:files          a hash: the size of each file
    {NAME:N}:file:FILE      the bytes of a file, but for the zeros at its end that were never written
    {NAME:0}:nodes          a hash: each node, with its address, its load and the time of its last report

All of a shard share a hash tag, so Redis Cluster keeps them in one place.
"""

from __future__ import annotations

from hashlib import sha1
from typing import Final

VERSIONS: Final = ("1", "2")
"""Of these keys: with one shard, and with more, whose nodes must all know that there are others."""


def version_of(shards: int) -> str:
    """The version of the keys of a cluster with this many shards."""
    return VERSIONS[shards > 1]


class Script:
    """A script, and the name by which an engine knows it."""

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        self.sha = sha1(self.text).hexdigest().encode()
        self.call = b"$7\r\nEVALSHA\r\n$40\r\n%b\r\n" % self.sha
        """The beginning of the command that runs it, as it is sent."""


_COMMIT: Final = """\
local held = redis.call('HMGET', KEYS[1], 'epoch', 'position', 'stamp')
local epoch, position = held[1] or '0', held[2] or '0.0'
if held[3] ~= ARGV[1] or epoch ~= ARGV[2] then
  return {epoch}
end
if position == ARGV[3] then
  local at, count, more, tail, length = 5, #ARGV, 0, nil, nil
  while at < count do
    local what, key = ARGV[at], KEYS[tonumber(ARGV[at + 1])]
    if what == 'w' then
      tail, length = key, redis.call('SETRANGE', key, ARGV[at + 2], ARGV[at + 3])
      at = at + 4
    else
      tail, length = KEYS[2], ''
      -- The key of a file begins with as many bytes as that of the hash of files has.
      local name = string.sub(key, #KEYS[2] + 1)
      if what == 'c' then
        redis.call('DEL', key)
        more = more + redis.call('HSET', KEYS[2], name, ARGV[at + 2])
        at = at + 3
      elseif what == 'd' then
        redis.call('DEL', key)
        more = more - redis.call('HDEL', KEYS[2], name)
        at = at + 2
      elseif what == 'm' then
        local other = KEYS[tonumber(ARGV[at + 2])]
        local size = redis.call('HGET', KEYS[2], name) or '0'
        if redis.call('EXISTS', key) == 1 then
          redis.call('RENAME', key, other)
        else
          redis.call('DEL', other)
        end
        more = more - redis.call('HDEL', KEYS[2], name)
        more = more + redis.call('HSET', KEYS[2], string.sub(other, #KEYS[2] + 1), size)
        at = at + 3
      else
        local size = tonumber(ARGV[at + 2])
        if size == 0 then
          redis.call('DEL', key)
        elseif redis.call('STRLEN', key) > size then
          redis.call('SET', key, redis.call('GETRANGE', key, 0, size - 1))
        end
        more = more + redis.call('HSET', KEYS[2], name, ARGV[at + 2])
        at = at + 3
      end
    end
  end
  if more ~= 0 then
    if redis.call('HGET', KEYS[1], 'files') then
      redis.call('HINCRBY', KEYS[1], 'files', more)
    else
      redis.call('HSET', KEYS[1], 'files', #redis.call('HGETALL', KEYS[2]) / 2)
    end
  end
  if tail then
    redis.call('HSET', KEYS[1], 'position', ARGV[4], 'tail', string.sub(tail, #KEYS[2] + 1) .. ' ' .. length)
    return 1
  end
elseif position ~= ARGV[4] then
  return {epoch, position}
end
redis.call('HSET', KEYS[1], 'position', ARGV[4])
return 1
"""

COMMIT: Final = Script("#!lua\n" + _COMMIT)
"""KEYS: state, files, and the key of each file. ARGV: the stamp and the epoch of the lease, the position before, its
position, the operations.

An operation is its letter, the number of its key in KEYS, and what else it has. Returns 1 if the commit is the last
one; else the epoch, and the position if the lease is that of the commit, and nothing has happened.
"""

COMMIT_BEYOND: Final = Script("#!lua flags=allow-oom\n" + _COMMIT)
"""The same, also beyond the limit of memory."""

FIELDS: Final = (
    "version",
    "epoch",
    "renewals",
    "node",
    "address",
    "secret",
    "position",
    "ttl",
    "successor",
    "lineage",
    "shards",
)
"""The fields of the state, in the order in which the scripts below return them."""

_STATE: Final = "return redis.call('HMGET', KEYS[1], {})\n".format(", ".join([repr(each) for each in FIELDS]))

REPORT: Final = Script(
    """\
#!lua flags=allow-oom
local nodes = KEYS[1]
local now = tonumber(redis.call('TIME')[1])
if redis.call('HSET', nodes, ARGV[1], ARGV[2] .. ' ' .. now) == 1 then
  local known = redis.call('HGETALL', nodes)
  for at = 1, #known, 2 do
    if now - tonumber(string.match(known[at + 1], '%d+$') or '0') > 60 then
      redis.call('HDEL', nodes, known[at])
    end
  end
end
return 1
"""
)
"""KEYS: nodes. ARGV: the node; its address, and its load.

When a node is new, those are forgotten that have not reported for a minute.
"""

SHARDS: Final = Script(
    """\
#!lua flags=allow-oom
local held = redis.call('HMGET', KEYS[1], 'shards', 'epoch')
local shards = held[1]
if not shards and held[2] then
  shards = '1'
end
if ARGV[1] == '0' or (shards and shards ~= ARGV[1]) then
  return tonumber(shards or '0')
end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'shards', ARGV[1])
return tonumber(ARGV[1])
"""
)
"""KEYS: state of shard 0. ARGV: how many shards there are to be, or 0; the version then.

Returns how many there are. If it is what is wanted, it is written once more, so that waiting for the replicas means
something.
"""

_HELD: Final = """\
#!lua flags=allow-oom
local held = redis.call('HMGET', KEYS[1], 'epoch', 'secret', 'node', 'stamp', 'renewals')
local epoch, stamp = tonumber(held[1] or '0'), string.sub(redis.sha1hex(held[2] or ''), 1, 16)
local is_own = epoch == tonumber(ARGV[1]) and stamp == ARGV[2]
"""
"""The stamp is not read: an earlier release has kept none, or left another one behind."""

_WRITE: Final = """\
  redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'stamp', ARGV[2], 'version', ARGV[3], 'renewals', ARGV[5],
    'node', ARGV[6], 'address', ARGV[7], 'secret', ARGV[8], 'ttl', ARGV[9], 'lineage', ARGV[10], 'successor', '')
  if ARGV[4] ~= '' then
    redis.call('HSET', KEYS[1], 'shards', ARGV[4])
  end
end
"""

MARK: Final = Script(
    """\
#!lua flags=allow-oom
if not redis.call('HGET', KEYS[1], 'renewals') then
  redis.call('HSET', KEYS[1], 'renewals', ARGV[1])
end
"""
    + _STATE
)
"""KEYS: state. ARGV: the number of renewals of an engine that has had no leader."""

TAKE: Final = Script(
    _HELD
    + """\
if is_own or (epoch == tonumber(ARGV[11]) and stamp == ARGV[12] and (held[5] or '0') == ARGV[13]) then
  if held[4] ~= stamp then
    redis.call('HDEL', KEYS[1], 'files', 'tail')
  end
"""
    + _WRITE
    + _STATE
)
"""KEYS: state. ARGV: epoch and stamp of the new lease, the version, how many shards there are or '', renewals, node,
address, secret, TTL and lineage of the lease; epoch, stamp and renewals of the one that was seen.

An earlier release that has led does not keep what must be there.
"""

RENEW: Final = Script(
    _HELD
    + """\
if is_own then
  if held[3] == ARGV[6] then
    redis.call('HINCRBY', KEYS[1], 'renewals', 1)
  end
elseif ARGV[11] == '1' and epoch < tonumber(ARGV[1]) and (not held[2] or string.find(ARGV[10], stamp, 1, true)) then
"""
    + _WRITE
    + _STATE
)
"""KEYS: state. ARGV: the lease, as TAKE has it; 1 if an engine that has lost it gets it again."""

RELEASE: Final = Script(
    _HELD
    + """\
if is_own then
  redis.call('HSET', KEYS[1], 'node', '', 'successor', ARGV[3])
end
"""
    + _STATE
)
"""KEYS: state. ARGV: the epoch and the stamp of the lease; the node that takes the lease at once, or ''."""

MOVE: Final = Script(
    """\
#!lua flags=allow-oom
local node = redis.call('HGET', KEYS[1], 'node')
if node and node ~= '' then
  redis.call('HSET', KEYS[1], 'successor', ARGV[1])
end
"""
    + _STATE
)
"""KEYS: state. ARGV: the node that the leader is to hand over to, or ''."""

RIGHTS: Final = Script(
    """\
#!lua flags=no-writes
local state, files, file, nodes = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local wanted = {
  {'HMGET', state, 'epoch'}, {'HGET', state, 'epoch'}, {'HSET', state, 'epoch', '1'},
  {'HINCRBY', state, 'renewals', '1'}, {'HDEL', files, 'a'}, {'HGETALL', files}, {'HSET', nodes, 'a', 'b'}, {'TIME'},
  {'SETRANGE', file, '0', 'a'}, {'GETRANGE', file, '0', '1'}, {'STRLEN', file}, {'EXISTS', file}, {'DEL', file},
  {'SET', file, 'a'}, {'RENAME', file, file}, {'WAIT', '0', '1'},
}
local refused = {}
for _, each in ipairs(wanted) do
  if not redis.acl_check_cmd(unpack(each)) then
    table.insert(refused, each[1])
  end
end
return refused
"""
)
"""KEYS: state, files, any file, nodes. Returns the commands that the user may not give, so that none fails half-way."""

ALL: Final = (COMMIT, COMMIT_BEYOND, REPORT, SHARDS, MARK, TAKE, RENEW, RELEASE, MOVE)
"""What a server has to load."""
