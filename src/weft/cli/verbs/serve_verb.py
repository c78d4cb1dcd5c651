"""``weft serve``: latency and throughput of a server, or by each method to fetch cached blocks."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.inputs import On, Settings, complete_workload, machine_of, settings_of
from weft.cli.options import Json, complete_list, names, to_file
from weft.cli.outputs import output_path, print_json, print_written, track, write
from weft.errors import UsageError
from weft.report.text import Column, print_table, print_wrapped
from weft.units import digits, format_size, format_time, parse_sizes, parse_time

if TYPE_CHECKING:
    from weft.serving import Question


# Settings of a training step, or of all of its samples, which no pass of a server has.
_OF_STEPS = frozenset(
    (
        *(
            "batch",
            "micro_batch",
            "seq",
            "mode",
            "recompute",
            "recompute_layers",
            "frozen",
            "scored",
        ),
        *("dropout", "clip", "mtp", "lora", "lora_mlp", "cp", "cp_kind", "dp", "sp", "tp_overlap"),
        *("zero", "shard", "reshard", "prefetch", "overlap_grad", "overlap_param"),
        *("param_broadcast", "bucket", "grad_dtype", "schedule", "stage_layers", "interleave"),
        *("count_ends", "ep_overlap", "dispatcher", "fused_loss", "fused_accumulation", "stack"),
        *("vp", "flash", "fused_softmax"),
    )
)
_CACHED = 0.9  # of a prompt, where cached blocks are fetched
_TOKENS = 8192  # of a pass at most, without a server
_REQUESTS = 64
_ROUNDS = 10  # requests for each that is in flight, as benchmarks of servers have them


def complete_fetch(incomplete: str) -> list[str]:
    """Complete the last of a list of fetch methods."""
    from weft.serving import FETCHES

    return complete_list(incomplete, ("all", *FETCHES))


def complete_server(incomplete: str) -> list[str]:
    """Complete the name of a server."""
    from weft.serving import SERVERS

    return [name for name in SERVERS if name.startswith(incomplete)]


# How cached blocks come to the device.
Blocks = Annotated[
    str | None,
    typer.Option(
        "--block",
        metavar="S,..",
        help="Block sizes of the cache; default: 16 tokens of one tensor of a layer.",
    ),
]
Fetch = Annotated[
    str,
    typer.Option(
        metavar="F,..",
        help="per-copy, batched, b2b (back to back on the engines' queues), kernel, recompute "
        "(fetch nothing) or all.",
        autocompletion=complete_fetch,
    ),
]
Engines = Annotated[int, typer.Option(metavar="N", help="Number of engines for b2b.")]
Hit = Annotated[
    float | None,
    typer.Option(
        metavar="0..1",
        help="Fraction of a prompt that is cached in host memory; default: 0.9, or 0 with --server "
        "and without --fetch.",
    ),
]

# What is asked of the server.
Prompt = Annotated[int, typer.Option(metavar="N", help="Tokens per prompt.")]
Generate = Annotated[int, typer.Option(metavar="N", help="Tokens per answer.")]
RequestRate = Annotated[
    float | None,
    typer.Option(
        "--rate", metavar="R", help="Requests per second (Poisson); default: all at once."
    ),
]
Requests = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Number of requests; default: 64, or 10 times --concurrency, as benchmarks have.",
    ),
]
Concurrency = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", help="Requests that a client keeps in flight, instead of a rate."
    ),
]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="Random seed.")]

# How it is served.
Reduce = Annotated[
    str,
    typer.Option(
        metavar="R",
        help="All-reduces of a layer: library, dma (gathered by engines), fused (in "
        "the kernel of the product) or auto, the fastest.",
    ),
]
Batch = Annotated[int, typer.Option(metavar="N", help="Maximum number of concurrent requests.")]
Tokens = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Maximum tokens per pass; default: 8192 or the server's."
    ),
]
Ahead = Annotated[bool, typer.Option("--ahead", help="Submit copies while the previous pass runs.")]
Overhead = Annotated[
    str | None,
    typer.Option(
        metavar="T", help="Host time per pass besides launching it; default: 0 or the server's."
    ),
]
ServerName = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="NAME",
        help="Schedule, overheads and kernels of vllm, sglang or trtllm (or vllm@0.12).",
        autocompletion=complete_server,
    ),
]
PrefillPool = Annotated[
    str | None,
    typer.Option(
        "--prefill",
        metavar="NxTP",
        help="Workers that compute prompts only, with --decode: 4x1, say.",
    ),
]
DecodePool = Annotated[
    str | None,
    typer.Option(
        "--decode", metavar="NxTP", help="Workers that answer only, with --prefill: 2x4, say."
    ),
]


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", autocompletion=complete_workload)],
    *,
    on: On = None,
    settings: Settings = None,
    block: Blocks = None,
    fetch: Fetch = "all",
    engines: Engines = 1,
    reduce: Reduce = "library",
    hit: Hit = None,
    prompt: Prompt = 4096,
    generate: Generate = 128,
    rate: RequestRate = None,
    requests: Requests = None,
    batch: Batch = 256,
    tokens: Tokens = None,
    ahead: Ahead = False,
    overhead: Overhead = None,
    server: ServerName = None,
    concurrency: Concurrency = 0,
    prefill: PrefillPool = None,
    decode: DecodePool = None,
    seed: Seed = 0,
    json: Json = False,
    output: Annotated[str | None, to_file("Write all rows (.csv) or a report (.html).")] = None,
) -> None:
    """Serve the same requests by every fetch method, or as a server does."""
    from weft.models.named import transformer_with_notes
    from weft.serving import BatchLimits, Load, Question, find_server

    given = settings_of(settings)
    _refuse_steps(given)
    path, machine = output_path(output, (".csv", ".html")), machine_of(on)
    # Tensor parallelism over the ranks of a node, unless given.
    shape, notes = transformer_with_notes(model, {"tp": str(machine.node_size)} | given)
    # what is of training steps alone does not change what is served
    notes = tuple(each for each in notes if not any(f"--set {key}=" in each for key in _OF_STEPS))
    disaggregated = prefill is not None or decode is not None
    fetching = fetch != "all" or not (server is not None or disaggregated)
    cached = _cached_share(hit, fetching=fetching)
    if rate is not None and concurrency:
        raise UsageError(
            f"--rate: requests come at a rate or as others are answered (got {rate:g} a second and "
            f"--concurrency {concurrency})",
            "Remove one of the two.",
        )
    load = Load(
        _counted(requests, concurrency),
        prompt,
        generate,
        cached,
        math.inf if rate is None else rate,
        seed=seed,
    )
    found = None if server is None else find_server(server)
    if found is None:
        limits = BatchLimits(batch, tokens or _TOKENS, ahead, concurrency=concurrency)
    else:
        shape = found.served(shape)
        limits = found.limits(shape, batch=batch, tokens=tokens, concurrency=concurrency)
        limits = replace(limits, ahead=ahead)
    if overhead is not None:
        limits = replace(limits, overhead=parse_time(overhead), request_overhead=0.0)
    question = Question(model, shape, machine, load, limits, reduce, None, engines, found)
    if disaggregated:
        rows = [_disaggregated_row(question, prefill, decode, fetch)]
    else:
        rows = _rows_by_method(question, fetch if fetching else "recompute", block)
    note = (
        write(path, _page(_title(question, rows, server), rows) if path.suffix == ".html" else rows)
        if path
        else ""
    )
    if json:
        print_json("serve", machine.name, rows, notes=list(notes))
    else:
        _print(_title(question, rows, server), rows)
        for each in notes:
            print_wrapped(each)
    print_written(note, quiet=json)


def _counted(requests: int | None, concurrency: int) -> int:
    """Return the number of requests, which the client needs to keep so many in flight."""
    if requests is None:
        return _ROUNDS * concurrency if concurrency else _REQUESTS
    if 0 < requests < concurrency:
        raise UsageError(
            f"--requests: {requests} requests are never {concurrency} in flight",
            f"Use --requests {_ROUNDS * concurrency}, or a smaller --concurrency.",
        )
    return requests


def _refuse_steps(settings: dict[str, str]) -> None:
    """Refuse settings that would change nothing."""
    for key in sorted(_OF_STEPS & settings.keys()):
        raise UsageError(
            f"--set {key}: serving has no such setting",
            "Requests at once are --batch, prompts and answers --prompt and --generate.",
        )


def _cached_share(hit: float | None, *, fetching: bool) -> float:
    """Return the share of a prompt that is cached: none unless something fetches it."""
    if hit and not fetching:
        raise UsageError(
            f"--hit: a server fetches nothing without --fetch (got {hit:g})",
            "Name a method, as in --fetch b2b --hit 0.5, or remove --hit.",
        )
    usual = _CACHED if fetching else 0.0
    return usual if hit is None else hit


def _rows_by_method(question: "Question", fetch: str, block: str | None) -> list[dict[str, Any]]:
    """Serve the requests by each method of fetching blocks of each size."""
    from weft.serving import FETCHES

    methods = names(fetch, FETCHES, "--fetch")
    sizes = parse_sizes(block) if block is not None else [None]
    asked = [replace(question, block_bytes=size) for size in sizes]
    return [row for each in track(asked, "serving") for row in each.rows(methods)]


def _disaggregated_row(
    question: "Question", prefill: str | None, decode: str | None, fetch: str
) -> dict[str, Any]:
    """Serve the requests by workers that compute prompts and workers that answer."""
    if fetch != "all":
        raise UsageError(
            f"--fetch does not apply with --prefill and --decode (got {fetch})",
            "Remove --fetch: prefill workers compute whole prompts.",
        )
    pools = _pools(prefill, decode)
    first, second = (replace(question, model=replace(question.model, tp=tp)) for _, tp in pools)
    ranks = pools[0][0] * first.num_ranks + pools[1][0] * second.num_ranks
    machine = question.platform
    if ranks > machine.num_ranks:
        raise UsageError(
            f"--prefill and --decode need {ranks} ranks, {machine.name} has {machine.num_ranks}",
            f"Use fewer workers, or a larger machine: --on {machine.name}x2.",
        )
    return first.disaggregated_row(second, (pools[0][0], pools[1][0]))


def _pools(prefill: str | None, decode: str | None) -> list[tuple[int, int]]:
    """Read numbers of workers and the ranks of each: ``4x1`` for prompts, ``2x4`` for answers."""
    found = []
    for name, text in (("--prefill", prefill), ("--decode", decode)):
        parts = (text or "").split("x")
        if len(parts) != 2 or not all(digits(part) for part in parts):
            raise UsageError(
                f"{name}: expected workers x ranks of each (got {text})",
                "Use both, as in --prefill 4x1 --decode 2x4.",
            )
        found.append((int(parts[0]), int(parts[1])))
    return found


_POOLS = (
    Column("prefill", "prefill", right=False),
    Column("decode", "decode", right=False),
)
_FETCHING = (
    Column("block", "block", format_size),
    Column("copies", "copies", optional=True),
    Column("fetch", "fetch", right=False, style="bold"),
    Column("fetch_alone", "fetched in", format_time),
)
_TTFT_ALONE = Column("ttft_alone", "first token, alone", format_time)
_TTFT_ALONE_GAIN = Column("ttft_alone_gain", "gain", "{:.2f}x".format, optional=True)
_RATES = (
    Column("ttft", "first token", format_time),
    Column("itl", "between tokens", format_time),
    Column("throughput", "tokens/s", "{:.0f}".format),
)
_THROUGHPUT_GAIN = Column("throughput_gain", "gain", "{:.2f}x".format)


def _print(title: str, rows: list[dict[str, Any]]) -> None:
    """Print the rows as a table; of a single one no gain over others."""
    print_table(_columns(rows), rows, title=title)
    if note := _note(rows):
        print(note)


def _page(title: str, rows: list[dict[str, Any]]) -> str:
    """Return the same as a page."""
    from weft.report.page import Section, html_page

    served = Section("What is served", _note(rows), _columns(rows), rows)
    return html_page(f"{rows[0]['model']} served", [served], lead=title)


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    if len(rows) > 1:
        return [*_FETCHING, _TTFT_ALONE, _TTFT_ALONE_GAIN, *_RATES, _THROUGHPUT_GAIN]
    pools = _POOLS if "prefill" in rows[0] else ()
    fetching = _FETCHING if rows[0]["fetch"] != "recompute" else ()
    return [*pools, *fetching, _TTFT_ALONE, *_RATES]


def _note(rows: list[dict[str, Any]]) -> str:
    """Return a note: what gains are relative to, or the ranges of a single row, if it has them."""
    if len(rows) > 1:
        return "gain: over per-copy"
    ends = {
        name: [format_time(rows[0][f"{key}_{end}"]) for end in ("low", "high")]
        for key, name in (("ttft", "first token"), ("itl", "between tokens"))
        if rows[0].get(f"{key}_low") is not None
    }
    found = [f"{name} {low} to {high}" for name, (low, high) in ends.items()]
    return f"ranges: {', '.join(found)}" if found else ""


def _title(question: "Question", rows: list[dict[str, Any]], server: str | None) -> str:
    load = question.load
    come = "all at once" if math.isinf(load.rate) else f"{load.rate:g} a second"
    if question.limits.concurrency:
        come = f"{question.limits.concurrency} in flight"
    layout = "" if "prefill" in rows[0] else f", tp {question.model.tp},"
    title = (
        f"{question.name}{layout} on {question.platform.name}: {load.count} requests, {come}, "
        f"prompts of {load.prompt} tokens ({load.hit:.0%} cached), answers of {load.output}; "
        "predicted"
    )
    return title if server is None else f"{server}: {title}"
