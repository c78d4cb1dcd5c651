"""Collectives over hosts: shared memory inside a host, NIC queues between one leader of each.

    ranks of host 0 ── reduce ──▶ leader ══ nic0: Copy + Signal ══▶ leader ── broadcast ──▶ ranks

Bytes are sent to another host once, however many ranks it has. Long vectors are cut into blocks:
while some are in flight, the ranks of a host work on those before and after. Hosts are reduced in
their order, so results are bitwise equal on every rank and in every run.

A leader grants a peer each write by a READY signal, for which the peer's nic queue waits. Between
real hosts that signal is a posted receive, and Copy + Signal is a send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from weft.collectives import direct, pull
from weft.collectives.parts import (
    ITEM_BYTES,
    Chunks,
    Items,
    divided,
    in_out,
    in_place,
    is_premultiplied,
    only_on,
    own,
    signal,
    wait,
)
from weft.schedule import (
    SELF,
    Buffer,
    Call,
    Command,
    Copy,
    Cost,
    Flag,
    Group,
    Index,
    Kernel,
    Launch,
    Program,
    Queue,
    Reduce,
    Rel,
    Repeat,
    Schedule,
    Signal,
    Slice,
    Term,
    Wait,
    shifted,
)
from weft.schedule.values import RankValue, Value, plus

CHUNK = 256 << 10  # bytes: with 8 of them in flight Gloo reaches 1.07x the line rate of 1 Gbit/s
# To a host with one rank, which shares no chunks: fewer context switches during a GEMM.
LONE_CHUNK = 4 << 20
MOST_CHUNKS = 64  # of one tensor; longer tensors have longer chunks
IN_FLIGHT = 4  # blocks between two stages of a pipeline
SLOTS = IN_FLIGHT + 1  # blocks of other hosts that a leader holds until it has reduced them
FIRST_ASKED = 8  # receives that are posted before the first block is forwarded
SMALL = 64 << 10  # bytes up to which every leader sends everything to all others: one step, not two

READY = 0  # the flag of host h is READY + h


def by_pull(kind: str, num_ranks: int, nbytes: int, **options: int | str) -> Schedule:
    """Build what a host does by itself, in shared memory."""
    build: dict[str, Callable[..., Schedule]] = {
        "reduce": pull.reduce,
        "broadcast": pull.broadcast,
        "all_gather": pull.all_gather,
        "scatter": direct.scatter,
    }
    return build[kind](num_ranks, nbytes, **options)


@dataclass(frozen=True)
class HostLeaders:
    """The ranks of every host; a leader is the first of its host, or the root of the call.

    ``inside`` builds the collectives inside a host. With ``seen_by``, a host, schedules have only
    what it executes: of the other hosts the nic queues, with what they send to it. The commands of
    all grow with the square of the number of hosts, and every rank would build them again.
    """

    ranks: tuple[tuple[int, ...], ...]
    root: int = -1
    inside: Callable[..., Schedule] = by_pull
    seen_by: int | None = None

    @property
    def num(self) -> int:
        """The number of hosts."""
        return len(self.ranks)

    @cached_property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return sum(map(len, self.ranks))

    @cached_property
    def leaders(self) -> tuple[int, ...]:
        """The leader of each host."""
        return tuple(self.root if self.root in ranks else ranks[0] for ranks in self.ranks)

    @cached_property
    def group(self) -> Group:
        """The leaders, as a group in which a position is a host."""
        return Group(self.num, 1, self.leaders)

    def others(self, host: int) -> list[int]:
        """Return the other hosts, the next one first, so that not all send to the same one."""
        if self.seen_by is not None and host != self.seen_by:
            return [self.seen_by]
        return [(host + step) % self.num for step in range(1, self.num)]

    def is_seen(self, host: int) -> bool:
        """Return whether all commands of a host are built."""
        return self.seen_by in (None, host)

    def call(
        self,
        host: int,
        kind: str,
        number: int,
        nbytes: int,
        *mapped: tuple[str, str, int],
        **options: int | str,
    ) -> Items:
        """Return a collective inside a host; nothing if it has one rank."""
        ranks = self.ranks[host]
        if len(ranks) == 1 or not self.is_seen(host):
            return ()
        inner = self.inside(kind, len(ranks), nbytes, **options)
        return (
            Call(f"{kind} {number} on host {host}", inner, Group(len(ranks), 1, ranks), mapped),
        )

    def broadcast(self, host: int, number: int, buffer: str, start: int, nbytes: int) -> Items:
        """Return the broadcast of the leader's bytes inside a host."""
        root = self.ranks[host].index(self.leaders[host])
        return self.call(host, "broadcast", number, nbytes, ("data", buffer, start), root=root)

    def reduce(
        self,
        host: int,
        number: int,
        x: tuple[str, int, int],
        dtype: str,
        op: str,
        to: tuple[str, int] | None = None,
    ) -> tuple[Items, Slice]:
        """Return the reduction of a slice inside a host, and where the leader has its result.

        That is ``to``, by default the slice itself; a lone rank moves nothing without a reason.
        """
        buffer, start, nbytes = x
        into, at = to or (buffer, start)
        source, result = own(buffer, start, nbytes), own(into, at, nbytes)
        if len(self.ranks[host]) == 1:
            scales = is_premultiplied(op)
            return ((Reduce((source,), result, dtype, op),), result) if scales else ((), source)
        root = self.ranks[host].index(self.leaders[host])
        mapped = ("in", buffer, start), ("out", into, at)
        items = self.call(host, "reduce", number, nbytes, *mapped, root=root, dtype=dtype, op=op)
        return items, result

    def grants(self) -> Repeat:
        """Return the grant of one write to every other leader."""
        granted = Signal(Flag(shifted(self.group, -1, -1), _of(READY, Index(self.group))))
        return Repeat(self.num - 1, (granted,))

    def to_others(
        self,
        src: Callable[[Index], Slice],
        dst: Callable[[Slice], tuple[str, Value]],
        flag: int,
        number: int,
    ) -> Repeat:
        """Return write number ``number`` to every other leader, and its signal."""
        there, peer = Index(self.group, 1, (1,)), shifted(self.group, 1, 1)
        source = src(there)
        buffer, offset = dst(source)
        body = (
            Wait(Flag(SELF, _of(READY, there)), number),
            Copy(source, Slice(peer, buffer, offset, source.nbytes)),
            Signal(Flag(peer, _of(flag, Index(self.group)))),
        )
        return Repeat(self.num - 1, body)

    def from_others(self, flag: int, number: int) -> Repeat:
        """Return the wait for that many signals of every other leader."""
        source = Index(self.group, -1, (-1,))
        return Repeat(self.num - 1, (Wait(Flag(SELF, _of(flag, source)), number),))

    def schedule(
        self,
        name: str,
        leader: Callable[[int], tuple[Items, Items]],
        buffers: tuple[Buffer, ...],
        num_flags: int,
    ) -> Schedule:
        """Build the schedule of leaders with these commands on stream and nic, by host.

        The other ranks of a host take part in what their leader does on all of its host.
        """
        programs = []
        for host, ranks in enumerate(self.ranks):
            stream, nic = leader(host)
            queues = (Queue("stream0", stream), Queue("nic0", nic))
            if not self.is_seen(host):
                programs.append(Program((self.leaders[host],), queues[1:]))
                continue
            programs.append(Program((self.leaders[host],), queues))
            rest = tuple(rank for rank in ranks if rank != self.leaders[host])
            shared = tuple(item for item in stream if isinstance(item, Call | Launch))
            if rest:
                programs.append(Program(rest, (Queue("stream0", shared),)))
        return Schedule(name, self.num_ranks, tuple(programs), buffers, num_flags)


