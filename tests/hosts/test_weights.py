"""Weight updates: every receiver holds the sender's bytes, whatever it missed."""

import pytest
import torch
import torch.distributed as dist

import weft.torch
from tests.hosts.ranks import few, on_hosts
from tests.torch.ranks import on_ranks
from tests.torch.test_faults import error_of
from weft.errors import UsageError
from weft.torch.weights import weight_layout
from weft.torch.weights.weight_layout import PIECE_BYTES, Segment, WeightLayout

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(120)]

SPLITS = {"two by two": tuple("aabb"), "in a row": tuple("abc"), "one": tuple("aaa")}


def model(seed):
    """Return tensors of many dtypes, one of them tied, and more bytes than a piece."""
    generator = torch.Generator().manual_seed(seed)
    table = (torch.randn(3_000_001, generator=generator) * 0.02).to(torch.bfloat16)
    return {
        "table": table,
        "bias": torch.randn(7, generator=generator),
        "empty": torch.zeros(0),
        "steps": torch.tensor(seed),
        "mask": torch.arange(5) % 2 == 0,
        "head": table,
        "norm": torch.randn(4097, generator=generator).half(),
    }


def change(tensors, seed, share=0.01):
    """Change some of the values by one unit in the last place, and some altogether."""
    generator = torch.Generator().manual_seed(seed)
    bits = tensors["table"].view(torch.int16)
    bits += (torch.rand(len(bits), generator=generator) < share).short()
    tensors["table"][seed] = float("nan")
    tensors["bias"][seed % 7] = -0.0
    tensors["steps"] += 1


def same_bytes(tensors, others):
    return all(
        torch.equal(a.view(-1).view(torch.uint8), b.view(-1).view(torch.uint8))
        for a, b in zip(tensors.values(), others.values(), strict=True)
    )


