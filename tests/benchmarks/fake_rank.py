"""A contestant that needs nothing: ranks that answer as its words tell them to.

python fake_rank.py NAME RANK LOG MANNER ADDRESS
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from weft.local_runs.rank_server import serve


class FakeWork:
    def __init__(self, rank, case):
        self.rank, self.case, self.calls = rank, case, 0

    def act(self):
        self.calls += 1
        if self.rank.manner == "raise":
            raise ValueError("no such buffer")
        if self.rank.manner == "die":
            sys.stderr.write("out of memory\n")
            sys.stderr.flush()
            os._exit(3)
        if self.rank.manner == "crash":
            sys.stderr.write("a heap of rubble\n")
            sys.stderr.flush()
            os.abort()
        if self.rank.manner == "hang":
            time.sleep(3600)
        with Path(self.rank.log).open("a") as file:
            file.write(f"{self.rank.name}{self.rank.rank}\n")

    def answer(self):
        self.act()
        return {"lie": 5, "count": self.calls}.get(self.rank.manner, 0)

    def free(self):
        pass


class FakeRank:
    def __init__(self, name, rank, log, manner):
        self.name, self.rank, self.log, self.manner = name, int(rank), log, manner
        self.about = f"fake {name} 1.0"

    def barrier(self):
        pass

    def open(self, case):
        return FakeWork(self, case)


def main():
    name, rank, log, manner, address = sys.argv[1:]
    if manner == "absent":
        sys.exit("cannot find libfake.so\n")
    if manner == "stubborn":  # it does not go, and what it started does not either
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "3600"])
        with Path(log).open("a") as file:
            file.write(f"{child.pid}\n")
    serve(address, FakeRank(name, rank, log, manner))
    if manner == "stubborn":
        time.sleep(3600)


if __name__ == "__main__":
    main()
