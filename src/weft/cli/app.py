"""The table of verbs. Each verb imports what it needs when it runs, so that starting is fast."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from weft.cli.analyze_verb import analyze
from weft.cli.bench_verb import bench
from weft.cli.c3_verb import c3
from weft.cli.calibrate_verb import calibrate
from weft.cli.collective_verb import collective
from weft.cli.copies_verb import copies
from weft.cli.diff_verb import diff
from weft.cli.doctor_verb import doctor
from weft.cli.failure import unknown_verb
from weft.cli.kernel_verb import kernel
from weft.cli.plan_verb import plan
from weft.cli.platforms_verb import platforms
from weft.cli.predict_verb import predict
from weft.cli.serve_verb import serve
from weft.cli.shard_verb import shard
from weft.cli.sweep_verb import PASSED_ON, sweep
from weft.cli.tour_verb import tour
from weft.cli.validate_verb import validate
from weft.cli.whatif_verb import whatif


class Verbs(TyperGroup):
    """The verbs, in the order in which they were added."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb; suggest the closest one if it is unknown."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise unknown_verb(args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Verbs,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback(invoke_without_command=True)
def weft(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Predict, plan and run the communication of distributed PyTorch steps."""
    if version:
        from weft.report.results import weft_version

        print(f"weft {weft_version()}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def _add(verb: Callable[..., Any], question: str, example: str, **context: Any) -> None:
    # Without short_help, click cuts the first sentence in the list of commands.
    app.command(
        help=question,
        short_help=question.partition("\n\n")[0],
        epilog=f"example: {example}",
        context_settings=context,
    )(verb)


_add(
    tour,
    "See the whole loop on this machine in two minutes: calibrate, predict, plan, run, compare.",
    "weft tour",
)
_add(doctor, "What works on this machine, and which paths of weft are on?", "weft doctor")
_add(
    platforms,
    "Which hardware does weft know, and where does each of its numbers come from?",
    "weft platforms mi300x-8",
)
_add(
    calibrate,
    "What does this machine achieve? The answer becomes the platform `here`.\n\nWith --from: what "
    "do the traces of a job show of the machine it ran on?",
    "weft calibrate --from rank0.json.gz -o machine.toml",
)
_add(
    collective,
    "How long does a collective take, by each algorithm?\n\nKIND is broadcast, all_gather, "
    "reduce_scatter, all_reduce, all_to_all, reduce, gather, scatter, send_recv or barrier, or a "
    "schedule file (.schedule.json) as -o writes it.",
    "weft collective all_reduce --size 1KiB:1GiB --on h100-8x8 --algorithm all",
)
_add(
    copies,
    "How long do many small copies from the host's memory take: a KV cache fetched block by block?",
    "weft copies --block 4KiB,32KiB --count 4096 --on mi300x-8",
)
_add(
    kernel,
    "How long does one kernel take?\n\nKIND is gemm, bmm, attention, moe, embedding, softmax, "
    "norm, elementwise and others; its columns are given as KEY=VALUE, lists with commas.",
    "weft kernel gemm m=1,512,4096 n=8192 k=8192 dtype=fp8 --on h100-8",
)
_add(
    c3,
    "What is overlapping a GEMM and a collective worth, by each strategy, and which should a "
    "runtime use?",
    "weft c3 --on mi300x-8 --gemm 4096x57344x8192 --collective all_gather --size 896MiB",
)
_add(
    analyze,
    "Where does the time of a traced job go, and what should be done first?\n\nGive the traces of "
    "all ranks of a job to tell waiting from moving.",
    "weft analyze rank*.json.gz",
)
_add(
    whatif,
    "What would a recorded step take with other strategies, links, ranks or devices?\n\nThe step "
    "is replayed first, and the error of that is shown. Traces of several ranks of one job are "
    "replayed together.",
    "weft whatif rank0.json.gz --strategy dma,priority,links*2 -o whatif.json",
)
_add(
    predict,
    "How long will one step take, and where does the time go?\n\nWORKLOAD is a name (dlrm, "
    "llama-70b, gpt2, bert-base ..), a .toml file, a .workload.json file, a recorded trace, or a "
    "function of torch code as package.module:function, which is captured on fake tensors without "
    "a GPU.",
    "weft predict llama-70b --on h100-8x8 --set tp=8 --set fsdp=true --set batch=64",
)
_add(
    plan,
    "Which strategy should each pair of computation and communication use, what does that save, "
    "and why?\n\nWORKLOAD is what weft predict takes.",
    "weft plan llama-8b --on mi300x-8 --set fsdp=true -o plan.json",
)
_add(
    diff,
    "What changed between two timelines of the same step: predicted, planned or recorded?",
    "weft diff before.json.gz after.json.gz -o diff.html",
)
_add(
    shard,
    "Which rank should hold which embedding table?\n\nTABLES is a .toml file with [[tables]] of "
    "rows, dim, pooling and zipf, or a workload of the dlrm family by name.",
    "weft shard tables.toml --on h100-8 --set batch=16384",
)
_add(
    serve,
    "How soon and how fast does a model answer, if part of every prompt is cached in the host's "
    "memory?\n\nMODEL is a transformer by name or a .toml file. Requests are batched as they "
    "come; each method of fetching their blocks is compared with one runtime call per block.",
    "weft serve llama-70b --on mi300x-8 --block 8KiB --fetch per-copy,b2b --hit 0.9",
)
_add(
    sweep,
    "The same question for many platforms, sizes and settings, on all cores.\n\nVERB is predict, "
    "plan, collective, c3, copies, kernel, serve or shard, with its own arguments; options that "
    "take one value may have lists here, as --on h100-8,mi300x-8 or --set batch=8,16.",
    "weft sweep predict gpt2 --on h100-8,mi300x-8 --set batch=8,16,32 -o gpt2.csv",
    **PASSED_ON,
)
_add(
    bench,
    "How fast are weft and its peers at the same work? Without NAME: which questions are there?",
    "weft bench startup --rounds 9",
)
_add(
    validate,
    "How far is weft from what was published? Every figure it knows, with its source, what weft "
    "computes, and whether it was fitted to.\n\nNAME is a group of figures; without one: all.",
    "weft validate latte -o figures.html",
)