def all_reduce(
    hosts: HostLeaders, nbytes: int, *, dtype: str = "uint8", op: str = "sum"
) -> Schedule:
    """Build an all-reduce: reduce inside hosts, all-reduce leaders, broadcast inside hosts."""
    build = _all_reduce_at_once if nbytes <= SMALL else _all_reduce_in_parts
    return build(hosts, nbytes, dtype, op)


def _all_reduce_at_once(hosts: HostLeaders, nbytes: int, dtype: str, op: str) -> Schedule:
    n = hosts.num
    part, reduced = n, 2 * n
    inside, between = _steps(op)
    whole, sent = own("data", 0, nbytes), own("sent", 0, nbytes)

    def slot(source: Slice) -> tuple[str, Value]:
        del source
        return "parts", _of(0, Index(hosts.group), nbytes)

    def leader(host: int) -> tuple[Items, Items]:
        parts = [own("parts", other * nbytes, nbytes) for other in range(n)]
        parts[host] = whole
        stream = (
            *hosts.reduce(host, 0, ("data", 0, nbytes), dtype, inside)[0],
            Launch(((Copy(whole, sent),),)),  # the sum of all may come before this one is sent
            signal(SELF, reduced),
            hosts.from_others(part, 1),
            Reduce(tuple(parts), whole, dtype, between),
            *_divided(op, dtype, whole, nbytes),
            *hosts.broadcast(host, 0, "data", 0, nbytes),
        )
        sends = hosts.to_others(lambda _: sent, slot, part, 1)
        return stream, (hosts.grants(), wait(reduced), sends)

    buffers = (in_place(nbytes), Buffer("parts", n * nbytes), Buffer("sent", nbytes))
    return hosts.schedule("leaders all_reduce", leader, buffers, 2 * n + 1)


