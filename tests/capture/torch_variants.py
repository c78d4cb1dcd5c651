# mypy: ignore-errors
"""Training steps as people write them for GPUs, one function per variant, small.

Each function prepares and returns the step; ``VARIANTS`` has them by number of ranks.
"""

import argparse
import copy
import os
import sys
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from torch import nn
from torch.cuda import Event, Stream
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, TOKENS = 128, 4, 32


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self, width=WIDTH, norm=nn.LayerNorm, dropout=0.0):
        super().__init__()
        self.norm1, self.norm2 = norm(width), norm(width)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width) for _ in range(4))
        self.w1, self.w2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = dropout

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.w2(F.gelu(self.w1(self.norm2(x))))

    def attention(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, WIDTH // HEADS)) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(
            *(each.transpose(1, 2) for each in (q, k, v)), is_causal=True, dropout_p=self.dropout
        )
        return self.wo(y.transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """A few layers between an embedding and a projection."""

    def __init__(self, layers=2, norm=nn.LayerNorm, *, checkpointed=False, **options):
        super().__init__()
        self.embed = nn.Embedding(512, WIDTH)
        self.layers = nn.ModuleList(Block(norm=norm, **options) for _ in range(layers))
        self.norm, self.out = norm(WIDTH), nn.Linear(WIDTH, 512)
        self.checkpointed = checkpointed

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return self.out(self.norm(x))


def tokens(device="cuda"):
    return torch.randint(512, (4, TOKENS), device=device)


def training(model, *, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    batch = tokens()

    def step():
        F.cross_entropy(model(batch).flatten(0, -2).float(), batch.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# --- data parallel ---------------------------------------------------------------------------


def ddp():
    return training(DistributedDataParallel(Transformer().cuda()))


def ddp_with_device_ids():
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    model = Transformer().to(rank)
    return training(DistributedDataParallel(model, device_ids=[rank], output_device=rank))


def ddp_that_accumulates():
    model = DistributedDataParallel(Transformer().cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch = tokens()

    def step():
        with model.no_sync():
            model(batch).sum().backward()
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def ddp_with_unused_parameters():
    return training(DistributedDataParallel(Transformer().cuda(), find_unused_parameters=True))


def ddp_static_graph():
    model = Transformer(checkpointed=True).cuda()
    return training(DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True))


def ddp_with_bf16_hook():
    model = DistributedDataParallel(Transformer().cuda())
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return training(model)


def ddp_with_power_sgd():
    model = DistributedDataParallel(Transformer().cuda())
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return training(model)


def ddp_with_builtin_hook():
    model = DistributedDataParallel(Transformer().cuda())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return training(model)


def zero_redundancy_optimizer():
    model = DistributedDataParallel(Transformer().cuda())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW)
    return training(model, optimizer=optimizer)


def automatic_mixed_precision():
    model = DistributedDataParallel(Transformer().cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    scaler, batch = torch.amp.GradScaler("cuda"), tokens()

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch).float().sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step


# --- fully sharded ----------------------------------------------------------------------------


def fsdp1():
    model = FullyShardedDataParallel(
        Transformer().cuda(),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16),
        device_id=torch.cuda.current_device(),
    )
    return training(model)


def fsdp1_with_original_parameters():
    model = FullyShardedDataParallel(
        Transformer(),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        use_orig_params=True,
        device_id=dist.get_rank(),
    )
    return training(model)


def fsdp1_without_device():
    return training(FullyShardedDataParallel(Transformer().cuda()))


def fsdp2_resharded_within_a_host():
    return training(sharded(Transformer().cuda(), reshard_after_forward=4))


def sharded(model, mesh=None, **options):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def fsdp2():
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return training(sharded(Transformer().cuda(), mesh, mp_policy=policy))


def fsdp2_without_mesh():
    return training(sharded(Transformer().cuda()))


def fsdp2_not_resharded():
    model = sharded(Transformer().cuda(), reshard_after_forward=False)
    model.set_requires_gradient_sync(True)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = tokens()

    def step():
        model(batch).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def fsdp2_with_prefetch():
    model = sharded(Transformer(layers=4).cuda())
    layers = list(model.layers)
    for layer, following in pairwise(layers):
        layer.set_modules_to_forward_prefetch([following])
    for layer, following in pairwise(layers[::-1]):
        layer.set_modules_to_backward_prefetch([following])
    return training(model)


def fsdp2_offloaded():
    return training(sharded(Transformer(), offload_policy=CPUOffloadPolicy()))


def hsdp():
    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
    return training(sharded(Transformer().cuda(), mesh))


def fsdp2_from_meta():
    with torch.device("meta"):
        model = Transformer()
    sharded(model)
    model.to_empty(device="cuda")
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return training(model)


def initialised_from_meta():
    with torch.device("meta"):
        model = Transformer()
    return training(model.to_empty(device="cuda").to(torch.bfloat16))


# --- tensor and sequence parallel -------------------------------------------------------------

TENSOR_PARALLEL = {
    **{name: ColwiseParallel() for name in ("wq", "wk", "wv", "w1")},
    **{name: RowwiseParallel() for name in ("wo", "w2")},
}


def tensor_parallel():
    mesh = init_device_mesh("cuda", (4,))
    model = Transformer().cuda()
    for layer in model.layers:
        parallelize_module(layer, mesh, TENSOR_PARALLEL)
    return training(model)


def sequence_parallel():
    mesh = init_device_mesh("cuda", (4,))
    model = Transformer(norm=nn.RMSNorm).cuda()
    plan = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, plan)
    block = {
        "norm1": SequenceParallel(use_local_output=True),
        "norm2": SequenceParallel(use_local_output=True),
        **{w: ColwiseParallel(input_layouts=Shard(1)) for w in ("wq", "wk", "wv", "w1")},
        **{w: RowwiseParallel(output_layouts=Shard(1)) for w in ("wo", "w2")},
    }
    for layer in model.layers:
        parallelize_module(layer, mesh, block)
    return training(model)


