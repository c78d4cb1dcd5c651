"""The threads that carry messages between hosts."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from weft.torch.hosts.gloo_transport import GlooTransport, _is_ordinary
from weft.torch.hosts.host_map import HostMap

pytestmark = pytest.mark.torch


def policies():
    threads = [int(each.name) for each in Path("/proc/self/task").iterdir()]
    return {thread: os.sched_getscheduler(thread) for thread in threads}


def test_gloo_threads_are_batch_threads_only_inside_the_context():
    others = set(policies())
    store = dist.HashStore()  # type: ignore[attr-defined]
    transport = GlooTransport(store, 0, HostMap.from_identities(["a"]), timedelta(seconds=30))
    before = policies()
    with transport.background_scheduling():
        during = policies()
    assert {t for t, policy in during.items() if policy == os.SCHED_BATCH} == set(before) - others
    assert policies() == before
    assert os.SCHED_BATCH not in before.values()
    transport.close()


def test_a_thread_that_has_ended_is_none_of_gloo():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert not _is_ordinary(process.pid)
