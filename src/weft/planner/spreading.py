"""A named model spread over the ranks of a platform so that it fits, unless settings say how."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.errors import NoPlanError, UsageError
from weft.models.dlrm import Dlrm
from weft.models.find import find_job, find_workload, is_configuration
from weft.models.folding import shortened
from weft.models.named import model_named, workload_names
from weft.models.transformer import Transformer
from weft.models.transformer_layout import Layout
from weft.models.transformer_memory import fullest_memory
from weft.planner.predict import check_memory
from weft.units import digits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weft.hardware import Platform
    from weft.models.job import Job
    from weft.step import StepGraph

Settings = dict[str, str]


def spread(
    spec: str,
    platform: Platform,
    settings: Mapping[str, str] | None = None,
    *,
    anyway: bool = False,
) -> tuple[StepGraph, Settings]:
    """Return the workload, shortened if it is long, and the settings added so that it fits.

    What was given is taken as it is. If that does not divide or does not fit, a named model gets
    the least that helps: a sample for each data-parallel rank, weights shared out, activations
    computed twice, then tensors split inside a node. With ``anyway`` nothing has to fit.
    """
    given = dict(settings or {})
    try:
        return _fitting(spec, platform, given, anyway=anyway), {}
    except (UsageError, NoPlanError) as first:
        if spec not in workload_names() and not is_configuration(spec):
            raise
        larger: NoPlanError | None = None
        for added in _layouts(spec, platform, given):
            try:
                return _fitting(spec, platform, given | added, anyway=anyway), added
            except UsageError:
                continue
            except NoPlanError as error:
                tried = " ".join(f"--set {key}={value}" for key, value in added.items())
                larger = NoPlanError(f"{first.args[0]}; with {tried}, {error.args[0]}", error.hint)
        # A batch that is too small hides that no batch fits: say both.
        raise larger if larger and isinstance(first, UsageError) else first from None


def why_spread(spec: str, platform: Platform, settings: Mapping[str, str]) -> str:
    """Return why settings had to be added to those that were given."""
    job = find_job(spec, platform.num_ranks, settings)
    if job is not None and isinstance(job.model, Transformer):
        try:
            Layout(job.model, job.num_ranks)
        except UsageError as refused:
            return str(refused.args[0])
    return "does not fit into memory as configured"


def _fitting(
    spec: str, platform: Platform, settings: Mapping[str, str], *, anyway: bool
) -> StepGraph:
    job = find_job(spec, platform.num_ranks, settings)
    if job is None:
        graph = find_workload(spec, platform.num_ranks, settings)
    elif isinstance(job.model, Transformer):
        # of all micro batches, and before any op is written: most layouts that are tried end here
        memory = fullest_memory(job.model, Layout(job.model, job.num_ranks))
        if not anyway:
            check_memory(job.name, memory, platform)
        return shortened_graph(job)
    else:
        graph = job.graph()
    if not anyway:
        check_memory(graph.name, graph.memory, platform)
    return graph


def shortened_job(job: Job) -> Job:
    """Return a job of which many micro batches are left out, itself where it has few."""
    if not isinstance(job.model, Transformer):
        return job
    model = shortened(job.model, job.num_ranks)
    return job if model is job.model else replace(job, model=model)


def shortened_graph(job: Job) -> StepGraph:
    """Return the step of a job, shortened if it is long, with the memory of the whole one."""
    graph = shortened_job(job).graph()
    if not isinstance(job.model, Transformer):
        return graph
    return replace(graph, memory=fullest_memory(job.model, Layout(job.model, job.num_ranks)))


def _layouts(spec: str, platform: Platform, given: Mapping[str, str]) -> Iterator[Settings]:
    """Return settings to try, the least intrusive first; none that was given is changed."""
    ranks = platform.num_ranks
    model = None if is_configuration(spec) else model_named(spec)  # files have transformers
    if isinstance(model, Dlrm):
        layouts = [{"batch": str(max(1, round(model.batch / ranks)) * ranks)}]
    else:
        layouts = list(_transformer_layouts(ranks, platform.node_size, given))
    for each in layouts:
        added = {key: value for key, value in each.items() if key not in given}
        if added:
            yield added


def _transformer_layouts(
    num_ranks: int, node_size: int, given: Mapping[str, str]
) -> Iterator[Settings]:
    """Split tensors among more and more ranks of a node; ``tp`` and ``pp`` stay as given."""
    stages = digits(given.get("pp", "")) or 1
    fixed = digits(given.get("tp", "")) or 0
    tp = fixed or 1
    while tp <= (fixed or node_size) and num_ranks % (tp * stages) == 0:
        replicas = num_ranks // tp // stages
        batch = {"batch": str(replicas)}
        if (digits(given.get("batch", "")) or 0) > replicas:
            batch |= {"micro_batch": "1"}  # gradients of several accumulate
        split = {"tp": str(tp)} if tp > 1 else {}
        yield batch | split
        yield batch | split | {"fsdp": "true"}
        yield batch | split | {"fsdp": "true", "recompute": "true"}
        tp *= 2
