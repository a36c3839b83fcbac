"""The reference interpreter: total over the ops, and right on small graphs."""

from __future__ import annotations

import pytest
import torch

from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import LibraryCall, Operand
from hemstitch.ir.dims import symbol
from hemstitch.ir.elementwise import ELEMENTWISE
from hemstitch.ir.graph import Address, Graph, Op, Output, Range
from hemstitch.ir.ops import OPS, ResultType, is_elementwise
from hemstitch.ir.types import DType, TensorType, contiguous_strides
from hemstitch.runtime.interpreter import RULES, evaluate, run, with_strides
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES


def test_there_is_a_rule_for_every_op():
    assert set(RULES) == set(Op)


@pytest.mark.parametrize(
    "dtype", [DType.F16, DType.BF16, DType.F32, DType.F64, DType.I32, DType.U8]
)
@pytest.mark.parametrize("op", [op for op in Op if is_elementwise(op) and op is not Op.CHECK])
def test_elementwise_ops_keep_their_type(op, dtype):
    if op is Op.CAST or (op in ELEMENTWISE and dtype.kind not in ELEMENTWISE[op].kinds):
        return
    builder = Builder()
    values = [torch.tensor([1, 2, 0, 3]).to(TORCH_DTYPES[dtype]) for _ in range(OPS[op].arity)]
    operands = [builder.input(f"x{i}", i, (4,), dtype, (1,)) for i in range(len(values))]
    known = dict(zip(operands, values))
    if op is Op.WHERE:
        operands[0] = builder.cast(operands[0], DType.BOOL)
    node = builder.make(op, *operands)
    result = evaluate([node], known, {})[node]
    expected = DType.BOOL if OPS[op].result is ResultType.BOOL else dtype
    assert result.dtype is TORCH_DTYPES[expected]