def _all_reduce_in_parts(hosts: HostLeaders, nbytes: int, dtype: str, op: str) -> Schedule:
    """Build an all-reduce: reduce-scatter every block between the leaders, then all-gather it."""
    n, item = hosts.num, ITEM_BYTES[dtype]
    part, gathered, reduced, added = n, 2 * n, 3 * n, 3 * n + 1
    inside, between = _steps(op)
    blocks = list(cut(nbytes, chunk_bytes(nbytes // n // item * item) * n))
    room = Chunks(hosts.group, blocks[0][1], item).largest

    def leader(host: int) -> tuple[Items, Items]:
        stream: list[Items] = []
        nic: list[Items] = []

        def here(block: int, index: Index) -> Slice:
            start, size = blocks[block]
            found = Chunks(hosts.group, size, item).slice(SELF, "data", index)
            return own("data", plus(found.offset, start), found.nbytes)

        def scatter_parts(block: int) -> None:
            start, size = blocks[block]
            slot = plus(_of(0, Index(hosts.group), room), block % SLOTS * n * room)
            stream.append(hosts.reduce(host, block, ("data", start, size), dtype, inside)[0])
            stream.append((signal(SELF, reduced),))
            sends = hosts.to_others(
                lambda there: here(block, there), lambda _: ("parts", slot), part, len(nic) + 1
            )
            nic.append((hosts.grants(), wait(reduced, block + 1), sends))

        def add(block: int) -> None:
            mine, size = (
                here(block, Index(hosts.group)),
                Chunks(hosts.group, blocks[block][1], item).sizes[host],
            )
            first = block % SLOTS * n
            parts = [own("parts", (first + other) * room, size) for other in range(n)]
            parts[host] = mine
            stream.append(
                (hosts.from_others(part, block + 1), Reduce(tuple(parts), mine, dtype, between))
            )
            stream.append((*_divided(op, dtype, mine, size), signal(SELF, added)))
            sends = hosts.to_others(
                lambda _: mine, lambda _: ("data", mine.offset), gathered, len(nic) + 1
            )
            nic.append((hosts.grants(), wait(added, block + 1), sends))

        def share(block: int) -> None:
            stream.append((hosts.from_others(gathered, block + 1),))
            stream.append(hosts.broadcast(host, block, "data", *blocks[block]))

        pipelined(len(blocks), (scatter_parts, add, share))
        return tuple(chain(*stream)), tuple(chain(*nic))

    buffers = (in_place(nbytes), Buffer("parts", min(SLOTS, len(blocks)) * n * room))
    return hosts.schedule("leaders all_reduce", leader, buffers, 3 * n + 2)


def reduce(hosts: HostLeaders, nbytes: int, *, dtype: str = "uint8", op: str = "sum") -> Schedule:
    """Build a reduce inside every host, then on the root; the data of others stay unchanged."""
    n, first = hosts.num, hosts.leaders.index(hosts.root)
    part, reduced, added = n, 2 * n, 2 * n + 1
    inside, between = _steps(op)
    blocks = list(cut(nbytes, chunk_bytes(nbytes)))
    room = blocks[0][1] if blocks else 0

    def slot(block: int, host: int, size: int, rank: RankValue = SELF) -> Slice:
        return Slice(rank, "parts", (block % SLOTS * n + host) * room, size)

    def leader(host: int) -> tuple[Items, Items]:
        stream: list[Items] = []
        nic: list[Items] = []

        def send(block: int) -> None:
            x = ("data", *blocks[block])
            to = None if host == first else ("partial", blocks[block][0])
            items, result = hosts.reduce(host, block, x, dtype, inside, to)
            stream.append(items)
            if host == first:
                free = (wait(added, block - SLOTS + 1),) if block >= SLOTS else ()
                nic.append((*free, hosts.grants()))
                return
            stream.append((signal(SELF, reduced),))
            copy = Copy(result, slot(block, host, blocks[block][1], hosts.root))
            sent = signal(hosts.root, part + host)
            nic.append((wait(reduced, block + 1), wait(READY + first, block + 1), copy, sent))

        def add(block: int) -> None:
            if host == first:
                start, size = blocks[block]
                mine = own("data", start, size)
                parts = [slot(block, other, size) for other in range(n)]
                parts[host] = mine
                total = Reduce(tuple(parts), mine, dtype, between)
                done = (*_divided(op, dtype, mine, size), signal(SELF, added))
                stream.append((hosts.from_others(part, block + 1), total, *done))

        pipelined(len(blocks), (send, add))
        return tuple(chain(*stream)), tuple(chain(*nic))

    partial = tuple(
        nbytes if rank in hosts.leaders and rank != hosts.root else 0
        for rank in range(hosts.num_ranks)
    )
    parts = only_on(hosts.root, hosts.num_ranks, min(SLOTS, len(blocks)) * n * room)
    buffers = (in_place(nbytes), Buffer("partial", partial), Buffer("parts", parts))
    return hosts.schedule("leaders reduce", leader, buffers, 2 * n + 2)


def reduce_scatter(
    hosts: HostLeaders, nbytes: int, *, dtype: str = "uint8", op: str = "sum"
) -> Schedule:
    """Build a reduce-scatter: reduce each host's parts on its leader, then scatter them inside."""
    n, each = hosts.num, divided(nbytes, hosts.num_ranks, "reduce_scatter")
    part, reduced = n, 2 * n
    inside, between = _steps(op)
    chunks = list(cut(each, chunk_bytes(each)))

    def leader(host: int) -> tuple[Items, Items]:
        ranks, root = hosts.ranks[host], hosts.ranks[host].index(hosts.leaders[host])
        stream: list[Command | Repeat] = []
        nic: list[Command | Repeat] = [hosts.grants()]
        number = 0  # chunks of all ranks that are reduced
        for other in hosts.others(host):
            peer, size = hosts.leaders[other], len(hosts.ranks[other]) * each
            nic += (wait(READY + other),)
            for local, rank in enumerate(hosts.ranks[other]):
                for start, length in chunks:
                    x = ("in", rank * each + start, length)
                    items, result = hosts.reduce(host, number, x, dtype, inside, ("partial", x[1]))
                    number += 1
                    stream += (*items, signal(SELF, reduced))
                    there = Slice(peer, "parts", host * size + local * each + start, length)
                    sent = signal(peer, part + host)
                    nic += (wait(reduced, number), Copy(result, there), sent)
        alone, count = len(ranks) == 1, 0
        for local, rank in enumerate(ranks):
            for start, length in chunks:
                x, at = ("in", rank * each + start, length), local * each + start
                items, mine = hosts.reduce(host, number, x, dtype, inside, ("result", at))
                number, count = number + 1, count + 1
                parts = [own("parts", h * len(ranks) * each + at, length) for h in range(n)]
                parts[host] = mine
                total = own("out" if alone else "result", at, length)
                stream += (*items, hosts.from_others(part, count))
                stream += (Reduce(tuple(parts), total, dtype, between),)
                stream += _divided(op, dtype, total, length)
        mapped = ("in", "result", 0), ("out", "out", 0)
        whole = len(ranks) * each
        stream += hosts.call(host, "scatter", 0, whole, *mapped, root=root)
        return tuple(stream), tuple(nic)

    led = {leader: len(ranks) for leader, ranks in zip(hosts.leaders, hosts.ranks, strict=True)}
    counts = [led.get(rank, 0) * each for rank in range(hosts.num_ranks)]
    scratch = (
        Buffer("partial", tuple(nbytes if count else 0 for count in counts)),
        Buffer("parts", tuple(n * count for count in counts)),
        Buffer("result", tuple(counts)),
    )
    return hosts.schedule(
        "leaders reduce_scatter", leader, (*in_out(nbytes, each), *scratch), 2 * n + 1
    )


def broadcast(hosts: HostLeaders, nbytes: int, piece: int) -> Schedule:
    """Build a chain of hosts from the root's: blocks are forwarded, then shared inside."""
    arrived = 1
    blocks = list(cut(nbytes, piece))
    first = hosts.leaders.index(hosts.root)

    def leader(host: int) -> tuple[Items, Items]:
        step = (host - first) % hosts.num
        before, after = (hosts.leaders[(host + by) % hosts.num] for by in (-1, 1))
        if not hosts.is_seen(host) and (host + 1) % hosts.num != hosts.seen_by:
            return (), ()
        stream: list[Items] = []
        nic: list[Items] = []
        # Posted far ahead: posting a receive while data arrive waits for Gloo's thread, which
        # holds a lock as long as it reads.
        for block, asked in enumerate(receive_windows(len(blocks), len(blocks))):
            start, size = blocks[block]
            if step > 0:
                nic.append((*[signal(before, READY)] * len(asked), wait(arrived, block + 1)))
                stream.append((wait(arrived, block + 1),))
            if step < hosts.num - 1:
                copy = Copy(own("data", start, size), Slice(after, "data", start, size))
                nic.append((wait(READY, block + 1), copy, signal(after, arrived)))
            stream.append(hosts.broadcast(host, block, "data", start, size))
        return tuple(chain(*stream)), tuple(chain(*nic))

    return hosts.schedule("leaders broadcast", leader, (in_place(nbytes),), 2)


def all_gather(hosts: HostLeaders, nbytes: int) -> Schedule:
    """Build an all-gather: inside hosts, between leaders, then a broadcast inside hosts."""
    each = divided(nbytes, hosts.num_ranks, "all_gather")
    arrived, gathered = hosts.num, 2 * hosts.num

    def leader(host: int) -> tuple[Items, Items]:
        leaders, others = hosts.leaders, hosts.others(host)
        stream = list(_gathered_inside(hosts, host, each))
        nic: list[Command | Repeat] = [hosts.grants()]
        if len(hosts.ranks[host]) > 1:
            stream.append(signal(SELF, gathered))
            nic.append(wait(gathered))
        for other in others:
            nic.append(wait(READY + other))
            for start, size in _pieces(hosts, each, host, other):
                alone = own("in", start - hosts.ranks[host][0] * each, size)
                source = alone if len(hosts.ranks[host]) == 1 else own("out", start, size)
                nic += [
                    Copy(source, Slice(leaders[other], "out", start, size)),
                    signal(leaders[other], arrived + host),
                ]
        number = len(hosts.ranks[host])  # broadcasts so far, if they gathered
        for other in reversed(others):
            for block, (start, size) in enumerate(_pieces(hosts, each, other, host)):
                stream += [
                    wait(arrived + other, block + 1),
                    *hosts.broadcast(host, number, "out", start, size),
                ]
                number += 1
        return tuple(stream), tuple(nic)

    return hosts.schedule("leaders all_gather", leader, in_out(each, nbytes), 2 * hosts.num + 1)


def _gathered_inside(hosts: HostLeaders, host: int, each: int) -> Items:
    """Return the all-gather inside a host, into the places of its ranks in the whole."""
    ranks = hosts.ranks[host]
    place = Rel(0, (), (Term(Index(Group(hosts.num_ranks)), each),))
    local = Launch(((Copy(own("in", 0, each), own("out", place, each)),),))
    if len(ranks) == 1:
        return (local,)
    if len(runs(ranks)) == 1:
        mapped = ("in", "in", 0), ("out", "out", ranks[0] * each)
        return hosts.call(host, "all_gather", 0, len(ranks) * each, *mapped)
    shares: Items = (local,)  # not next to each other: one by one
    for number, rank in enumerate(ranks):
        shares += hosts.call(
            host, "broadcast", number, each, ("data", "out", rank * each), root=number
        )
    return shares


def _pieces(hosts: HostLeaders, each: int, source: int, to: int) -> Iterator[tuple[int, int]]:
    """Yield the pieces in which a host sends its ranks' data; a lone rank gets long ones."""
    for first, stop in runs(hosts.ranks[source]):
        size = (stop - first) * each
        piece = LONE_CHUNK if len(hosts.ranks[to]) == 1 else chunk_bytes(size)
        yield from ((first * each + start, length) for start, length in cut(size, piece))


def runs(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Return ranks as half-open ranges.

    >>> runs((0, 1, 3))
    [(0, 2), (3, 4)]
    """
    starts = [rank for rank in ranks if rank - 1 not in ranks]
    return list(zip(starts, (rank + 1 for rank in ranks if rank + 1 not in ranks), strict=True))


def _of(base: int, index: Index, scale: int = 1) -> Rel:
    return Rel(base, (), (Term(index, scale),))


def _steps(op: str) -> tuple[str, str]:
    """Return the operations inside hosts and between them."""
    if op == "avg":
        return "sum", "sum"
    return op, "sum" if is_premultiplied(op) else op


def _divided(op: str, dtype: str, x: Slice, nbytes: int) -> Items:
    """Return the division of a sum by the number of ranks, if the operation is a mean."""
    cost = Cost(dtype=dtype, nbytes=2 * nbytes)
    return (Kernel("divide", cost, (x,), (x,)),) if op == "avg" else ()


def chunk_bytes(nbytes: int) -> int:
    """Return the size of the chunks of so many bytes: a multiple of every element size."""
    pages = -(-nbytes // (MOST_CHUNKS << 12))
    return max(CHUNK, pages << 12)


def cut(nbytes: int, piece: int) -> Iterator[tuple[int, int]]:
    """Yield offset and size of each piece."""
    yield from ((start, min(piece, nbytes - start)) for start in range(0, nbytes, piece))


def pipelined(num_blocks: int, stages: Sequence[Callable[[int], None]]) -> None:
    """Run every block through the stages, which are IN_FLIGHT blocks apart.

    The order depends on the numbers only, so it is the same on every rank.
    """
    for tick in range(num_blocks + IN_FLIGHT * (len(stages) - 1)):
        for number, stage in enumerate(stages):
            if 0 <= (block := tick - number * IN_FLIGHT) < num_blocks:
                stage(block)


def receive_windows(num_blocks: int, most: int) -> Iterator[range]:
    """Yield for every block the receives to post before it is forwarded, at most ``most`` ahead.

    Posting a receive takes 20 us. A few are enough at first, so that the next host does not wait
    for all of them; then two for each block, so that soon the maximum is posted.
    """
    asked = 0
    for block in range(num_blocks):
        until = min(num_blocks, block + max(most, 1), FIRST_ASKED + 2 * block)
        yield range(asked, until)
        asked = until
