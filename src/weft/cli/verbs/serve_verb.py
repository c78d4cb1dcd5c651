"""``weft serve``: latency and throughput of a server, or by each method to fetch cached blocks."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.inputs import On, Settings, complete_workload, machine_of, settings_of
from weft.cli.options import Json, complete_list, names, to_file
from weft.cli.outputs import output_path, print_json, print_written, track, write
from weft.errors import UsageError
from weft.report.text import Column, print_table
from weft.units import format_size, format_time, parse_sizes, parse_time

if TYPE_CHECKING:
    from weft.hardware import Platform
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
    )
)


def _refuse_steps(settings: dict[str, str]) -> None:
    """Refuse settings that would change nothing."""
    for key in sorted(_OF_STEPS & settings.keys()):
        raise UsageError(
            f"--set {key}: serving has no such setting",
            "Requests at once are --batch, prompts and answers --prompt and --generate.",
        )


def complete_fetch(incomplete: str) -> list[str]:
    """Complete the last of a list of fetch methods."""
    from weft.serving import FETCHES

    return complete_list(incomplete, ("all", *FETCHES))


def complete_server(incomplete: str) -> list[str]:
    """Complete the name of a server."""
    from weft.serving import SERVERS

    return [name for name in SERVERS if name.startswith(incomplete)]


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", autocompletion=complete_workload)],
    *,
    on: On = None,
    settings: Settings = None,
    block: Annotated[
        str | None,
        typer.Option(
            metavar="S,..",
            help="Block sizes of the cache; default: 16 tokens of one tensor of a layer.",
        ),
    ] = None,
    fetch: Annotated[
        str,
        typer.Option(
            metavar="F,..",
            help="per-copy, batched, b2b (back to back on the engines' queues), kernel, recompute "
            "(fetch nothing) or all.",
            autocompletion=complete_fetch,
        ),
    ] = "all",
    engines: Annotated[int, typer.Option(metavar="N", help="Number of engines for b2b.")] = 1,
    reduce: Annotated[
        str,
        typer.Option(
            metavar="R",
            help="All-reduces of a layer: library, dma (gathered by engines), fused (in "
            "the kernel of the product) or auto, the fastest.",
        ),
    ] = "library",
    hit: Annotated[
        float | None,
        typer.Option(
            metavar="0..1",
            help="Fraction of a prompt that is cached in host memory; default: 0.9, with --server "
            "and no --fetch 0.",
        ),
    ] = None,
    prompt: Annotated[int, typer.Option(metavar="N", help="Tokens per prompt.")] = 4096,
    generate: Annotated[int, typer.Option(metavar="N", help="Tokens per answer.")] = 128,
    rate: Annotated[
        float | None,
        typer.Option(metavar="R", help="Requests per second (Poisson); default: all at once."),
    ] = None,
    requests: Annotated[int, typer.Option(metavar="N", help="Number of requests.")] = 64,
    batch: Annotated[
        int, typer.Option(metavar="N", help="Maximum number of concurrent requests.")
    ] = 256,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Maximum tokens per pass; default: 8192 or the server's."
        ),
    ] = None,
    ahead: Annotated[
        bool, typer.Option("--ahead", help="Submit copies while the previous pass runs.")
    ] = False,
    overhead: Annotated[
        str | None,
        typer.Option(
            metavar="T", help="Host time per pass besides launching it; default: 0 or the server's."
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Schedule, overheads and kernels of vllm, sglang or trtllm (or vllm@0.12).",
            autocompletion=complete_server,
        ),
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Requests that a client keeps in flight, instead of a rate."
        ),
    ] = 0,
    prefill: Annotated[
        str | None,
        typer.Option(
            metavar="NxTP", help="Workers that compute prompts only, with --decode: 4x1, say."
        ),
    ] = None,
    decode: Annotated[
        str | None,
        typer.Option(metavar="NxTP", help="Workers that answer only, with --prefill: 2x4, say."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Random seed.")] = 0,
    json: Json = False,
    output: Annotated[str | None, to_file("Write all rows as .csv.")] = None,
) -> None:
    """Serve the same requests by every fetch method."""
    _refuse_steps(settings_of(settings))
    from weft.models.named import transformer_of
    from weft.serving import FETCHES, BatchLimits, Load, Question, find_server

    path, machine = output_path(output, (".csv",)), machine_of(on)
    shape = transformer_of(model, _with_tp(settings_of(settings), machine))
    plain = fetch == "all" and (server is not None or prefill is not None or decode is not None)
    if plain and hit:
        raise UsageError(
            f"--hit: a server fetches nothing without --fetch (got {hit:g})",
            "Name a method, as in --fetch b2b --hit 0.5, or remove --hit.",
        )
    cached = (0.0 if plain else 0.9) if hit is None else hit
    load = Load(requests, prompt, generate, cached, math.inf if rate is None else rate, seed=seed)
    found = find_server(server) if server is not None else None
    if found is None:
        limits = BatchLimits(batch, tokens or 8192, ahead, concurrency=concurrency)
    else:
        shape = found.served(shape)
        limits = found.limits(shape, batch=batch, tokens=tokens, concurrency=concurrency)
        limits = replace(limits, ahead=ahead)
    if overhead is not None:
        limits = replace(limits, overhead=parse_time(overhead))
    question = Question(model, shape, machine, load, limits, reduce, None, engines, found)
    if prefill is not None or decode is not None:
        if fetch != "all":
            raise UsageError(
                f"--fetch does not apply with --prefill and --decode (got {fetch})",
                "Remove --fetch: prefill workers compute whole prompts.",
            )
        pools = _pools(prefill, decode, machine)
        first, second = (replace(question, model=replace(shape, tp=tp)) for _, tp in pools)
        row = first.disaggregated_row(second, (pools[0][0], pools[1][0]))
        note = write(path, [row]) if path else ""
        _show(machine, second, [row], json=json)
        print_written(note, quiet=json)
        return
    methods = ["recompute"] if found and fetch == "all" else names(fetch, FETCHES, "--fetch")
    sizes = parse_sizes(block) if block is not None else [None]
    asked = [replace(question, block_bytes=size) for size in sizes]
    rows = [row for each in track(asked, "serving") for row in each.rows(methods)]
    note = write(path, rows) if path else ""
    _show(machine, question, rows, json=json)
    print_written(note, quiet=json)


def _pools(prefill: str | None, decode: str | None, machine: "Platform") -> list[tuple[int, int]]:
    """Read numbers of workers and the ranks of each: ``4x1`` for prompts, ``2x4`` for answers."""
    found = []
    for name, text in (("--prefill", prefill), ("--decode", decode)):
        parts = (text or "").split("x")
        if len(parts) != 2 or not all(part.isdigit() and int(part) for part in parts):
            raise UsageError(
                f"{name}: expected workers x ranks of each (got {text})",
                "Use both, as in --prefill 4x1 --decode 2x4.",
            )
        found.append((int(parts[0]), int(parts[1])))
    ranks = sum(count * tp for count, tp in found)
    if ranks > machine.num_ranks:
        raise UsageError(
            f"--prefill and --decode need {ranks} ranks, {machine.name} has {machine.num_ranks}",
            f"Use fewer workers, or a larger machine: --on {machine.name}x2.",
        )
    return found


def _with_tp(settings: dict[str, str], machine: "Platform") -> dict[str, str]:
    """Set tensor parallelism to the ranks of a node, unless given."""
    return {"tp": str(machine.node_size)} | settings


def _show(
    machine: "Platform", question: "Question", rows: list[dict[str, Any]], *, json: bool
) -> None:
    if json:
        print_json("serve", machine.name, rows)
        return
    columns = [
        Column("block", "block", format_size),
        Column("copies", "copies", spare=True),
        Column("fetch", "fetch", right=False, style="bold"),
        Column("fetch_alone", "fetched in", format_time),
        Column("ttft_alone", "first token, alone", format_time),
        Column("ttft_alone_gain", "gain", "{:.2f}x".format, spare=True),
        Column("ttft", "first token", format_time),
        Column("itl", "between tokens", format_time),
        Column("throughput", "tokens/s", "{:.0f}".format),
        Column("throughput_gain", "gain", "{:.2f}x".format),
    ]
    load = question.load
    come = "all at once" if math.isinf(load.rate) else f"{load.rate:g} a second"
    if question.limits.concurrency:
        come = f"{question.limits.concurrency} in flight"
    layout = "" if "prefill" in rows[0] else f", tp {question.model.tp},"
    title = (
        f"{question.name}{layout} on {machine.name}: {load.count} requests, {come}, prompts of "
        f"{load.prompt} tokens ({load.hit:.0%} cached), answers of {load.output}; predicted"
    )
    if question.server is not None:
        title = f"{question.server.name}: {title}"
    if len(rows) == 1:
        hidden = (
            ("block", "copies", "fetch", "fetch_alone") if rows[0]["fetch"] == "recompute" else ()
        )
        if "prefill" in rows[0]:
            pools = [
                Column("prefill", "prefill", right=False),
                Column("decode", "decode", right=False),
            ]
            columns = [*pools, *columns]
        columns = [each for each in columns if "gain" not in each.key and each.key not in hidden]
    print_table(columns, rows, title=title)
    if len(rows) > 1:
        print("gain: over per-copy")
