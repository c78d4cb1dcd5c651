"""Which layer may import which, read from the source alone."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

# layer: the layers it may import besides itself, errors, units and result_tables
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "units": set(),
    "result_tables": set(),
    "schedule": {"_core"},
    "hardware": set(),
    "compress": {"_core"},
    "timeline": {"schedule"},
    "collectives": {"schedule", "hardware", "compress"},
    "fused": {"schedule", "collectives"},
    "cost": {"schedule", "hardware"},
    "simulator": {"schedule", "timeline", "hardware", "cost", "_core"},
    "runtime": {"schedule", "timeline", "hardware", "collectives", "compress", "_core"},
}
LAYERS["step"] = {"schedule", "timeline", "hardware", "cost", "simulator", "_core"}
LAYERS["models"] = {"schedule", "hardware", "step"}
LAYERS["c3"] = {"schedule", "hardware", "collectives", "cost", "simulator", "timeline", "_core"}
LAYERS["gpu"] = {"schedule", "hardware"}
LAYERS["planner"] = set(LAYERS) - {"runtime"}
LAYERS["serving"] = {"planner", *LAYERS["planner"]}
LAYERS["sweep"] = set()
LAYERS["trace"] = {"schedule", "timeline", "hardware", "cost", "planner", "step", "_core"}
LAYERS["whatif"] = {"trace", "planner"} | LAYERS["trace"] | LAYERS["planner"]
LAYERS["api"] = {"whatif", *LAYERS["whatif"]}
LAYERS["torch"] = {"_core", *LAYERS}
LAYERS["calibration"] = {"_core", *LAYERS}
LAYERS["local_runs"] = {"_core", *LAYERS}
LAYERS["report"] = {"_core", *LAYERS}
LAYERS |= {layer: {"_core", "cli", "weft", *LAYERS} for layer in ("cli", "weft", "__main__")}

# package: the layers that may import it; the standard library is free to all
ANY_LAYER = set(LAYERS) - {"errors", "units"}
PACKAGES = {
    "numpy": ANY_LAYER,
    "msgspec": ANY_LAYER,
    "tomli": ANY_LAYER,
    "typer": {"cli"},
    "click": {"cli"},
    "rich": {"cli", "report"},
    "pandas": {"result_tables"},
    "distributed": {"sweep"},
    "pyarrow": {"cli"},
    "yaml": {"models"},
    "torch": ANY_LAYER,  # in the files that say so: see the test below
    "triton": ANY_LAYER,
}
OPTIONAL = {"torch", "triton", "pandas"}
OPTIONAL |= {"distributed", "pyarrow", "yaml"}
# A lower layer that may load a higher one on demand, because only some of its calls need it.
ON_DEMAND = {
    ("weft.models.find", "weft.torch.capture.capture_step.capture"),
    ("weft.torch.monitoring.overlap_report", "weft.report.analysis_page.page"),  # if HTML is wanted
}
TYPING = "if TYPE_CHECKING"  # such an import is never carried out, so it closes no cycle


@dataclass(frozen=True)
class Module:
    """One source file under its dotted name."""

    name: str
    source: str
    is_package: bool = False

    @property
    def layer(self) -> str:
        return layer_of(self.name)

    def imports(self) -> Iterator["Import"]:
        return self._walk(ast.parse(self.source), function="")

    def _walk(self, node: ast.AST, function: str) -> Iterator["Import"]:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.Import() | ast.ImportFrom():
                    for target in self._targets(child):
                        yield Import(self, target, function, child.lineno)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    yield from self._walk(child, child.name)
                case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                    yield from self._walk(child, TYPING)
                case _:
                    yield from self._walk(child, function)

    def _targets(self, node: ast.Import | ast.ImportFrom) -> list[str]:
        prefix = f"{self._origin(node)}." if isinstance(node, ast.ImportFrom) else ""
        return [prefix + alias.name for alias in node.names]

    def _origin(self, node: ast.ImportFrom) -> str:
        """Resolve ``from ..x import y`` to an absolute name."""
        parts = self.name.split(".")
        package = parts[: len(parts) - node.level + self.is_package] if node.level else []
        return ".".join([*package, *filter(None, [node.module])])


@dataclass(frozen=True)
class Import:
    """``target`` is imported by ``module``, in ``function`` or at the top."""

    module: Module
    target: str
    function: str
    line: int

    def __str__(self) -> str:
        return f"{self.module.name}:{self.line} imports {self.target}"

    @property
    def package(self) -> str:
        return self.target.split(".")[0]

    @property
    def is_allowed(self) -> bool:
        if self.function and (self.module.name, self.target) in ON_DEMAND:
            return True
        if self.package == "weft":
            layer = layer_of(self.target)
            shared = {self.module.layer, "errors", "units", "result_tables"}
            return layer in shared | LAYERS.get(self.module.layer, set())
        if self.package in sys.stdlib_module_names:
            return True
        return self.module.layer in PACKAGES.get(self.package, set())

    @property
    def is_in_its_place(self) -> bool:
        """Inside a function stand only optional dependencies, cli verbs and ``__getattr__``."""
        at_top = self.function in ("", TYPING) or self.module.layer == "cli"
        at_top |= (self.module.name, self.target) in ON_DEMAND
        on_demand = self.function == "__getattr__" and self.module.is_package
        return at_top or on_demand or self.package in OPTIONAL or self._leads_to_optional

    @property
    def _leads_to_optional(self) -> bool:
        parts = self.target.split(".")
        return layer_of(self.target) in OPTIONAL or any(
            part.startswith(("torch_", "triton_")) for part in parts
        )

    @property
    def is_where_torch_belongs(self) -> bool:
        name = self.module.name.split(".")[-1]
        if self.package == "triton":
            return name.startswith("triton_")
        if self.package == "torch":
            return self.module.layer in ("torch", "gpu") or name.startswith(("torch_", "triton_"))
        return True


def layer_of(name: str) -> str:
    """Name the layer of a module: ``weft.schedule.ir`` is in ``schedule``, a value of weft in weft.

    >>> layer_of("weft.schedule.ir"), layer_of("weft"), layer_of("weft.simulate")
    ('schedule', 'weft', 'weft')
    """
    first = [*name.split("."), "weft"][1]
    return first if first in {"_core", *LAYERS} else "weft"


def read_module(path: Path) -> Module:
    parts = path.relative_to(SRC).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return Module(".".join(parts[: -1 if is_package else None]), path.read_text(), is_package)


def edges(modules: dict[str, Module]) -> dict[str, set[str]]:
    """Return for each module the modules that it needs in order to be imported."""
    return {
        name: {
            found
            for i in module.imports()
            if not i.function and (found := module_of(i.target, modules)) not in ("", name)
        }
        for name, module in modules.items()
    }


def module_of(target: str, modules: dict[str, Module]) -> str:
    """Find the module in ``weft.module.Class``: the longest part that is one, none for packages."""
    while target and target not in modules:
        target = target.rpartition(".")[0]
    return target


def find_cycle(modules: dict[str, Module]) -> list[str]:
    try:
        TopologicalSorter(edges(modules)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


MODULES = {m.name: m for m in map(read_module, sorted(SRC.rglob("*.py")))}
every_module = pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())


@every_module
def test_a_module_stands_in_a_layer_of_the_table(module):
    assert module.name.split(".")[1:2] in ([], [module.layer])


@every_module
def test_a_layer_imports_only_what_it_may(module):
    assert not [str(i) for i in module.imports() if not i.is_allowed]


@every_module
def test_imports_stand_at_the_top(module):
    assert not [str(i) for i in module.imports() if not i.is_in_its_place]


@every_module
def test_torch_and_triton_stay_in_the_files_named_after_them(module):
    assert not [str(i) for i in module.imports() if not i.is_where_torch_belongs]


def test_no_module_needs_itself():
    assert not find_cycle(MODULES)


def test_a_module_of_no_layer_is_found():
    assert Module("weft.elsewhere.ir", "").layer != "elsewhere"


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("weft.schedule.ir", "import weft.hardware"),
        ("weft.schedule.ir", "from weft import simulate"),
        ("weft.schedule.ir", "from ..timeline import Span"),
        ("weft.simulator.solver", "from weft.runtime import world"),
        ("weft.planner.search", "if x:\n    from weft import runtime"),
        ("weft.planner.search", "def f():\n    from weft import runtime"),
        ("weft.units", "import numpy"),
        ("weft.report.html", "import pandas"),
        ("weft.cost.gemm", "import rich.table"),
    ],
)
def test_a_forbidden_import_is_found(name, source):
    assert [i for i in Module(name, source).imports() if not i.is_allowed]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("weft.schedule.ir", "from . import check\nfrom ..errors import WeftError\nimport json"),
        ("weft.simulator.solver", "from weft import _core\nfrom weft._core import solve"),
        ("weft.cli.verbs.bench_verb", "from weft import simulate\nimport typer"),
        ("weft.local_runs.contest", "from weft.torch.backend.process_group import x"),
    ],
)
def test_an_allowed_import_passes(name, source):
    assert all(i.is_allowed for i in Module(name, source).imports())


def test_an_import_inside_a_function_is_found():
    module = Module("weft.cost.gemm", "def f():\n    import json")
    assert not any(i.is_in_its_place for i in module.imports())


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("weft.cli.verbs.plan_verb", "def plan():\n    from weft.planner import search"),
        ("weft", "def __getattr__(name):\n    import weft.simulator"),
        ("weft.trace.frame", "def draw():\n    import pandas"),
        ("weft.step", "def f():\n    from weft.torch.capture.capture_step import capture"),
    ],
)
def test_an_import_that_may_wait_passes(name, source):
    module = Module(name, source, is_package=True)
    assert all(i.is_in_its_place for i in module.imports())


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("weft.runtime.world", "import torch.distributed"),
        ("weft.torch.backend.process_group", "import triton"),
        ("weft.report.html", "def f():\n    import torch"),
    ],
)
def test_torch_out_of_its_place_is_found(name, source):
    assert not all(i.is_where_torch_belongs for i in Module(name, source).imports())


def test_an_import_for_types_alone_closes_no_cycle():
    source = "if TYPE_CHECKING:\n    from weft.a import x"
    modules = [Module("weft.a", "import weft.b"), Module("weft.b", source)]
    assert not find_cycle({m.name: m for m in modules})


def test_a_cycle_is_found():
    modules = [
        Module("weft.a", "from weft.b import x"),
        Module("weft.b", "from . import c"),
        Module("weft.c", "import weft.a"),
    ]
    assert len(find_cycle({m.name: m for m in modules})) == 4