def loss_parallel_step():
    mesh = init_device_mesh("cuda", (4,))
    model = Transformer().cuda()
    plan = {"out": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    parallelize_module(model, mesh, plan)
    optimizer, batch = torch.optim.AdamW(model.parameters()), tokens()

    def step():
        with loss_parallel():
            F.cross_entropy(model(batch).flatten(0, 1), batch.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fsdp2_and_tensor_parallel():
    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
    model = Transformer().cuda()
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], TENSOR_PARALLEL)
    return training(sharded(model, mesh["dp"]))


def context_parallel_step():
    mesh = init_device_mesh("cuda", (4,), mesh_dim_names=("cp",))
    model = Transformer().cuda()
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), 0)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randint(512, (4, 512), device="cuda")

    def step():
        with context_parallel(mesh, buffers=[batch], buffer_seq_dims=[1]):
            model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# --- pipelines --------------------------------------------------------------------------------


def stages(schedule, *, inputs=True, per_rank=1, micro_batches=8, **options):
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    device, total = torch.device("cuda"), ranks * per_rank
    shape = torch.randn(4, TOKENS, WIDTH, requires_grad=True)
    made = [
        PipelineStage(
            Block().cuda(),
            rank + ranks * index,
            total,
            device,
            group=group,
            **({"input_args": (shape,), "output_args": (shape,)} if inputs else {}),
        )
        for index in range(per_rank)
    ]
    run = schedule(
        made[0] if per_rank == 1 else made, micro_batches, loss_fn=nn.MSELoss(), **options
    )
    x = torch.randn(4 * micro_batches, TOKENS, WIDTH, device=device)
    parameters = [p for stage in made for p in stage.submod.parameters()]
    optimizer = torch.optim.AdamW(parameters)

    def step():
        first, last = made[0].is_first, made[-1].is_last
        run.step(*((x,) if first else ()), **({"target": x} if last else {}))
        optimizer.step()
        optimizer.zero_grad()

    return step


gpipe = partial(stages, ScheduleGPipe)
one_forward_one_backward = partial(stages, Schedule1F1B)
one_forward_one_backward_inferring_shapes = partial(stages, Schedule1F1B, inputs=False)
interleaved = partial(stages, ScheduleInterleaved1F1B, per_rank=2)
interleaved_inferring_shapes = partial(interleaved, inputs=False)