def test_half_types_compute_in_f32_and_round_once():
    builder = Builder()
    x = builder.input("x", 0, (1000,), DType.BF16, (1,))
    value = torch.randn(1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    total = builder.reduce(Op.SUM, x, (0,))
    assert evaluate([total], {x: value}, {})[total] == value.float().sum().bfloat16()


@pytest.mark.parametrize("dtype", [DType.I8, DType.I32, DType.I64, DType.U8])
def test_integer_division_never_traps(dtype):
    builder = Builder()
    torch_dtype = TORCH_DTYPES[dtype]
    least = torch.iinfo(torch_dtype).min
    a = builder.input("a", 0, (4,), dtype, (1,))
    b = builder.input("b", 1, (4,), dtype, (1,))
    minus_one = 255 if dtype is DType.U8 else -1
    values = {
        a: torch.tensor([7, least, least, 5], dtype=torch_dtype),
        b: torch.tensor([0, minus_one, 0, 3], dtype=torch_dtype),
    }
    nodes = [builder.make(op, a, b) for op in (Op.FLOORDIV, Op.TRUNCDIV, Op.REMAINDER, Op.FMOD)]
    results = evaluate(nodes, values, {})
    quotient = 0 if dtype is DType.U8 else least
    assert [results[node].tolist() for node in nodes] == [
        [0, quotient, 0, 1],
        [0, quotient, 0, 1],
        [0, 0, 0, 2],
        [0, 0, 0, 2],
    ]


def test_views():
    builder = Builder()
    x = builder.input("x", 0, (3, 4), DType.F32, (4, 1))
    value = torch.arange(12.0).reshape(3, 4)
    fill = builder.constant(-1, DType.F32)
    flipped = builder.slice(x, (Range(2, -1), Range(1, 2)), (3, 2))
    padded = builder.pad(x, (1, 0), (5, 6), fill)
    joined = builder.concat([x, builder.permute(builder.permute(x, (1, 0)), (1, 0))], 1)
    empty = builder.slice(x, (Range(0), Range(4)), (3, 0))
    results = evaluate([flipped, padded, joined, empty], {x: value}, {})
    assert torch.equal(results[flipped], value.flip(0)[:, 1::2])
    expected = torch.nn.functional.pad(value, (0, 2, 1, 1), value=-1)
    assert torch.equal(results[padded], expected)
    assert torch.equal(results[joined], torch.cat([value, value], 1))
    assert results[empty].shape == (3, 0)


def test_gather_and_its_index_error():
    builder = Builder()
    source = builder.input("source", 0, (5, 3), DType.F32, (3, 1))
    index = builder.input("index", 1, (2,), DType.I64, (1,))
    rows = builder.broadcast(builder.reshape(index, (2, 1)), (2, 3))
    picked = builder.gather(source, [rows], (Address(operand=1), Address(axis=1)), (2, 3))
    graph = Graph((source, index), (Output(picked, (3, 1)),))
    table = torch.randn(5, 3)
    assert torch.equal(run(graph, [table, torch.tensor([4, 0])])[0], table[[4, 0]])
    with pytest.raises(IndexError, match="index out of range in self"):
        run(graph, [table, torch.tensor([5, 0])])


@pytest.mark.parametrize("dtype", [DType.I32, DType.F32])
def test_sum_by_index_and_its_index_error(dtype):
    builder = Builder()
    value = builder.input("value", 0, (4, 3), dtype, (3, 1))
    index = builder.input("index", 1, (4,), DType.I64, (1,))
    rows = builder.broadcast(builder.reshape(index, (4, 1)), (4, 3))
    added = builder.scatter_add(value, [rows], (Address(operand=1), Address(axis=1)), (5, 3))
    graph = Graph((value, index), (Output(added, (3, 1)),))
    x, places = torch.arange(12).view(4, 3).to(TORCH_DTYPES[dtype]), torch.tensor([4, 0, 4, 1])
    expected = x.new_zeros(5, 3).index_add(0, places, x)
    assert torch.equal(run(graph, [x, places])[0], expected)
    with pytest.raises(IndexError, match="index out of range in self"):
        run(graph, [x, places + 1])


@pytest.mark.parametrize("axes", [(), (0,), (2, 0), (0, 1, 2)])
@pytest.mark.parametrize("dtype", [DType.BOOL, DType.I16, DType.F32])
def test_reductions(axes, dtype):
    builder = Builder()
    x = builder.input("x", 0, (2, 3, 4), dtype, contiguous_strides((2, 3, 4)))
    value = torch.randint(0, 2, (2, 3, 4)).to(TORCH_DTYPES[dtype])
    greatest = builder.reduce(Op.MAX, x, axes)
    where = builder.reduce(Op.ARGMAX, x, axes)
    results = evaluate([greatest, where], {x: value}, {})
    expected = value.float().amax(axes) if axes else value
    assert torch.equal(results[greatest], expected.to(value.dtype))
    assert results[where].shape == expected.shape
    assert results[where].dtype is torch.int64


def test_symbols_come_from_sizes_and_from_numbers():
    builder = Builder()
    n, k = symbol("n"), symbol("k")
    x = builder.input("x", 0, (n, 2), DType.F32, (2, 1))
    shape = (n * k, 2)
    rows = builder.iota(shape, 0)
    ones = builder.constant(1, DType.F32, shape)
    graph = Graph(
        (x,),
        (Output(rows, (2, 1)), Output(ones, (2, 1)), Output(builder.size(n * k), ())),
        symbols={"n": (0, 0), "k": (1, None)},
    )
    values = run(graph, [torch.zeros(3, 2), 4])
    assert torch.equal(values[0], torch.arange(12)[:, None].expand(12, 2))
    assert values[1].shape == (12, 2)
    assert values[2] == 12


def test_precise_computes_in_float64_and_leaves_the_arguments_alone():
    builder = Builder()
    x = builder.input("x", 0, (4,), DType.F16, (1,))
    node = builder.make(Op.EXP, builder.cast(x, DType.F32))
    value = torch.rand(4).half()
    before = value.clone()
    result = run(Graph((x,), (Output(node, (1,)),)), [value], precise=True)[0]
    assert torch.equal(result, before.double().exp())
    assert torch.equal(value, before)


def test_library_calls_get_operands_as_traced():
    seen = []

    def spy(tensor, sizes, scale=1):
        seen.append((tensor.stride(), sizes, scale))
        return [tensor * scale, None]

    builder = Builder()
    n = symbol("n")
    x = builder.input("x", 0, (n, 3), DType.F32, (3, 1))
    call = LibraryCall(
        name="spy",
        target=spy,
        arguments=(Operand(0), (n * 2, 5)),
        keywords=(("scale", 3),),
        operand_strides=((1, n),),
        results=((TensorType((n, 3), DType.F32), (1, n)), None),
        is_tuple=True,
    )
    result, nothing = builder.call(call, [x])
    assert nothing is None
    graph = Graph((x,), (Output(result, (1, n)),), symbols={"n": (0, 0)})
    value = torch.randn(4, 3)
    assert torch.equal(run(graph, [value])[0], value * 3)
    assert seen == [((1, 4), [8, 5], 3)]


def test_with_strides_can_repeat_elements():
    value = torch.randn(4, 1).expand(4, 3).contiguous()
    repeated = with_strides(value, (1, 0))
    assert repeated.stride() == (1, 0)
    assert torch.equal(repeated, value)


def test_philox_is_uniform_and_depends_on_the_seed():
    builder = Builder()
    seed = builder.input("seed", 0, (), DType.I64, ())
    node = builder.philox(seed, (100, 101))
    one = evaluate([node], {seed: torch.tensor(1)}, {})[node]
    other = evaluate([node], {seed: torch.tensor(2**40 + 1)}, {})[node]
    assert one.shape == (100, 101)
    assert abs(one.mean() - 0.5) < 0.01
    assert not torch.equal(one, other)
