"""Software engines that execute copy queues as packets, and the reference interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.arrays import Machine, Thread
from weft.gpu.sdma import AddressSpace, Lowering, PacketBatch, RingBuffer, SdmaEngine, lower
from weft.gpu.sdma.lower import FLAG_BYTES
from weft.schedule import Schedule, Signal, Submit


class EngineThread(Thread):
    """A copy queue: its engine, and the packets that its Submits hand over."""

    engine: SdmaEngine
    batches: list[PacketBatch]  # not handed over yet
    waiting: list[bytes]  # handed over, not in the ring yet

    @property
    def done(self) -> bool:
        ring = self.engine.ring
        return not self.batches and not self.waiting and ring.read == ring.written


class Node(Machine):
    """Runs a Schedule whose copy queues are rings of packets; flags lie in memory."""

    def __init__(
        self, schedule: Schedule, seed: int, *, ring_words: int = 64, **options: Any
    ) -> None:
        super().__init__(schedule, seed)
        self.space = AddressSpace()
        self.places = {key: self.space.map(array) for key, array in self.memory.items()}
        self.counters = {
            rank: np.zeros(FLAG_BYTES * max(schedule.num_flags, 1), np.uint8)
            for rank in range(schedule.num_ranks)
        }
        self.flag_places = {rank: self.space.map(a) for rank, a in self.counters.items()}
        self.schedule, self.options = schedule, options
        self.bits = 30 if options.get("packet_bytes", 0) > 1 << 22 else 22
        self.engines: dict[Any, EngineThread] = {}
        self.queues = [thread for thread in self.queues if not self._becomes_engine(thread)]
        for key in self.engines:
            self.engines[key].engine = SdmaEngine(RingBuffer(ring_words), self.space)
            self.queues.append(self.engines[key])

    def _becomes_engine(self, thread: Thread) -> bool:
        place = thread.commands[0][0]
        if place.queue.startswith("copy"):
            self.engines[place.rank, place.queue] = EngineThread(place.rank)
        return place.queue.startswith("copy")

    def run(self) -> None:
        lowering = Lowering(self.places, self.flag_places, base=dict(self.flags), **self.options)
        found = lower(self.schedule, lowering)
        for key, thread in self.engines.items():
            thread.batches, thread.waiting = found[key], []
            if key not in self.fed_queues:
                self._announce(key)
        super().run()

    def _announce(self, key: Any) -> None:
        thread = self.engines[key]
        thread.waiting += thread.batches.pop(0).encoded(self.bits)

    def _turn(self, thread: Thread) -> bool:
        if not isinstance(thread, EngineThread):
            return super()._turn(thread)
        ring, moved = thread.engine.ring, False
        while thread.waiting and ring.fits(thread.waiting[0]):  # the host's part
            ring.write(thread.waiting.pop(0))
            ring.ring()
            moved = True
        for _ in range(self.random.choice((1, 2, 1000))):
            if not thread.engine.step():
                break
            moved = True
        self._count_flags()
        return moved

    def _count_flags(self) -> None:
        for rank, counters in self.counters.items():
            for index, value in enumerate(counters.view("<u8").tolist()):
                if value:
                    self.flags[rank, index] = value

    def _execute(self, command: Any, execution: int) -> None:
        if isinstance(command, Submit) and (command.rank, command.queue) in self.engines:
            self._announce((command.rank, command.queue))
        if isinstance(command, Signal):
            flag: Any = command.flag
            address = self.flag_places[flag.rank] + FLAG_BYTES * flag.index
            self.space.put(address, self.space.word(address, 8) + 1, 8)
        super()._execute(command, execution)