def three_dimensions():
    """Stages of a pipeline, each sharded over data and tensor parallel ranks."""
    mesh = init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    first = mesh["pp"].get_local_rank() == 0
    model = nn.Sequential(Block(), Block()).cuda()
    for layer in model:
        parallelize_module(layer, mesh["tp"], TENSOR_PARALLEL)
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    stage = PipelineStage(
        model, 0 if first else 1, 2, torch.device("cuda"), group=mesh["pp"].get_group()
    )
    run = Schedule1F1B(stage, 4, loss_fn=nn.MSELoss())
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(8, TOKENS, WIDTH, device="cuda")

    def step():
        run.step(x) if first else run.step(target=x)
        optimizer.step()
        optimizer.zero_grad()

    return step


# --- experts ----------------------------------------------------------------------------------


def experts_by_all_to_all():
    """Every rank holds one expert; tokens are sent in equal parts."""
    ranks = dist.get_world_size()
    expert = nn.Sequential(nn.Linear(WIDTH, 512), nn.GELU(), nn.Linear(512, WIDTH)).cuda()
    x = torch.randn(ranks * 16, WIDTH, device="cuda", requires_grad=True)

    def step():
        sent = funcol.all_to_all_single_autograd(x, None, None, dist.group.WORLD)
        back = funcol.all_to_all_single_autograd(expert(sent), None, None, dist.group.WORLD)
        back.sum().backward()

    return step


def experts_by_grouped_products():
    weights = nn.Parameter(torch.randn(8, WIDTH, 256, dtype=torch.bfloat16, device="cuda"))
    x = torch.randn(1024, WIDTH, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    ends = torch.arange(128, 1025, 128, dtype=torch.int32, device="cuda")
    return lambda: torch._grouped_mm(x, weights, offs=ends).square().sum().backward()


def routed_experts():
    """Routing as written by hand: top-k, a mask for each expert, gathered and added back."""
    gate = nn.Linear(WIDTH, 4).cuda()
    experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4)).cuda()
    x = torch.randn(64, WIDTH, device="cuda")

    def step():
        weights, chosen = gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(experts):
            rows, place = torch.where(chosen == number)
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
        out.sum().backward()

    return step


# --- compiled, checkpointed, streams ----------------------------------------------------------


def compiled():
    return training(torch.compile(Transformer().cuda()))


def compiled_in_place():
    model = Transformer().cuda()
    model.compile(mode="max-autotune")
    return training(model)


def compiled_layers_of_fsdp2():
    model = Transformer().cuda()
    for number, layer in enumerate(model.layers):
        model.layers[number] = torch.compile(layer, fullgraph=True)
    return training(sharded(model))


@torch.compile
def _scaled(x):
    return F.gelu(x) * 2


def compiled_by_decorator():
    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    return lambda: _scaled(x).sum().backward()


def checkpointed_with_rms_norm():
    return training(Transformer(norm=nn.RMSNorm, checkpointed=True).cuda())


def checkpointed_by_wrapper():
    model = Transformer(norm=nn.RMSNorm).cuda()
    apply_activation_checkpointing(model, check_fn=lambda each: isinstance(each, Block))
    return training(model)


def own_streams():
    side, done = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    model, x = nn.Linear(WIDTH, WIDTH).cuda(), torch.randn(64, WIDTH, device="cuda")

    def step():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = model(x)
            y.record_stream(side)
            done.record()
        torch.cuda.current_stream().wait_event(done)
        torch.cuda.synchronize()
        return y * 2

    return step


def main_of_torchrun():
    """A whole program as torchrun starts it, with names imported from torch."""
    init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    assert int(os.environ["RANK"]) == dist.get_rank()
    assert int(os.environ["WORLD_SIZE"]) == dist.get_world_size()
    local = dist.get_node_local_rank()
    assert local < int(os.environ["LOCAL_WORLD_SIZE"])
    assert os.environ["MASTER_ADDR"]
    assert os.environ["MASTER_PORT"]
    torch.cuda.set_device(local)
    side, done = Stream(), Event()
    model = DistributedDataParallel(Transformer().cuda(), device_ids=[local])
    optimizer, batch = torch.optim.AdamW(model.parameters()), tokens()
    with torch.cuda.stream(side):
        model(batch).sum().backward()
        done.record()
    done.synchronize()
    optimizer.step()
    destroy_process_group()


