"""``weft gpu-check``: the first hour on a node of GPUs, in one file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.inputs import On
from weft.cli.options import Json, to_file
from weft.cli.outputs import output_path, print_json, print_written
from weft.errors import UsageError
from weft.report.text import Column, print_table
from weft.units import format_time

if TYPE_CHECKING:
    from weft.calibration.gpu_check.torch_run_check import CheckResult

_SHOWN = 14  # rows of the error table


def gpu_check(
    *,
    on: On = None,
    json: Json = False,
    output: Annotated[
        str | None, to_file("Write the result as .jsonl, and the platform next to it as .toml.")
    ] = None,
) -> int:
    """Run every part; return 1 if something was wrong."""
    path = output_path(output, (".jsonl",))
    result = run_parts(path, on, only_measure=False)
    if result is None:
        return 0
    if json:
        print_json("gpu-check", on, result.lines, sha256=result.sha256, passed=result.passed)
    else:
        _print(result)
    if path is not None:
        print_written(f"wrote {path} and {save_platform(result, path.with_suffix('.toml'))}")
    return 0 if result.passed else 1


def run_parts(path: Path | None, on: str | None, *, only_measure: bool) -> "CheckResult | None":
    """Run a check on this rank; None on all ranks but the first, which shows it."""
    import os
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise UsageError("gpu-check needs PyTorch.", "Install it: pip install torch.")
    from weft.calibration.gpu_check.torch_run_check import prepare, run_check

    is_first = os.environ.get("RANK", "0") == "0"
    text = prepare()
    if text and is_first:
        typer.echo(text, err=True)
    if path is not None and is_first:
        path.unlink(missing_ok=True)
    found = run_check(path, on=on, only_measure=only_measure)
    return found if is_first else None


def save_platform(result: "CheckResult", path: Path) -> Path:
    """Write the platform of a check; return where."""
    from weft.calibration.machine_calibration import save

    assert result.platform is not None
    return save(result.platform, path)


def _print(result: "CheckResult") -> None:
    wrong = [line for line in result.lines if line.get("passed") is False]
    checks = result.part("correctness")
    ran = [line for line in checks if line.get("passed") is not None]
    name = result.part("facts")[0]["device"]["name"]
    what = f"{result.num_ranks} x {name}" if result.is_gpu else f"{result.num_ranks} CPU ranks"
    print(f"{what}: {len(ran) - len(wrong)} of {len(ran)} checks of correctness passed")
    print(f"predictions were written first: sha256 {result.sha256}")
    for line in (*wrong, *(line for line in result.lines if "skipped" in line)):
        text = line.get("skipped") or line.get("note") or f"{line.get('wrong')} wrong"
        print(f"  {'skipped' if 'skipped' in line else 'WRONG'}: {line['case']}: {text}")
    rows = result.part("errors")
    held = [row for row in rows if row["held_out"]]
    columns = [
        Column("case", "held out", right=False, style="bold"),
        *(Column(key, key, _seconds) for key in ("measured", "predicted", "calibrated")),
        Column("predicted_error", "error", _percent),
        Column("calibrated_error", "calibrated", _percent),
    ]
    print()
    print_table(columns, held[:_SHOWN])
    for group in dict.fromkeys(row["group"] for row in rows):
        print(_mean(group, [row for row in held if row["group"] == group]))
    paths = [line for line in result.part("paths") if "path" in line]
    for line in paths[:_SHOWN]:
        print(f"{line['case']}: {line['path']}, {line['ctas']} CTAs {line['detail']}")
    (launch,) = result.part("launches")
    print(f"a launch takes {format_time(launch['host'])} of the host")


def _seconds(value: Any) -> str:
    return "-" if value is None else format_time(value)


def _percent(value: Any) -> str:
    return "-" if value is None else f"{value:+.0%}"


def _mean(group: str, rows: list[dict[str, Any]]) -> str:
    text = []
    for key in ("predicted", "calibrated"):
        errors = [abs(row[f"{key}_error"]) for row in rows if row[f"{key}_error"] is not None]
        text.append(f"{key} {sum(errors) / len(errors):.0%}" if errors else f"{key} -")
    return f"mean error of {group} cases held out: {', '.join(text)}"
