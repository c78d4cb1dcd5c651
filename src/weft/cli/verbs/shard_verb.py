"""``weft shard``: which rank should hold which embedding table."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.inputs import On, Ranks, Settings, machine_of, settings_of
from weft.cli.options import Json, to_file
from weft.cli.outputs import output_path, print_json, print_written, write
from weft.report.text import Column, print_table, print_wrapped
from weft.units import format_count, format_size, format_time

if TYPE_CHECKING:
    from weft.models.tables import Table
    from weft.planner.sharding import ShardingPlan

_BATCH = 4096


def shard(
    tables: Annotated[str, typer.Argument(metavar="TABLES")],
    *,
    on: On = None,
    ranks: Ranks = None,
    settings: Settings = None,
    json: Json = False,
    output: Annotated[
        str | None,
        to_file("Write the shards as .csv."),
    ] = None,
) -> None:
    """Choose a sharding and explain it."""
    from weft.models.named import tables_of
    from weft.planner.sharding import Sharder

    path, machine = output_path(output, (".csv",)), machine_of(on, ranks)
    found, batch = tables_of(tables, settings_of(settings), _BATCH)
    plans = Sharder(found, machine, batch).plans()
    rows = [_row(plan, plan is plans[0]) for plan in plans]
    note = write(path, _shards(plans[0], found)) if path else ""
    if json:
        print_json("shard", machine.name, rows, shards=_shards(plans[0], found))
    else:
        num_ranks = format_count(machine.num_ranks, "rank")
        title = f"{format_count(len(found), 'table')} on {num_ranks} of {machine.name}"
        _show(title, plans, rows)
    print_written(note, quiet=json)


def _row(plan: "ShardingPlan", chosen: bool) -> dict[str, Any]:
    return {
        "name": plan.name,
        "seconds": plan.seconds,
        "bytes_per_rank": plan.bytes_per_rank,
        "chosen": chosen,
        "lookups": plan.lookups,
        "exchange": plan.exchange,
        "basis": "predicted",
    }


def _shards(plan: "ShardingPlan", tables: "tuple[Table, ...]") -> list[dict[str, Any]]:
    return [
        {
            "table": tables[each.table].name,
            "rank": each.rank,
            "rows": each.rows,
            "dim": each.dim,
            "sharding": _sharding(each, tables[each.table]),
        }
        for each in plan.shards
    ]


def _sharding(shard: Any, table: "Table") -> str:
    if shard.by_rows:
        return "row-wise"
    return "table-wise" if shard.dim == table.dim else "column-wise"


def _show(title: str, plans: "list[ShardingPlan]", rows: list[dict[str, Any]]) -> None:
    from weft.planner.sharding import explain

    columns = [
        Column("name", "sharder", right=False, style="bold"),
        Column("seconds", "time", format_time),
        Column("lookups", "lookups", format_time),
        Column("exchange", "exchange", format_time),
        Column("bytes_per_rank", "fullest rank", format_size),
        Column("chosen", "", lambda chosen: "chosen" if chosen else "", right=False),
    ]
    print_table(columns, rows, title=f"{title}, predicted")
    print()
    print_wrapped(explain(plans[0], plans[1:]))
