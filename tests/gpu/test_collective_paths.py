"""Logs of NCCL say how a collective ran."""

from __future__ import annotations

import pytest

from weft.gpu.collective_paths import (
    CollectivePath,
    PathVerdict,
    judge,
    read_nccl_log,
)

MIB = 1 << 20
PREFIX = "node1:497:558 [0] NCCL INFO "
LINES = {
    "AllGather [Copy Engine]: 67108864 Bytes -> cudaMemcpy; CE synchronization with NVLS": (
        CollectivePath("all_gather", 64 * MIB, "copy-engine", 0)
    ),
    "AlltoAll [Copy Engine]: 134217728 Bytes -> cudaMemcpy": (
        CollectivePath("all_to_all", 128 * MIB, "copy-engine", 0)
    ),
    "AllGather [Hierarchical CE]: 1048576 Bytes -> RMA proxy + CE": (
        CollectivePath("all_gather", MIB, "copy-engine", 0)
    ),
    "AllGather [Symmetric]: 1048576 Bytes -> Kernel AllGather_LL nchannels 2 nthreads 512": (
        CollectivePath("all_gather", MIB, "symmetric", 2, "AllGather_LL")
    ),
    "AllReduce: 4194304 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}": (
        CollectivePath("all_reduce", 4 * MIB, "nvls", 16, "SIMPLE")
    ),
    "ReduceScatter: 4194304 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..23} "
    "cgaClusterSize 4": (CollectivePath("reduce_scatter", 4 * MIB, "ring", 24, "LL128")),
    "AllReduce: 4 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0} comm 0x55a7a339db50": (
        CollectivePath("all_reduce", 4, "tree", 1, "LL")
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_log_says_path_and_ctas(line):
    assert list(read_nccl_log([PREFIX + line]).paths) == [LINES[line]]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "AllGather: Bytes -> Algo",
        "AllGather: x Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}",
        "AllGather: 4 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..",
        "8589934592 Bytes -> Algo 1 proto 2 time 86069.968750",  # before 2.23: not named
        "\x00\xff Bytes -> ",
    ],
)
def test_a_line_of_anything_else_is_passed_over(line):
    assert not read_nccl_log([PREFIX + line]).paths


def test_a_log_names_the_version_and_the_sizes_of_communicators():
    log = read_nccl_log(
        [
            "NCCL version 2.29.7+cuda13.0",
            f"{PREFIX}ncclCommInitRank comm 0x5 rank 0 nranks 8 cudaDev 0 - Init COMPLETE",
        ]
    )
    assert (log.version, log.num_ranks) == ("2.29.7", (8,))


def test_a_planned_path_is_proven_by_every_execution_of_its_size():
    paths = read_nccl_log(PREFIX + line for line in LINES).paths
    proven = judge("copy-engine", "all_gather", 8 * 64 * MIB, 8, paths)
    assert (proven.proven, proven.fell_back) == (True, False)
    mixed = judge("copy-engine", "all_gather", 8 * MIB, 8, paths)
    assert (mixed.proven, mixed.fell_back) == (False, True)
    assert "symmetric, 2 CTAs (AllGather_LL)" in str(mixed)
    padded = judge("ring", "reduce_scatter", 8 * 4 * MIB - 4096, 8, paths)
    assert padded.proven
    unseen = judge("copy-engine", "all_gather", 3, 8, paths)
    assert (unseen.proven, unseen.fell_back) == (False, False)
    assert str(PathVerdict("ring", ())) == "ring planned, not seen in the log"
