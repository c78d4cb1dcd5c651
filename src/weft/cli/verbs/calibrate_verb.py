"""``weft calibrate``: this machine, or a traced one, as a platform."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.inputs import On
from weft.cli.options import Json, to_file
from weft.cli.outputs import output_path, print_json, print_written, track
from weft.errors import UsageError
from weft.report.text import Column, page, print_table
from weft.units import format_rate, format_size, format_time

if TYPE_CHECKING:
    from weft.hardware import Platform

_MOST_KINDS = 12


# What is measured, or read, instead of this machine.
FromTraces = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        metavar="TRACE..",
        help="Read these traces of a job instead of measuring this machine; needs -o.",
    ),
]
# A shell expands rank*.json to several words, of which --from takes the first.
MoreTraces = Annotated[list[str] | None, typer.Argument(metavar="[TRACE..]", hidden=True)]
OnGpu = Annotated[
    bool, typer.Option("--on-gpu", help="Measure the GPUs of this node; needs -o. Use torchrun.")
]
Sweep = Annotated[
    Path | None,
    typer.Option(
        "--sweep",
        metavar="FILE.csv",
        help="Write the kernels worth measuring on --on; with -o read their times back.",
    ),
]
SweptKernels = Annotated[
    list[str] | None,
    typer.Option("--kernel", help="Sweep these: FAMILY or FAMILY:DTYPE, such as gemm:fp8."),
]
KeepNoisy = Annotated[
    bool, typer.Option("--anyway", help="Keep the result although other processes used the cores.")
]


def calibrate(
    *,
    traces: FromTraces = None,
    more: MoreTraces = None,
    on: On = None,
    on_gpu: OnGpu = False,
    sweep: Sweep = None,
    kernel: SweptKernels = None,
    anyway: KeepNoisy = False,
    json: Json = False,
    output: Annotated[str | None, to_file("Write the platform to this .toml file instead.")] = None,
) -> None:
    """Measure step by step, write the file, and print the main results."""
    from weft.calibration.machine_calibration import require_quiet, save

    path = output_path(output, (".toml",))
    if sweep is not None:
        _calibrate_sweep(sweep, on, path, kernel or [], json=json)
        return
    if on_gpu:
        _calibrate_gpu(path, on, json=json)
        return
    if traces or more or on:
        _calibrate_from([*(traces or ()), *(more or ())], on, path, json=json)
        return
    platform = _measured()
    if not anyway:
        require_quiet(platform)
    where = save(platform, path)
    if json:
        noise = None if platform.noise is None else asdict(platform.noise)
        print_json("calibrate", "here", _rows(platform), file=str(where), noise=noise)
        return
    _print(platform)
    print_torch(platform)
    use = "weft collective all_gather --on here" if path is None else f"--on {where}"
    print_written(f"wrote {where}: use it as {use}")


def _calibrate_gpu(path: Path | None, on: str | None, *, json: bool) -> None:
    """Measure the GPUs of this node, as ``weft gpu-check`` does, and write their platform."""
    from weft.cli.verbs.gpu_check_verb import run_parts, save_platform

    if path is None:
        raise UsageError("--on-gpu needs an output file", "For example: -o machine.toml")
    result = run_parts(None, on, only_measure=True)
    if result is None:  # the first rank writes
        return
    where = save_platform(result, path)
    assert result.platform is not None
    if json:
        rows = _recorded_rows(result.platform)
        print_json("calibrate", result.platform.name, rows, file=str(where))
        return
    _print_recorded(result.platform)
    print_written(f"wrote {where}: use it as --on {where}")


def _calibrate_sweep(
    sweep: Path, on: str | None, path: Path | None, kernels: list[str], *, json: bool
) -> None:
    """Write the plan of a sweep, or with an output file read its times back."""
    from weft.calibration.kernel_sweep import sweep_plan, with_sweep, write_plan
    from weft.calibration.machine_calibration import save
    from weft.hardware import platform

    if on is None:
        raise UsageError(
            "--sweep needs the machine whose device it is of", "For example: --on h200-8"
        )
    machine = platform(on)
    if path is None:
        plan = sweep_plan(machine.require_device(), kernels)
        write_plan(sweep, plan)
        if json:
            print_json("calibrate", machine.name, plan, file=str(sweep))
            return
        print(f"{len(plan)} kernels worth measuring on {machine.require_device().title}")
        then = f"weft calibrate --sweep {sweep} --on {on} -o machine.toml"
        print_written(f"wrote {sweep}: fill in time_us (microseconds), then {then}")
        return
    swept = with_sweep(machine, [sweep])
    where = save(swept, path)
    rows = [
        {"family": f.family, "dtype": f.dtype, "points": f.errors.rows, "library": f.version}
        | {"formula": f.errors.formula, "left_out": f.errors.shapes, "low": f.low, "high": f.high}
        for f in swept.require_device().fits
    ]
    if json:
        print_json("calibrate", machine.name, rows, file=str(where))
        return
    percent = "{:.1%}".format
    columns = [Column("family", "kernels", right=False, style="bold")]
    columns += [Column("dtype", "dtype"), Column("points", "points")]
    columns += [Column("formula", "error of the formula", percent)]
    columns += [Column("left_out", "of a point left out", percent)]
    print_table(columns, rows, title=f"Kernels of {swept.require_device().title}")
    print_written(f"wrote {where}: use it as --on {where}")


def _measured() -> "Platform":
    """Measure this machine, and torch if it is installed."""
    from importlib.util import find_spec

    from weft.calibration.machine_calibration import STEPS, calibrated, measure_step

    label = "measuring this machine"
    if find_spec("torch") is None:
        return calibrated({name: measure_step(act) for name, act in track(STEPS, label)})
    from weft.calibration.torch_calibration import measured_here

    return measured_here(lambda steps: track(steps, label))


def _calibrate_from(traces: list[str], on: str | None, path: Path | None, *, json: bool) -> None:
    """Calibrate a platform from traces."""
    from weft.calibration.machine_calibration import save
    from weft.trace.analysis.trace_calibration import calibrated_from

    if not traces or path is None:
        raise UsageError(
            "--from needs traces and an output file",
            "For example: weft calibrate --from rank*.json.gz -o machine.toml",
        )
    platform = calibrated_from(traces, on)
    where = save(platform, path)
    if json:
        print_json("calibrate", platform.name, _recorded_rows(platform), file=str(where))
        return
    _print_recorded(platform)
    print_written(f"wrote {where}: use it as --on {where}")


def _recorded_rows(platform: "Platform") -> list[dict[str, Any]]:
    """Return every number measured from the traces, with its source."""
    from weft.cli.verbs.platforms_verb import number_rows

    return [row for row in number_rows(platform) if "by weft " in row["source"]]


def _print_recorded(platform: "Platform") -> None:
    found = platform.recorded
    assert found is not None
    page().write(f"{platform.name}: {platform.title}")
    names = ("between", "before", "after", "launch", "inside")
    rows = [
        {"kind": kind, "count": each.count, **{name: getattr(each, name) for name in names}}
        for kind, each in list(found.host.items())[:_MOST_KINDS]
    ]
    columns = [Column("kind", "operator", right=False, style="bold"), Column("count", "seen")]
    titles = [f"{name} (T{i})" for i, name in enumerate(names, start=1)]
    columns += [Column(name, title, format_time) for name, title in zip(names, titles, strict=True)]
    print_table(columns, rows, title="What the host spends around operators")
    for dtype, each in found.products.items():
        rate = f"{each.median / 1e12:.3g} Tflop/s in the middle, {each.best / 1e12:.3g} at best"
        share = f", {each.share:.2f} times their price" if each.share != 1.0 else ""
        print(f"matrix products in {dtype}: {rate}{share} ({each.count} seen)")
    recorded = {row["key"] for row in _recorded_rows(platform)}
    if platform.host is not None and "host.link_rate" in recorded:
        print(f"copies to the host: {format_rate(platform.host.link_rate)}")
    exchanges = [
        {"kind": e.kind, "nbytes": e.nbytes, "ranks": e.ranks, "seconds": e.seconds}
        for e in found.collectives
    ]
    columns = [
        Column("kind", "collective", right=False, style="bold"),
        Column("nbytes", "size", format_size),
        Column("ranks", "ranks"),
        Column("seconds", "moves in", format_time),
    ]
    if exchanges:
        print()
        print_table(columns, exchanges[:_MOST_KINDS])


def _rows(platform: "Platform") -> list[dict[str, Any]]:
    """Return the bandwidth by working set, in bytes per second."""
    shared = platform.require_device().shared
    assert shared is not None
    return [{"set": key, **asdict(each), "basis": "measured"} for key, each in shared.sets.items()]


def _print(platform: "Platform") -> None:
    page().write(f"here: {platform.title}")
    titles = {"cached": "copy", "streamed": "past caches", "reduced": "sum of two"}
    columns = [Column("set", "bytes in use", right=True, style="bold")]
    for name, title in titles.items():
        columns.append(Column(name, title, format_rate))
        columns.append(Column(f"{name}_both", "both cores", format_rate))
    print_table(columns, _rows(platform))
    _print_rest(platform)


def _print_rest(platform: "Platform") -> None:
    device = platform.require_device()
    shared = device.shared
    assert shared is not None
    latency = platform.levels[0].latency
    rows = [
        (
            "a flag is seen",
            f"{format_time(latency)} spinning, {format_time(shared.yield_latency)} yielding",
        ),
        ("a prepared call", format_time(device.launch)),
        ("waking an engine", format_time(device.require_dma().fetch)),
        ("reading another process", format_rate(shared.far_rate)),
        (
            "products, one thread",
            ", ".join(
                f"{name} {each.achieved / 1e9:.1f} Gflop/s"
                for name, each in device.flops.items()
                if name in ("fp32", "fp64")
            ),
        ),
        ("copies go past the caches", f"from {format_size(shared.streamed_from)}"),
        ("messages are copied eagerly", f"up to {format_size(shared.eager_up_to)}"),
        ("reductions are copied eagerly", f"up to {format_size(shared.eager_reduced_up_to)}"),
    ]
    print()
    columns = [Column("what", "", right=False), Column("value", "", right=False)]
    print_table(columns, [{"what": what, "value": value} for what, value in rows])


_SHOWN = (64 << 10, 1 << 20, 16 << 20)  # sizes of collectives


def print_torch(platform: "Platform") -> None:
    """Print ops, host, collectives and codecs, as far as they were measured."""
    if platform.torch is not None:
        _print_op_models(platform)
        _print_host(platform)
        _print_libraries(platform)
    _print_noise(platform)


def _print_op_models(platform: "Platform") -> None:
    titles = {"flop": "Gflop/s at best", "byte": "GB/s at best"}
    rows = []
    for model in platform.require_device().op_models:
        best = {
            key: f"{1e-9 / model.terms[key]:.1f}" for key in titles if model.terms.get(key, 0.0) > 0
        }
        rows.append(
            {"family": model.family, "threads": model.threads, "error": model.error, **best}
        )
    columns = [
        Column("family", "ops of torch", right=False, style="bold"),
        Column("threads", "threads"),
        *(Column(key, title) for key, title in titles.items()),
        Column("error", "error on others", "{:.0%}".format),
    ]
    print()
    print_table(columns, rows)


def _print_host(platform: "Platform") -> None:
    host = platform.torch
    assert host is not None
    print(
        f"\nPython and autograd add {format_time(host.forward)} to an op of the forward pass, "
        f"{format_time(host.backward)} backward, {format_time(host.optimizer)} in the optimizer"
    )


def _print_libraries(platform: "Platform") -> None:
    from weft.cost.nccl import library_price

    cut, rows = platform.resized(2), []
    for library in platform.libraries:
        for fit in library.fits:
            sizes = {
                str(n): library_price(cut, fit.collective, n, name=library.name).seconds
                for n in _SHOWN
            }
            rows.append({"library": library.name, "kind": fit.collective, **sizes})
    columns = [
        Column("library", "library", right=False),
        Column("kind", "2 ranks", right=False, style="bold"),
        *(Column(str(n), format_size(n), format_time) for n in _SHOWN),
    ]
    print()
    print_table(columns, rows)


def _print_noise(platform: "Platform") -> None:
    noise = platform.noise
    if noise is None:
        return
    print(
        f"\nmeasured in {noise.seconds:.0f} s; others had {noise.foreign:.0%} of the cores, "
        f"a repeated copy moved by {noise.spread:.0%}"
    )
    if noise.is_noisy:
        print(
            "this machine was NOT quiet: calibrate again when it is, or expect errors of that size"
        )