def polls_its_work():
    x = torch.randn(1 << 20, device="cuda")

    def step():
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            pass
        return x * 2

    return step


def averaged_weights():
    model = Transformer().cuda()
    average, teacher = torch.optim.swa_utils.AveragedModel(model), copy.deepcopy(model)
    step, batch = training(model), tokens()

    def averaging():
        step()
        with torch.no_grad():
            teacher(batch)
        average.update_parameters(model)

    return averaging


def encoder_of_torch():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).cuda()
    x = torch.randn(4, TOKENS, WIDTH, device="cuda")
    return lambda: model(x).sum().backward()


def graphed():
    model, x = nn.Linear(WIDTH, WIDTH).cuda(), torch.randn(8, WIDTH, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x)
    return graph.replay


def one_hot_of_unknown_classes():
    targets = torch.randint(512, (8,), device="cuda")
    return lambda: F.one_hot(targets).float() * 2


def asks_the_device():
    assert torch.cuda.is_available()
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.device("cuda", torch.cuda.current_device())
    torch.cuda.get_device_properties(device)
    torch.cuda.memory_allocated()
    loader = torch.utils.data.DataLoader(torch.zeros(64, WIDTH), batch_size=8, pin_memory=False)
    model = nn.Linear(WIDTH, WIDTH).cuda(0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer := torch.optim.SGD(model.parameters(), lr=0.1), 10
    )

    def step():
        with torch.profiler.record_function("step"), torch.cuda.nvtx.range("step"):
            for batch in loader:
                model(batch.to(device, non_blocking=True)).sum().backward()
            optimizer.step()
            scheduler.step()

    return step


def batches_of_tokens():
    """Batches cut from a file of tokens at random places, as small GPT trainers do."""
    data, length = np.zeros(1 << 14, dtype=np.int64), 256
    model = Transformer().cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def batch():
        places = torch.randint(len(data) - length, (4,))
        x = torch.stack([torch.from_numpy(data[i : i + length]) for i in places])
        assert x.shape == (4, length)
        return x.pin_memory().to("cuda", non_blocking=True)

    def step():
        loss = model(batch()).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def shuffled_loader():
    data = torch.utils.data.TensorDataset(torch.zeros(64, WIDTH), torch.zeros(64))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    model = nn.Linear(WIDTH, WIDTH).cuda()

    def step():
        for x, _ in loader:
            model(x.cuda()).sum().backward()

    return step


def truncated_normal():
    model = Transformer().cuda()
    for parameter in model.parameters():
        nn.init.trunc_normal_(parameter, std=0.02)
    return training(model)


def logs_across_ranks():
    step = ddp()

    def logging():
        step()
        names = [None] * dist.get_world_size()
        dist.all_gather_object(names, "rank")
        config = ["settings"]
        dist.broadcast_object_list(config, 0)
        dist.barrier()
        return names, config

    return logging


