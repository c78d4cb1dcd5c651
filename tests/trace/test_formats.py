"""Formats besides Kineto: graphs of PyTorch and Chakra, records of rocprofv3."""

import gzip
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.events import event, kernel, launch, written
from weft.errors import FormatError
from weft.trace import analyze, collectives, read
from weft.trace.formats.chakra import fields, read_chakra, read_chakra_json, varint
from weft.trace.formats.execution_trace import read_execution_trace
from weft.trace.formats.graph import Graph
from weft.trace.formats.reading import read_any, read_traces
from weft.trace.formats.rocprof import read_rocprof
from weft.trace.formats.trace_files import trace_files


def number(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(key, value):
    if isinstance(value, int):
        return number(key << 3) + number(value)
    raw = value if isinstance(value, bytes) else value.encode()
    return number(key << 3 | 2) + number(len(raw)) + raw


def attribute(name, key, value):
    return field(10, field(1, name) + field(key, value))


def chakra_file(path, nodes, pack=gzip.compress):
    messages = [field(1, "0.0.4"), *nodes]
    path.write_bytes(pack(b"".join(number(len(m)) + m for m in messages)))
    return path


def chakra_node(ident, name, micros, needs=(), *, gpu=True, **attributes):
    out = field(1, ident) + field(2, name) + field(3, 4)
    out += field(5, b"".join(map(number, needs))) + field(7, micros)
    out += attribute("is_cpu_op", 27, int(not gpu))
    for key, value in attributes.items():
        out += attribute(key, 9, value)
    return out


GRAPH = [
    chakra_node(1, "aten::mm", 5, gpu=False),
    chakra_node(2, "gemm", 30, (1,), tid=7),
    chakra_node(3, "ncclDevKernel_AllReduce", 20, (2,), tid=20, comm_type=0, comm_size=4096),
    chakra_node(4, "gemm", 15, (2,), tid=7),
]


def test_a_chakra_graph_is_laid_out_by_what_its_nodes_need(tmp_path):
    path = chakra_file(tmp_path / "a.et.gz", GRAPH)
    trace = read(path)
    assert trace.columns.start.tolist() == pytest.approx([0, 5e-6, 35e-6, 35e-6])
    total = analyze(path).ranks[0].total
    seconds = (total.busy, total.communication, total.exposed)
    assert seconds == pytest.approx((50e-6, 20e-6, 5e-6))
    assert [(c.kind, c.nbytes) for c in collectives(trace)] == [("all_reduce", 4096)]
    assert any("no start times" in loss for loss in trace.losses)


def test_a_cut_chakra_file_keeps_its_complete_nodes(tmp_path):
    path = chakra_file(tmp_path / "a.et", GRAPH, pack=bytes)
    path.write_bytes(path.read_bytes()[:-30])
    graph = read_chakra(path)
    assert len(graph.nodes) == 3
    assert any("truncated" in loss for loss in graph.losses)


@pytest.mark.parametrize("raw", [b"\xff" * 20, b"\x03\x0b\x00\x00", b"\x02\x09\x01"])
def test_bytes_that_are_no_chakra_are_refused(tmp_path, raw):
    path = tmp_path / "a.et"
    path.write_bytes(b"\x00" + raw + b"\x02\x0f\x00")
    with pytest.raises(FormatError, match=r"Chakra trace|unknown trace format"):
        read_chakra(path)


@given(raw=st.binary(max_size=60))
def test_any_bytes_are_fields_or_refused(raw):
    try:
        list(fields(raw))
    except FormatError as error:
        assert str(error)  # noqa: PT017 - either outcome is right


@given(value=st.integers(0, 2**64 - 1))
def test_numbers_of_any_length_are_read(value):
    assert varint(number(value), 0) == (value, len(number(value)))


def test_a_number_without_end_is_refused():
    with pytest.raises(FormatError, match="64 bits"):
        varint(b"\x80" * 12, 0)


def test_chakra_json_of_the_converter_is_read(tmp_path):
    nodes = [
        {
            "id": "1",
            "name": "gemm",
            "durationMicros": "30",
            "startTimeMicros": "5",
            "isCpuOp": False,
        },
        {"id": "2", "name": "gemm", "durationMicros": 10, "startTimeMicros": 50, "isCpuOp": False},
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(nodes))
    trace = read_chakra_json(path).to_trace()
    assert trace.columns.start.tolist() == pytest.approx([0.0, 45e-6])
    assert trace.origin_ns == 5000
    assert not trace.losses


def test_times_since_1970_keep_their_microseconds(tmp_path):
    since = 1_700_000_000_000_000
    nodes = [chakra_node(n, "gemm", 1) + field(6, since + n) for n in range(1, 200)]
    trace = read(chakra_file(tmp_path / "a.et.gz", nodes))
    assert trace.columns.start.tolist() == [n * 1e-6 for n in range(199)]
    assert trace.origin_ns == (since + 1) * 1000


@pytest.mark.parametrize("text", ['{"workload_graph": 3}', '{"workload_graph": [{"Id": 1}]}', "{"])
def test_chakra_json_that_is_none_is_refused(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(FormatError, match="not a Chakra"):
        read_chakra_json(path)


def old_node(ident, name, function, parent=1, shapes=(), types=()):
    return {
        "name": name,
        "id": ident,
        "rf_id": function,
        "parent": parent,
        "tid": 1,
        "inputs": [],
        "input_shapes": shapes,
        "input_types": types,
    }


def test_shapes_of_an_execution_trace_go_to_the_kineto_of_the_same_process(tmp_path):
    ops = ["aten::mm", "nccl:all_reduce", "aten::add"]
    events = [event(name, "cpu_op", 100 * i, 50, 1) for i, name in enumerate(ops)]
    events += [launch(110, 1), kernel(200, 50, "ncclDevKernel_Generic", 20, 1)]
    for each in events:
        each["pid"] = 77
    nodes = [
        old_node(i + 5, name, i + 1, shapes=[[256]], types=["Tensor(float)"])
        for i, name in enumerate(ops)
    ]
    graph = tmp_path / "et.json"
    graph.write_text(json.dumps({"schema": "1.0.1", "pid": 77, "nodes": nodes}))
    (trace,) = read_traces(trace_files([written(tmp_path / "k.json", events), graph])).traces
    assert trace.nodes is not None
    assert trace.nodes.tolist()[:3] == [0, 1, 2]
    assert [(c.kind, c.nbytes, c.dtype) for c in collectives(trace)] == [
        ("all_reduce", 1024, "fp32")
    ]


def test_an_execution_trace_alone_says_what_it_lacks(tmp_path):
    path = tmp_path / "et.json"
    path.write_text(
        json.dumps({"schema": "1.0.1", "pid": 7, "nodes": [old_node(1, "aten::mm", 1)]})
    )
    (loss,) = read(path).losses
    assert "Kineto trace of the same rank" in loss
    assert analyze(path).ranks[0].total.busy == 0


@pytest.mark.parametrize("text", ['{"nodes": 3}', '{"nodes": [{}]}', '{"schema": "1", "nodes": ['])
def test_an_execution_trace_that_is_none_is_refused(tmp_path, text):
    path = tmp_path / "et.json"
    path.write_text(text)
    with pytest.raises(FormatError, match="complete execution trace"):
        read_execution_trace(path)


def rocprof(**buffers):
    symbols = [{"kernel_id": 1, "formatted_kernel_name": "ncclDevKernel_Generic"}]
    agents = [{"type": 2, "product_name": "AMD Instinct MI300X", "cu_count": 304}]
    tool = {"kernel_symbols": symbols, "agents": agents, "buffer_records": buffers}
    return {"rocprofiler-sdk-tool": [tool]}


def test_records_of_rocprof_are_read(tmp_path):
    record = {
        "start_timestamp": 1000,
        "end_timestamp": 3000,
        "correlation_id": {"internal": 4, "external": 0},
        "dispatch_info": {"kernel_id": 1, "queue_id": {"handle": 20}},
    }
    unknown = {
        **record,
        "start_timestamp": 5000,
        "end_timestamp": 6000,
        "dispatch_info": {"kernel_id": 9},
    }
    copy = {"start_timestamp": 4000, "end_timestamp": 4500, "bytes": 64}
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rocprof(kernel_dispatch=[record, unknown], memory_copy=[copy])))
    trace = read(path)
    assert (trace.device, trace.num_units, trace.num_events) == ("AMD Instinct MI300X", 304, 3)
    assert set(trace.names) == {"ncclDevKernel_Generic", "kernel 9", "operation -1"}
    total = analyze(path).ranks[0].total
    assert (total.busy, total.communication) == pytest.approx((3.5e-6, 2e-6))


