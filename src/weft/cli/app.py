"""The table of verbs. Each verb imports what it needs when it runs, so that starting is fast."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from weft.cli.failure import unknown_verb
from weft.cli.verbs.analyze_verb import analyze
from weft.cli.verbs.bench_verb import bench
from weft.cli.verbs.c3_verb import c3
from weft.cli.verbs.calibrate_verb import calibrate
from weft.cli.verbs.collective_verb import collective
from weft.cli.verbs.copies_verb import copies
from weft.cli.verbs.diff_verb import diff
from weft.cli.verbs.doctor_verb import doctor
from weft.cli.verbs.export_verb import export
from weft.cli.verbs.gpu_check_verb import gpu_check
from weft.cli.verbs.kernel_verb import kernel
from weft.cli.verbs.models_verb import models
from weft.cli.verbs.plan_verb import plan
from weft.cli.verbs.platforms_verb import platforms
from weft.cli.verbs.predict_verb import predict
from weft.cli.verbs.serve_verb import serve
from weft.cli.verbs.shard_verb import shard
from weft.cli.verbs.sweep_verb import PASSED_ON, sweep
from weft.cli.verbs.tour_verb import tour
from weft.cli.verbs.validate_verb import validate
from weft.cli.verbs.watch_verb import watch
from weft.cli.verbs.whatif_verb import whatif


class Verbs(TyperGroup):
    """The verbs, in the order in which they were added."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb; suggest the closest one if it is unknown."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise unknown_verb(args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


class Against(TyperCommand):
    """A verb whose option ``--against`` takes all words up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each of its words, as click expects it."""
        given: list[str] = []
        inside = False
        for word in args:
            if word == "--against":
                inside = True
            elif word.startswith("-") and word != "-":
                inside = False
                given.append(word)
            else:
                given += ["--against", word] if inside else [word]
        if args[-1:] == ["--against"]:
            given.append("--against")
        return super().parse_args(ctx, given)


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


def _add(
    verb: Callable[..., Any],
    question: str,
    example: str,
    *,
    cls: type[TyperCommand] | None = None,
    context: dict[str, Any] | None = None,
) -> None:
    # Without short_help, click cuts the first sentence in the list of commands.
    app.command(
        cls=cls,
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
_add(doctor, "Which parts of weft work on this machine?", "weft doctor")
_add(
    gpu_check,
    "Are weft's results on these GPUs correct, and how accurate are its predictions? Facts, "
    "correctness, calibration, proof of path and errors, in one file.\n\nStart it with torchrun, "
    "one process per GPU. Without GPUs, the parts that need none run on CPU tensors.",
    "weft gpu-check -o result.jsonl; with 8 GPUs: torchrun --nproc-per-node 8 -m weft gpu-check ..",
)
_add(
    platforms,
    "Which hardware does weft know, and where does each of its numbers come from?",
    "weft platforms mi300x-8",
)
_add(
    models,
    "Which workloads does weft know by name, and which settings does one have for --set?",
    "weft models llama-8b",
)
_add(
    calibrate,
    "How fast is this machine? The result becomes the platform `here`.\n\nWith --from: how fast "
    "was the machine on which the traces of a job were recorded?",
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
    "How much does overlapping a GEMM and a collective save with each strategy, and which one "
    "should a runtime use?",
    "weft c3 --on mi300x-8 --gemm 4096x57344x8192 --collective all_gather --size 896MiB",
)
_add(
    analyze,
    "Where does the time of a traced job go, and what should be done first?\n\nGive the traces of "
    "all ranks of a job to tell waiting from moving. With --against: what changed since another "
    "run?",
    "weft analyze before/*.json.gz --against after/*.json.gz",
    cls=Against,
)
_add(
    export,
    "How long do recorded collectives take without waiting, in a file for torch's "
    "compiler?\n\nFORMAT inductor is a profile for Inductor's overlap scheduling (torch 2.13 and "
    "later).",
    "weft export inductor traces/ -o profile.json",
)
_add(
    watch,
    "Which rank of a running job do the others wait for, and why?\n\nThe job calls "
    "weft.torch.monitor() on every rank.",
    "weft watch --port 9090",
)
_add(
    whatif,
    "What would a recorded step take with other strategies, links, ranks or devices?\n\nweft "
    "replays the step and prints the error of the replay first. Traces of several ranks of one "
    "job are replayed together.",
    "weft whatif rank0.json.gz --strategy dma,priority,links*2 -o whatif.json",
)
_add(
    predict,
    "How long will one step take, and where does the time go?\n\nWORKLOAD is a name (dlrm, "
    "llama-70b, gpt2 ..), a Hugging Face config.json or its folder, a job file of torchtitan, "
    "Megatron-LM, DeepSpeed or accelerate, a .toml file, a .workload.json file, a recorded trace,"
    " or a function of torch code as package.module:function, which is captured on fake tensors "
    "without a GPU.",
    "weft predict llama-70b --on h100-8x8 --set tp=8 --set fsdp=true --set batch=64",
)
_add(
    plan,
    "Which strategy should each pair of computation and communication use, what does that save, "
    "and why?\n\nWORKLOAD is what weft predict takes, or the traces of all ranks of a job.",
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
    "How soon and how fast does a model answer requests, by a server such as vLLM, or with part of "
    "every prompt cached in the host's memory?\n\nMODEL is a transformer by name, a Hugging Face "
    "config.json or a .toml file. Requests are batched as they come. With --server: as that server "
    "runs it. Without: each method of fetching cached blocks is compared with one runtime call per "
    "block.",
    "weft serve config.json --on h100-8 --set tp=1 --server vllm --concurrency 64",
)
_add(
    sweep,
    "The same question for many platforms, sizes and settings, on all cores.\n\nVERB is predict, "
    "plan, collective, c3, copies, kernel, serve or shard, with its own arguments; options that "
    "take one value may have lists here, as --on h100-8,mi300x-8 or --set batch=8,16.",
    "weft sweep predict gpt2 --on h100-8,mi300x-8 --set batch=8,16,32 -o gpt2.csv",
    context=PASSED_ON,
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