class OptimizerByHand(torch.optim.Optimizer):
    """Clips by a norm over all ranks, which the host reads, and keeps a momentum."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self):
        given = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in given]).norm()
        dist.all_reduce(norm)
        scale = 1 / (norm + 1e-6)
        if scale.item() <= 1:
            for p in given:
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
                self.state[p]["momentum"].mul_(0.9).add_(p.grad * scale)
                p.data.sub_(self.state[p]["momentum"])


# --- single lines that programs for GPUs have ----------------------------------------------------


def _vector(**options):
    return torch.randn(8, device="cuda", **options)


def _with_default_device():
    torch.set_default_device("cuda")
    x = nn.Linear(8, 8)(torch.randn(4, 8))
    x.sum().backward()


def _with_device_context():
    with torch.cuda.device(0), torch.cuda.device_of(_vector()), torch.device("cuda"):
        assert torch.randn(4, 4).is_cuda


def _synchronized_norm():
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    model = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(layers).cuda())
    model(torch.randn(4, 3, 16, 16, device="cuda")).sum().backward()


def _other_groups():
    for backend in ("gloo", "nccl", "cpu:gloo,cuda:nccl"):
        dist.all_reduce(_vector(), group=dist.new_group(backend=backend))
    dist.monitored_barrier()


def _streams_of_torch():
    stream, event = torch.Stream(device="cuda"), torch.Event(device="cuda")
    event.record(stream)
    stream.wait_event(event)
    stream.synchronize()
    assert torch.cuda.Stream(priority=-1).priority == -1
    low, high = torch.cuda.Stream.priority_range()
    assert high <= low
    assert torch.cuda.current_stream().stream_id == 0
    assert torch.cuda.current_stream().device.type == "cuda"
    torch.cuda.ExternalStream(0)


def _generator():
    generator = torch.Generator(device="cuda")
    generator.manual_seed(3)
    assert isinstance(generator, torch.Generator)
    torch.randn(4, generator=generator, device="cuda")


def _memory():
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 0
    assert torch.cuda.memory_summary()
    torch.cuda.memory._record_memory_history(max_entries=10)
    torch.cuda.memory._dump_snapshot("memory.pickle")
    torch.cuda.set_per_process_memory_fraction(0.5)
    torch.cuda.reset_accumulated_memory_stats()
    torch.accelerator.empty_cache()
    torch.accelerator.memory_allocated()


def _device():
    assert torch.cuda.can_device_access_peer(0, 1)
    assert not torch.cuda.is_current_stream_capturing()
    torch.cuda.set_sync_debug_mode("warn")
    assert torch.cuda.initial_seed() >= 0
    found = torch.cuda.get_device_properties(0)
    assert found.L2_cache_size > found.shared_memory_per_block > 0
    assert found.gcnArchName
    assert found.max_threads_per_multi_processor
    assert torch.accelerator.current_accelerator().type == "cuda"
    torch.cuda.cudart().cudaProfilerStart()
    torch.cuda.profiler.start()


def _where_a_tensor_is():
    x = _vector()
    assert x.is_cuda
    assert x.device == torch.device("cuda", torch.cuda.current_device())
    assert x.get_device() == torch.cuda.current_device()
    assert torch.zeros(4, device=x.device).device == x.to(x.device).device
    assert nn.Linear(4, 4, device=x.device).weight.is_cuda
    assert torch.empty(4, device="meta").device.type == "meta"


def _profiled():
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        _vector().exp()
        profiler.step()
    assert not str(profiler.key_averages().table(sort_by="cuda_time_total"))
    profiler.export_chrome_trace("trace.json")


def _compiled_module():
    model = nn.Linear(8, 8).cuda()
    compiled = torch.compile(model)
    assert compiled._orig_mod is model
    assert len(list(compiled.modules())) == 1


def _arguments():
    assert argparse.ArgumentParser().parse_args() == argparse.Namespace()


def _values_of_all_elements():
    x = _vector()
    assert x.cpu().numpy().shape == (8,)
    assert x.detach().float().cpu().numpy().mean() == 1.0
    assert x.tolist() == [1.0] * 8
    assert torch.equal(x, x + 0)
    assert torch.allclose(x, x + 0)


def _counted_experts():
    chosen = torch.randint(4, (64,), device="cuda")
    assert torch.bincount(chosen, minlength=4).shape == (4,)
    assert torch.histc(chosen.int(), bins=4, min=0, max=3).shape == (4,)
    assert torch.repeat_interleave(torch.randn(4, 2), torch.ones(4).long(), 0).shape == (4, 2)


LINES = (
    *(_with_default_device, _with_device_context, _synchronized_norm, _other_groups),
    *(_streams_of_torch, _generator, _memory, _device, _where_a_tensor_is, _profiled),
    *(_compiled_module, _arguments, _values_of_all_elements, _counted_experts),
)


def ends_the_program():
    return lambda: sys.exit(0)


def returns_a_module():
    return nn.Linear(8, 8)


def returns_a_model_and_a_step():
    model = nn.Linear(8, 8)
    return model, lambda: model(_vector())


def returns_a_step_with_arguments():
    return lambda batch, labels: batch @ labels


def nested_tensors():
    return lambda: torch.nested.nested_tensor([_vector(), _vector()])


def counts_unknown_values():
    chosen = torch.randint(4, (64,), device="cuda")
    return lambda: torch.bincount(chosen)


# --- models of the Hugging Face library ---------------------------------------------------------

SMALL = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
}
TEXT = {**SMALL, "vocab_size": 512}
DEEPSEEK = {
    **TEXT,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
}
MIXTRAL = {**TEXT, "num_key_value_heads": 2, "num_local_experts": 4}
GPT2 = {"n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 512}
VIT = {**SMALL, "image_size": 64, "patch_size": 16, "num_labels": 2}


def hugging_face(config, model, given, **sizes):
    hf = pytest.importorskip("transformers")
    made = getattr(hf, model)(getattr(hf, config)(**sizes)).to(torch.bfloat16).cuda()
    optimizer = torch.optim.AdamW(made.parameters())
    inputs = given()

    def step():
        made(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def text():
    ids = torch.randint(512, (2, 64), device="cuda")
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def images():
    pixels = torch.randn(2, 3, 64, 64, dtype=torch.bfloat16, device="cuda")
    return {"pixel_values": pixels, "labels": torch.zeros(2, dtype=torch.long, device="cuda")}


LLAMA = {**TEXT, "num_key_value_heads": 2}
hf_llama = partial(hugging_face, "LlamaConfig", "LlamaForCausalLM", text, **LLAMA)
hf_mixtral = partial(hugging_face, "MixtralConfig", "MixtralForCausalLM", text, **MIXTRAL)
hf_bert = partial(hugging_face, "BertConfig", "BertForMaskedLM", text, **TEXT)
hf_gpt2 = partial(hugging_face, "GPT2Config", "GPT2LMHeadModel", text, **GPT2)
hf_vit = partial(hugging_face, "ViTConfig", "ViTForImageClassification", images, **VIT)
hf_deepseek = partial(hugging_face, "DeepseekV3Config", "DeepseekV3ForCausalLM", text, **DEEPSEEK)

# By number of ranks, what is captured on it.
VARIANTS = {
    8: (
        *(ddp, ddp_with_device_ids, ddp_that_accumulates, ddp_with_unused_parameters),
        *(ddp_static_graph, ddp_with_bf16_hook, ddp_with_power_sgd, ddp_with_builtin_hook),
        *(zero_redundancy_optimizer, automatic_mixed_precision, logs_across_ranks),
        *(fsdp1, fsdp1_with_original_parameters, fsdp2, fsdp2_without_mesh, fsdp2_not_resharded),
        *(fsdp2_with_prefetch, hsdp, fsdp2_from_meta, fsdp2_and_tensor_parallel),
        *(experts_by_all_to_all, compiled_layers_of_fsdp2, three_dimensions, main_of_torchrun),
        *(fsdp1_without_device, fsdp2_resharded_within_a_host, polls_its_work),
    ),
    4: (
        *(tensor_parallel, sequence_parallel, loss_parallel_step, context_parallel_step),
        *(gpipe, one_forward_one_backward, one_forward_one_backward_inferring_shapes),
        *(interleaved, interleaved_inferring_shapes),
    ),
    1: (
        *(initialised_from_meta, experts_by_grouped_products, routed_experts, compiled),
        *(compiled_in_place, compiled_by_decorator, checkpointed_with_rms_norm),
        *(checkpointed_by_wrapper, own_streams, asks_the_device, truncated_normal),
        *(averaged_weights, encoder_of_torch, batches_of_tokens, shuffled_loader),
        *(hf_llama, hf_mixtral, hf_bert, hf_gpt2, hf_vit, hf_deepseek),
    ),
}
REFUSED = (
    *(fsdp2_offloaded, graphed, one_hot_of_unknown_classes, ends_the_program, nested_tensors),
    counts_unknown_values,
)
# What is returned where a step is expected.
NO_STEP = (returns_a_module, returns_a_model_and_a_step, returns_a_step_with_arguments)


def name_of(variant):
    return next(name for name, value in globals().items() if value is variant)