def test_kernels_and_copies_of_a_stream_stand_on_it(tmp_path):
    times = {"start_timestamp": 1000, "end_timestamp": 3000}
    dispatch = {"kernel_id": 1, "queue_id": {"handle": 20}}
    both = {**times, "stream_id": {"handle": 3}}
    buffers = {
        "kernel_dispatch": [
            {**both, "dispatch_info": dispatch},
            {**times, "dispatch_info": dispatch},
        ],
        "memory_copy": [both],
    }
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rocprof(**buffers)))
    assert read(path).columns.stream.tolist() == [3, 20, 3]


@pytest.mark.parametrize(
    "text", ['{"rocprofiler-sdk-tool": []}', '{"rocprofiler-sdk-tool": [{"agents": 3}]}', "{"]
)
def test_records_that_are_none_are_refused(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(FormatError, match="rocprofv3"):
        read_rocprof(path)


@pytest.mark.parametrize("raw", [b"", b"  \n"])
def test_an_empty_file_is_refused(tmp_path, raw):
    path = tmp_path / "a.json"
    path.write_bytes(raw)
    with pytest.raises(FormatError, match="is empty"):
        read(path)


@settings(max_examples=50)
@given(raw=st.binary(min_size=1, max_size=200))
def test_any_file_is_read_or_refused_in_one_line(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("any") / "a"
    path.write_bytes(raw)
    try:
        analyze(path)
    except FormatError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is right


@pytest.mark.data
def test_both_forms_of_a_chakra_graph_say_the_same(data):
    binary, text = (read_any(data / f"chakra/chakra.0.{form}.gz") for form in ("et", "json"))
    assert isinstance(binary, Graph)
    assert isinstance(text, Graph)
    assert [n.id for n in binary.nodes] == [n.id for n in text.nodes]
    assert sum(n.seconds or 0 for n in binary.nodes) == sum(n.seconds or 0 for n in text.nodes)
    kinds = Counter(c.kind for c in binary.collectives())
    assert kinds == Counter(c.kind for c in text.collectives()) == {"all_reduce": 5, "broadcast": 2}


@pytest.mark.data
@pytest.mark.parametrize("rank", range(8))
def test_an_execution_trace_and_kineto_agree_on_collectives(data, rank):
    folder = data / "param_dlrm_8xV100"
    graph = read_any(folder / f"et/rank{rank}.et.json.gz")
    assert isinstance(graph, Graph)
    trace = read(folder / f"kineto/rank{rank}.pt.trace.json.gz")
    want = [(c.kind, c.nbytes, c.dtype) for c in collectives(trace)]
    assert [(c.kind, c.nbytes, c.dtype) for c in graph.collectives()] == want
    (joint,) = read_traces(trace_files([trace.path, graph.path])).traces
    assert joint.nodes is not None
    assert (joint.nodes >= 0).sum() > 0.99 * len(graph.nodes)


@pytest.mark.data
@pytest.mark.parametrize(
    ("file", "schema", "nodes", "counts"),
    [
        ("param_et/linear_et", "1.0.1", 931, {}),
        ("chakra/pytorch_et_1.0.2-chakra.0.0.4", "1.0.2-chakra.0.0.4", 263, {"all_gather": 10}),
        ("param_et/resnet_et", "1.1.0-chakra.0.0.4", 14392, {"all_reduce": 15, "broadcast": 6}),
    ],
)
def test_execution_traces_of_three_schemas_are_read(data, file, schema, nodes, counts):
    graph = read_any(data / f"{file}.json.gz")
    assert isinstance(graph, Graph)
    assert (graph.schema, len(graph.nodes)) == (schema, nodes)
    assert Counter(c.kind for c in graph.collectives()) == counts
    assert all(c.nbytes for c in graph.collectives())


@pytest.mark.data
def test_fifty_steps_of_rocprof_are_found(data):
    path = data / "tracelens/rocprof/aorta_fsdp_MI350X_50steps_rocprofv3.json.gz"
    rank = analyze(path).ranks[0]
    assert rank.total.num_gpu_events == 43915
    assert len(rank.steps) in (49, 50)
    seconds = (rank.span, rank.total.busy, rank.total.communication, rank.total.exposed)
    assert seconds == pytest.approx((15.122, 4.233, 4.159, 3.951), rel=1e-3)


def test_graphs_of_processes_with_one_number_join_the_traces_of_their_ranks(tmp_path):
    """In containers of different hosts, processes often have the same number."""
    paths = []
    for rank in range(2):
        events = [event("aten::mm", "cpu_op", 0, 5, 1), kernel(10, 5)]
        paths.append(written(tmp_path / f"rank{rank}.json", events, rank=rank))
    for rank in (1, 0):  # in another order than the traces
        graph = {"schema": "1.0.1", "pid": 0, "nodes": [old_node(1, "aten::mm", 1)]}
        path = tmp_path / f"et_rank{rank}.json"
        path.write_text(json.dumps(graph))
        paths.append(path)
    traces = read_traces(trace_files(paths)).traces
    assert [trace.graph and trace.graph.path.rpartition("/")[2] for trace in traces] == [
        "et_rank0.json",
        "et_rank1.json",
    ]