def trained_and_served():
    """Return for each update what was sent, or which version was held and whether it is exact."""
    rank, want = dist.get_rank(), model(1)
    seen: list[tuple[object, ...]] = []
    group = dist.new_group()
    if rank == 0:
        sender = weft.torch.WeightSender(want, group=group)
        for seed in range(4):
            change(want, seed, 0.9 if seed == 3 else 0.01)
            update = sender.publish()
            seen.append((update.version, update.full, update.nbytes // update.wire_bytes))
        return seen
    held = model(2)
    receiver = weft.torch.WeightReceiver(held, group=group)
    for seed in range(4):
        before = {name: tensor.clone() for name, tensor in held.items()}
        receiver.stage()
        change(want, seed, 0.9 if seed == 3 else 0.01)
        receiver._wait(None)
        waits = same_bytes(before, held)  # what is staged does not show
        seen.append((receiver.switch(), waits and same_bytes(want, held)))
    receiver.close()
    return seen


@pytest.mark.parametrize("hosts", few(SPLITS, "two by two"))
def test_every_receiver_holds_the_senders_bytes(hosts):
    sent, *received = on_hosts(trained_and_served, hosts)
    assert all(seen == [(1, True), (2, True), (3, True), (4, True)] for seen in received)
    everyone = tuple(range(1, len(hosts)))
    assert [each[:2] for each in sent] == [(1, everyone), (2, ()), (3, ()), (4, ())]
    assert min(each[2] for each in sent[1:3]) >= 50


def missed_and_late():
    """Rank 1 forgets after the first update, rank 2 has its tensors changed by somebody else."""
    rank, want, seen = dist.get_rank(), model(1), []
    if rank == 0:
        sender = weft.torch.WeightSender(want)
        for seed in range(4):
            change(want, seed)
            seen.append(sender.publish().full)
        return seen
    held = model(2)
    receiver = weft.torch.WeightReceiver(held)
    for seed in range(4):
        change(want, seed)
        if rank == 1 and seed == 1:
            receiver.forget()
        if rank == 2 and seed == 2:
            held["table"].view(torch.int16).add_(1)
        receiver.stage()
        if seed != 2:  # two updates are staged before the last switch
            receiver.switch()
            seen.append(same_bytes(want, held))
    return [*seen, receiver.version]


def test_a_receiver_that_missed_an_update_gets_all_values():
    sent, *received = on_hosts(missed_and_late, "abb")
    assert sent == [(1, 2), (1,), (2,), ()]
    assert received == [[True, True, True, 4]] * 2


def all_forget():
    """The only receiver forgets: nobody can use what changed, so that is never sent."""
    rank, want, seen = dist.get_rank(), model(1), []
    held = model(2)
    sender = weft.torch.WeightSender(want) if rank == 0 else None
    receiver = None if sender else weft.torch.WeightReceiver(held)
    for seed in range(4):
        change(want, seed)
        if sender is not None:
            sender.publish()
            continue
        assert receiver is not None
        if seed % 2:
            receiver.forget()
        receiver.stage()
        receiver.switch()
        seen.append(same_bytes(want, held))
    return seen


def test_an_update_that_no_receiver_can_use_is_sent_whole_with_the_values_of_now():
    assert on_ranks(all_forget, 2)[1] == [True] * 4


def views_of_one():
    """Tensors inside of another one change with it."""
    rank, x, seen = dist.get_rank(), torch.zeros(1000), []
    tensors = {"first": x[:100], "all": x, "inside": x[50:150], "again": x}
    end = weft.torch.WeightSender(tensors) if rank == 0 else weft.torch.WeightReceiver(tensors)
    for value in (1.0, 2.0, 3.0):
        if isinstance(end, weft.torch.WeightSender):
            x[60] = value
            end.publish()
        else:
            end.stage()
            end.switch()
        seen.append(float(x[60]))
    return seen


def test_views_of_a_tensor_are_updated_once():
    assert on_ranks(views_of_one, 2) == [[1.0, 2.0, 3.0]] * 2


def unusable_tensors():
    x = torch.zeros(8, dtype=torch.complex64)
    halves = {"low": x[:5], "high": x[3:]}
    try:
        if dist.get_rank() == 0:
            weft.torch.WeightSender({"x": x.conj()})
        else:
            weft.torch.WeightReceiver(halves)
    except UsageError as error:
        return str(error)
    return ""


def test_tensors_that_overlap_in_part_or_are_conjugated_are_refused():
    conjugated, overlap = on_ranks(unusable_tensors, 2)
    assert "'x' lazily conjugated" in conjugated
    assert "'low' and 'high' share" in overlap


def changed_after_staging():
    rank, want = dist.get_rank(), model(1)
    if rank == 0:
        sender = weft.torch.WeightSender(want)
        sender.publish()
        change(want, 1)
        sender.publish()
        return list(sender.publish().full)
    receiver = weft.torch.WeightReceiver(held := model(2))
    receiver.stage()
    receiver.switch()
    receiver.stage()
    receiver._wait(None)
    held["table"].view(torch.int16).add_(1)
    name, text = error_of(receiver.switch)
    receiver.stage()
    receiver.switch()
    change(want, 1)
    return [name, "'table' was changed after" in text, same_bytes(want, held)]


def test_tensors_that_change_between_stage_and_switch_raise_and_recover():
    assert on_ranks(changed_after_staging, 2) == [[1], ["StaleWeightsError", True, True]]


def other_tensors():
    rank = dist.get_rank()
    if rank == 0:
        return error_of(weft.torch.WeightSender({"w": torch.zeros(8)}).publish)
    receiver = weft.torch.WeightReceiver({"w": torch.zeros(9)})
    receiver.stage()
    return error_of(receiver.switch)


def test_ranks_with_other_tensors_get_an_error():
    for name, text in on_ranks(other_tensors, 2):
        assert name == "DisagreeError"
        assert "has 1 of 36 bytes" in text
        assert "has 1 of 32 bytes" in text


def reshaped_tensors():
    """A receiver has the bytes of the sender in another shape, then in the same."""
    if dist.get_rank() == 0:
        sender = weft.torch.WeightSender({"w": torch.arange(6.0).view(2, 3)})
        return error_of(sender.publish)[0], sender.publish().full
    held = torch.zeros(3, 2)
    receiver = weft.torch.WeightReceiver({"w": held})
    receiver.stage()
    failed = error_of(receiver.switch)[0]
    held.resize_(2, 3)
    receiver.stage()
    receiver.switch()
    return failed, held.tolist()


def test_other_shapes_are_refused_once_and_the_receiver_goes_on():
    sender, receiver = on_ranks(reshaped_tensors, 2)
    assert sender == ("DisagreeError", (1,))
    assert receiver == ("DisagreeError", [[0, 1, 2], [3, 4, 5]])


def replaced_data():
    """Both sides convert their modules between updates, as ``model.half()`` does."""
    layer = torch.nn.Linear(4, 4, bias=False)
    tensors = dict(layer.named_parameters())
    if dist.get_rank() == 0:
        sender = weft.torch.WeightSender(tensors)
        sender.publish()
        layer.weight.data = torch.full((4, 4), 7.0)
        sender.publish()
        layer.half()
        return sender.publish().full
    receiver = weft.torch.WeightReceiver(tensors)
    seen = []
    for convert in (False, False, True):
        if convert:
            layer.half()
        receiver.stage()
        receiver.switch()
        seen.append((layer.weight.dtype, bool((layer.weight == 7).all())))
    return seen


def test_parameters_whose_data_was_replaced_are_sent_and_written():
    full, seen = on_ranks(replaced_data, 2)
    assert full == (1,)
    assert seen == [(torch.float32, False), (torch.float32, True), (torch.float16, True)]


def two_senders():
    return error_of(weft.torch.WeightSender({"w": torch.zeros(8)}).publish)


def test_two_senders_get_an_error():
    for name, text in on_ranks(two_senders, 2):
        assert name == "DisagreeError"
        assert "[0, 1]" in text


def wrong_arguments():
    texts = []
    for make in (
        lambda: weft.torch.WeightSender({}),
        lambda: weft.torch.WeightSender({"w": torch.zeros(2, 3).t()}),
        lambda: weft.torch.WeightSender({"w": torch.zeros(2, device="meta")}),
        lambda: weft.torch.WeightReceiver({"w": torch.zeros(2)}, source=5),
    ):
        try:
            make()
        except UsageError as error:
            texts.append(str(error))
    return texts


def test_wrong_arguments_are_refused():
    empty, strides, device, source = on_ranks(wrong_arguments, 1)[0]
    assert "got none" in empty
    assert "'w' with strides (1, 3)" in strides
    assert "'w', meta" in device
    assert "got 5 on rank 0" in source


def test_pieces_cover_every_byte_once_and_are_bounded(monkeypatch):
    monkeypatch.setattr(weight_layout, "PIECE_BYTES", 64)
    sizes = (0, 10, 200, 54, 1, 63, 64, 65)
    pieces = WeightLayout(tuple("abcdefgh"), ("bfloat16",) * 8, sizes).pieces()
    assert all(0 < sum(s.stop - s.start for s in piece) <= 64 for piece in pieces)
    flat = [segment for piece in pieces for segment in piece]
    assert [byte for s in flat for byte in [(s.tensor, at) for at in range(s.start, s.stop)]] == [
        (tensor, at) for tensor, size in enumerate(sizes) for at in range(size)
    ]
    assert all(segment.start % 4 == 0 for segment in flat)


def test_a_long_tensor_has_pieces_of_the_full_length():
    pieces = WeightLayout(("a",), ("bfloat16",), (3 * PIECE_BYTES,)).pieces()
    assert pieces == [
        [Segment(0, at, at + PIECE_BYTES)] for at in range(0, 3 * PIECE_BYTES, PIECE_BYTES)
    ]
