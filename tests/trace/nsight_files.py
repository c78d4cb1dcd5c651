"""The events of tests/trace/events.py as Nsight Systems exports them."""

import sqlite3
from contextlib import closing

# Tables as exports of 2022 (2.7), 2024 (3.11) and 2026 (3.25) have them: columns were added.
OLD, NEW, NEWEST = "2.7.1", "3.11.0", "3.25.0"


def write_nsight(path, ranks, *, version=NEW, device="NVIDIA A100-SXM4-80GB"):
    """Write the Kineto events of each process into one export; GPU ``n`` belongs to process n."""
    with closing(sqlite3.connect(path)) as base:
        base.executescript(_schema(version))
        strings: dict[str, int] = {}

        def text(value):
            if value not in strings:
                strings[value] = len(strings) + 1
                base.execute("INSERT INTO StringIds VALUES (?, ?)", (strings[value], value))
            return strings[value]

        for rank, events in enumerate(ranks):
            pid = (1000 + rank) << 24
            for event in events:
                _insert(base, version, event, pid, rank, text)
            base.execute(
                "INSERT INTO TARGET_INFO_GPU (id, name, smCount) VALUES (?, ?, 108)", (rank, device)
            )
        base.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', ?)", (version,))
        base.commit()
    return path


def _schema(version):
    graph = "" if version == OLD else ", graphNodeId INT"
    json_text = ", jsonText TEXT" if version == NEWEST else ""
    return f"""
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
        CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT, busLocation TEXT, smCount INT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, contextId INT,
            streamId INT, correlationId INT, globalPid INT, demangledName INT, shortName INT,
            gridX INT {graph});
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, eventClass INT,
            globalTid INT, correlationId INT, nameId INT, returnValue INT);
        CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, globalTid INT,
            textId INT {json_text});
    """


def _insert(base, version, event, pid, rank, text):
    start, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
    args, name, cat = event["args"], event["name"], event["cat"]
    if cat == "kernel":
        row = (
            start,
            end,
            rank,
            args["stream"],
            args.get("correlation", 0),
            pid,
            text(name),
            text(name[:9]),
        )
        base.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, "
            "correlationId, globalPid, demangledName, shortName) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )
    elif cat == "cuda_runtime":
        call = (start, end, 0, pid | event["tid"], args["correlation"], text(name + "_v7000"), 0)
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, ?)", call)
    else:
        said = name.replace("ProfilerStep#", "step ")
        named = (start, end, 59, None, pid | event["tid"], text(said))
        base.execute(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, textId) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            named,
        )
