"""``weft models``: the workloads that are known by name, and the settings of one of them."""

from typing import Annotated, Any

import typer

from weft.cli.inputs import complete_workload
from weft.cli.options import Json
from weft.cli.outputs import print_json
from weft.report.text import Column, page, print_table


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="The workload whose settings to list; default: all workloads.",
            autocompletion=complete_workload,
            show_default=False,
        ),
    ] = None,
    *,
    json: Json = False,
) -> None:
    """List the workloads, or the settings of one."""
    if name is None:
        rows = _all()
        columns = [
            Column("name", "workload", right=False, style="bold"),
            Column("parameters", "parameters", lambda count: f"{count / 1e9:.3g} B"),
            Column("family", "family", right=False),
        ]
        title = "Workloads by name; weft models NAME lists the settings of one"
    else:
        from weft.models.named import settings_of_model

        found = settings_of_model(name)
        rows = [{"setting": k, "value": v, "takes": _takes(v)} for k, v in sorted(found.items())]
        columns = [
            Column("setting", "setting", right=False, style="bold"),
            Column("value", "value", _written, right=False),
            Column("takes", "takes", right=False),
        ]
        title = f"Settings of {name}: --set SETTING=VALUE; docs/models.md says what each is"
    if json:
        print_json("models", None, rows)
        return
    place = page()
    print_table(columns, rows, to=place, title=title)


def _all() -> list[dict[str, Any]]:
    from weft.models.named import DLRMS
    from weft.models.zoo import MODELS

    dense = [
        {
            "name": name,
            "family": "experts" if model.experts else "dense",
            "parameters": model.parameters,
        }
        for name, model in MODELS.items()
    ]
    sparse = [
        {
            "name": name,
            "family": "dlrm",
            "parameters": sum(table.rows * table.dim for table in model.tables),
        }
        for name, model in DLRMS.items()
    ]
    return [*sparse, *dense]


def _takes(value: object) -> str:
    match value:
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case tuple():
            return "a list, as [1, 2]"
        case _:
            return "a name"


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)
