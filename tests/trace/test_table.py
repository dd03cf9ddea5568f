"""Every row of the table of operations, by name: seen by the tape, treated as the row says, push = pull = autograd."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bilrp
from bilrp import composites, regions, rules
from bilrp.errors import BilrpError, InputError, TapeError
from bilrp.pipeline import Mode
from bilrp.trace.operation import Op, OperationTable, activation
from bilrp.trace.operation_table import OPERATIONS
from bilrp.trace.recorder import record
from bilrp.trace.rewrite import simplify
from bilrp.trace.tape import Step

GENERATOR = torch.Generator().manual_seed(3)


def constant(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


X = torch.linspace(-0.95, 0.95, 24, dtype=torch.float64)[torch.randperm(24, generator=GENERATOR)][None]
POSITIVE = {"sqrt", "rsqrt", "log", "log1p", "reciprocal"}

INDEX = torch.tensor([[5, 0, 9, 3]])
WHERE = torch.arange(24) % 3 == 0
W, SQUARE, GRID = constant(24, 6), constant(4, 4), 0.5 * constant(1, 3, 3, 2)
KERNELS = {
    (out, *into): constant(out, *into)
    for out, *into in ((3, 6, 2), (3, 2, 2, 2), (3, 1, 2, 2, 2), (6, 2, 2), (2, 3, 2, 2), (1, 2, 2, 2, 2))
}
torch.manual_seed(3)  # some weights leave a recurrent network of ReLUs at zero
lstm, gru, rnn, rnn_relu = (
    kind(4, 3, **more).double()
    for kind, more in ((nn.LSTM, {}), (nn.GRU, {}), (nn.RNN, {}), (nn.RNN, {"nonlinearity": "relu"}))
)
slope = nn.PReLU(4).double()


def sequence(x: Tensor) -> Tensor:
    return x.reshape(1, 6, 4)


def attend(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x)


def image(x: Tensor) -> Tensor:
    return x.reshape(1, 2, 3, 4)


def volume(x: Tensor) -> Tensor:
    return x.reshape(1, 1, 2, 3, 4)


def matrix(x: Tensor) -> Tensor:
    return x[:, :16].reshape(4, 4)


def assign(x: Tensor) -> Tensor:
    y = 2 * x
    y[:, 3:7] = x[:, :4]
    return y


# A call of each operation on a (1, 24) tensor. Elementwise functions of one tensor need no entry: torch's own call.
CALLS = {
    "reshape": lambda x: x.reshape(4, 6),
    "reshape_as": lambda x: x.reshape_as(W[:, :1]),
    "view": lambda x: x.view(4, 6),
    "view_as": lambda x: x.view_as(W[:, :1]),
    "flatten": lambda x: image(x).flatten(1),
    "unflatten": lambda x: x.unflatten(1, (4, 6)),
    "ravel": lambda x: image(x).ravel(),
    "squeeze": lambda x: x.squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "permute": lambda x: image(x).permute(0, 2, 3, 1),
    "transpose": lambda x: image(x).transpose(1, 3),
    "movedim": lambda x: image(x).movedim(1, -1),
    "t": lambda x: x.t(),
    "mT": lambda x: image(x).mT,
    "expand": lambda x: x.expand(3, 24),
    "expand_as": lambda x: x.expand_as(W.T),
    "broadcast_to": lambda x: x.broadcast_to(3, 24),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, W.T)[0],
    "meshgrid": lambda x: torch.meshgrid(x[0, :4], x[0, 4:7], indexing="ij")[1],
    "repeat": lambda x: x.repeat(2, 1),
    "tile": lambda x: x.tile(2),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "cat": lambda x: torch.cat([x, 2 * x], 1),
    "stack": lambda x: torch.stack([x, 2 * x], 1),
    "hstack": lambda x: torch.hstack([x, 2 * x]),
    "vstack": lambda x: torch.vstack([x, 2 * x]),
    "dstack": lambda x: torch.dstack([x, 2 * x]),
    "column_stack": lambda x: torch.column_stack([x, 2 * x]),
    "split": lambda x: x.split(5, 1)[1],
    "tensor_split": lambda x: x.tensor_split(5, 1)[1],
    "hsplit": lambda x: x.hsplit(3)[2],
    "vsplit": lambda x: x.reshape(4, 6).vsplit(2)[1],
    "dsplit": lambda x: image(x).dsplit(3)[1],
    "chunk": lambda x: x.chunk(5, 1)[4],
    "unbind": lambda x: sequence(x).unbind(1)[2],
    "narrow": lambda x: x.narrow(1, 3, 5),
    "select": lambda x: x.select(1, 3),
    "index_select": lambda x: x.index_select(1, INDEX[0]),
    "__getitem__": lambda x: x[:, INDEX[0]],
    "slice": lambda x: torch.ops.aten.slice.Tensor(x, 1, 3, 9, 2),
    "index": lambda x: torch.ops.aten.index.Tensor(x, [None, INDEX[0]]),
    "gather": lambda x: x.gather(1, INDEX),
    "take_along_dim": lambda x: x.take_along_dim(INDEX, 1),
    "masked_select": lambda x: x.masked_select(WHERE),
    "unfold": lambda x: x.unfold(1, 4, 2),
    "as_strided": lambda x: x.as_strided((5, 8), (4, 1)),
    "__setitem__": assign,
    "pad": lambda x: F.pad(image(x), (1, 0, 2, 1)),
    "pad_sequence": lambda x: nn.utils.rnn.pad_sequence([x[0, :5], x[0, 5:9]], batch_first=True),
    "roll": lambda x: x.roll(3, 1),
    "flip": lambda x: x.flip(1),
    "fliplr": lambda x: x.fliplr(),
    "flipud": lambda x: sequence(x)[0].flipud(),
    "rot90": lambda x: sequence(x)[0].rot90(),
    "diag": lambda x: matrix(x).diag(),
    "diagonal": lambda x: matrix(x).diagonal(1),
    "diag_embed": lambda x: x.diag_embed(),
    "tril": lambda x: matrix(x).tril(),
    "triu": lambda x: matrix(x).triu(1),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.reshape(1, 4, 2, 3), 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x.reshape(1, 1, 4, 6), 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x.reshape(1, 4, 2, 3), 2),
    "atleast_1d": lambda x: torch.atleast_1d(x[0, 0]),
    "atleast_2d": lambda x: torch.atleast_2d(x[0]),
    "atleast_3d": lambda x: torch.atleast_3d(x),
    "real": lambda x: x.real,
    "contiguous": lambda x: image(x).mT.contiguous(),
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "alias": lambda x: torch.ops.aten.alias(x),
    "positive": lambda x: torch.positive(x),
    "to": lambda x: x.to(torch.float32),
    "type": lambda x: x.type(torch.float32),
    "type_as": lambda x: x.type_as(torch.ones((), dtype=torch.float32)),
    "float": lambda x: x.float(),
    "double": lambda x: x.float().double(),
    "half": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "cpu": lambda x: x.cpu(),
    "dropout": lambda x: F.dropout(x, training=False),
    "dropout1d": lambda x: F.dropout1d(sequence(x), training=False),
    "dropout2d": lambda x: F.dropout2d(image(x), training=False),
    "dropout3d": lambda x: F.dropout3d(volume(x), training=False),
    "alpha_dropout": lambda x: F.alpha_dropout(x),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(image(x)),
    "feature_dropout": lambda x: torch.feature_dropout(x, 0.5, False),
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, False)[0],
    "add": lambda x: x + 2 * x.flip(1) + 1,
    "sub": lambda x: x - 2 * x.flip(1),
    "rsub": lambda x: 2 - x,
    "neg": lambda x: -x,
    "mul": lambda x: x * W[:, 0],
    "div": lambda x: x / W[:, 0],
    "sum": lambda x: image(x).sum((1, 2)),
    "mean": lambda x: image(x).mean(1),
    "nansum": lambda x: image(x).nansum(1),
    "cumsum": lambda x: x.cumsum(1),
    "diff": lambda x: x.diff(dim=1),
    "trace": lambda x: matrix(x).trace(),
    "sum_to_size": lambda x: image(x).sum_to_size(1, 1, 1, 4),
    "avg_pool1d": lambda x: F.avg_pool1d(sequence(x), 2),
    "avg_pool2d": lambda x: F.avg_pool2d(image(x), 2, 1, 1),
    "avg_pool3d": lambda x: F.avg_pool3d(volume(x), 2),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(sequence(x), 3),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(image(x), 2),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(volume(x), 2),
    "where": lambda x: torch.where(WHERE, x, 3 * x.flip(1)),
    "lerp": lambda x: torch.lerp(x, x.flip(1), 0.3),
    "ldexp": lambda x: torch.ldexp(x, torch.tensor(2)),
    "interpolate": lambda x: F.interpolate(image(x), scale_factor=2, mode="bilinear"),
    "grid_sample": lambda x: F.grid_sample(image(x), GRID, align_corners=False),
    "fold": lambda x: F.fold(x.reshape(1, 4, 6), (3, 4), 2),
    "copy": lambda x: torch.empty_like(x).copy_(x),
    "masked_fill": lambda x: x.masked_fill(WHERE, 7.0),
    "masked_scatter": lambda x: x.masked_scatter(WHERE, 2 * x),
    "index_fill": lambda x: x.index_fill(1, INDEX[0], 7.0),
    "select_scatter": lambda x: sequence(x).select_scatter(x[:, :4], 1, 2),
    "slice_scatter": lambda x: x.slice_scatter(2 * x[:, :4], 1, 3, 7),
    "index_add": lambda x: x.index_add(1, INDEX[0] // 2, x[:, :4]),
    "scatter_add": lambda x: x.scatter_add(1, INDEX // 2, x[:, :4]),
    "scatter": lambda x: x.scatter(1, INDEX, 2 * x[:, :4]),
    "index_put": lambda x: x.index_put((torch.tensor(0), INDEX[0]), 2 * x[0, :4]),
    "scatter_reduce": lambda x: x.scatter_reduce(1, INDEX // 2, x[:, :4], "mean"),
    "index_copy": lambda x: x.index_copy(1, INDEX[0], 2 * x[:, :4]),
    "put": lambda x: x.put(INDEX[0], 2 * x[0, :4]),
    "matmul": lambda x: x @ W,
    "bmm": lambda x: torch.bmm(sequence(x), SQUARE[None]),
    "einsum": lambda x: torch.einsum("bsd,de->bse", sequence(x), SQUARE),
    "inner": lambda x: torch.inner(x, W.T),
    "mv": lambda x: torch.mv(sequence(x)[0], SQUARE[0]),
    "dot": lambda x: torch.dot(x[0], W[:, 0]),
    "outer": lambda x: torch.outer(x[0], SQUARE[0]),
    "tensordot": lambda x: torch.tensordot(x, W, 1),
    "kron": lambda x: torch.kron(x, SQUARE),
    "addmm": lambda x: torch.addmm(W[0], x, W),
    "baddbmm": lambda x: torch.baddbmm(SQUARE[None, :1], sequence(x), SQUARE[None]),
    "addbmm": lambda x: torch.addbmm(SQUARE[:1], sequence(x), SQUARE[None]),
    "addmv": lambda x: torch.addmv(SQUARE[0, :1], sequence(x)[0], SQUARE[0]),
    "addcmul": lambda x: torch.addcmul(W[:, 0], x, W[:, 1]),
    "linear": lambda x: F.linear(x, W.T, W[0]),
    "conv1d": lambda x: F.conv1d(sequence(x), KERNELS[3, 6, 2]),
    "conv2d": lambda x: F.conv2d(image(x), KERNELS[3, 2, 2, 2]),
    "conv3d": lambda x: F.conv3d(volume(x), KERNELS[3, 1, 2, 2, 2]),
    "conv_transpose1d": lambda x: F.conv_transpose1d(sequence(x), KERNELS[6, 2, 2]),
    "conv_transpose2d": lambda x: F.conv_transpose2d(image(x), KERNELS[2, 3, 2, 2]),
    "conv_transpose3d": lambda x: F.conv_transpose3d(volume(x), KERNELS[1, 2, 2, 2, 2]),
    "prelu": lambda x: slope(x.reshape(6, 4)),
    "threshold": lambda x: F.threshold(x, 0.2, 0.0),
    "pow": lambda x: x.pow(3),
    "clamp": lambda x: x.clamp(-0.3, 0.4),
    "clamp_min": lambda x: x.clamp_min(0.1),
    "clamp_max": lambda x: x.clamp_max(0.4),
    "rdiv": lambda x: 1 / x,
    "log_sigmoid": F.logsigmoid,
    "softmax": lambda x: sequence(x).softmax(-1),
    "log_softmax": lambda x: sequence(x).log_softmax(-1),
    "softmin": lambda x: F.softmin(sequence(x), -1),
    "layer_norm": lambda x: F.layer_norm(sequence(x), (4,), SQUARE[0], SQUARE[1]),
    "group_norm": lambda x: F.group_norm(image(x), 2, SQUARE[0, :2]),
    "instance_norm": lambda x: F.instance_norm(image(x)),
    "rms_norm": lambda x: F.rms_norm(sequence(x), (4,), SQUARE[0]),
    "normalize": lambda x: F.normalize(sequence(x), dim=-1),
    "batch_norm": lambda x: F.batch_norm(image(x), SQUARE[0, :2], SQUARE[1, :2] ** 2),
    "scaled_dot_product_attention": lambda x: attend(sequence(x)),
    "max": lambda x: sequence(x).max(1).values,
    "min": lambda x: x.min()[None],
    "amax": lambda x: image(x).amax((1, 2)),
    "amin": lambda x: image(x).amin((1, 2)),
    "maximum": lambda x: torch.maximum(x, 2 * x.flip(1)),
    "minimum": lambda x: torch.minimum(x, W[:, 0]),
    "fmax": lambda x: torch.fmax(x, x.flip(1)),
    "fmin": lambda x: torch.fmin(x, x.flip(1)),
    "topk": lambda x: x.topk(3, 1).values,
    "sort": lambda x: x.sort(1).values,
    "max_pool1d": lambda x: F.max_pool1d(sequence(x), 2),
    "max_pool2d": lambda x: F.max_pool2d(image(x), 2, 1),
    "max_pool3d": lambda x: F.max_pool3d(volume(x), 2),
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(sequence(x), 3),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(image(x), 2),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(volume(x), 2),
    "norm": lambda x: x.norm(dim=-1),
    "linalg_norm": lambda x: torch.linalg.norm(x, dim=-1),
    "linalg_vector_norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "std": lambda x: sequence(x).std(-1),
    "var": lambda x: sequence(x).var(-1),
    "cosine_similarity": lambda x: F.cosine_similarity(sequence(x), SQUARE[:1], -1),
    "cdist": lambda x: torch.cdist(sequence(x)[0], SQUARE),
    "logsumexp": lambda x: sequence(x).logsumexp(-1),
    "prod": lambda x: sequence(x).prod(-1),
    "cumprod": lambda x: sequence(x).cumprod(-1),
    "det": lambda x: matrix(x).det(),
    "inverse": lambda x: matrix(x).inverse(),
    "lstm": lambda x: lstm(sequence(x)[0])[0],
    "gru": lambda x: gru(sequence(x)[0])[0],
    "rnn_tanh": lambda x: rnn(sequence(x)[0])[0],
    "rnn_relu": lambda x: rnn_relu(sequence(x)[0])[0],
}
ABSENT = {"cuda", "__rmatmul__"}  # one needs a device, the other a left operand that is no tensor
NO_STEP = {"like", "host_read", "iteration", "grad_mode", "fused"}
STEPS = [row for row in OPERATIONS.ops if row.kind not in NO_STEP and row.name not in ABSENT]
# torch itself has no forward derivative of these, or loses it in a batch.
PULLED_ONLY = {"lstm", "gru", "rnn_tanh", "rnn_relu", "cdist", "grid_sample"}


def call_of(row: Op):
    """The row's call; of an elementwise function torch's own."""
    if row.name in CALLS:
        return CALLS[row.name]
    assert row.kind in {"activation", "elementwise_nonzero"}, (
        f"the new row '{row.name}' needs an example in CALLS"
    )
    result = [getattr(path, row.name.removeprefix("special_"), None) for path in (F, torch, torch.special)]
    assert any(result), f"the new row '{row.name}' needs an example in CALLS"
    return next(filter(None, result))


def input_of(row: Op) -> Tensor:
    return X.abs() if row.name in POSITIVE else X


def gradient_times_input(function, x: Tensor) -> Tensor:
    jacobian = torch.autograd.functional.jacobian(lambda t: function(t).flatten().to(x), x.clone())
    assert isinstance(jacobian, Tensor)
    return (jacobian.flatten(1) * x.flatten()).T


def parts(function, x: Tensor, composite, mode: Mode) -> Tensor:
    return bilrp.decompose(function, x, regions=regions.features(), composite=composite, mode=mode).parts.to(
        x
    )


def by_name(rows: list[Op]):
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.name)


def test_names_are_one_rows_each() -> None:
    names = [name for row in OPERATIONS.ops for name in (row.name, *row.aliases, *row.inplace_aliases)]
    assert len(names) == len(set(names))
    assert set(CALLS) <= {row.name for row in STEPS}, "an example of no row"


def test_torch_knows_every_name() -> None:
    """A row that torch never calls by that name would be dead."""
    known = {"rdiv", "_set_grad_enabled", "data", "real", "H", "mH", "T", "mT"}
    for functions in torch.overrides.get_overridable_functions().values():
        known |= {getattr(f, "__name__", "") for f in functions}
    known |= {name.rstrip("_") for name in known if not name.startswith("__")} | set(dir(Tensor))
    known |= set(dir(torch)) | set(dir(F)) | set(dir(vars(torch._C)["_nn"])) | set(dir(torch.ops.aten))
    unknown = [
        n for row in OPERATIONS.ops for n in (row.name, *row.aliases, *row.inplace_aliases) if n not in known
    ]
    assert unknown == []


def find_step(row: Op) -> Step | None:
    """The row's step on the tape of its call; None where torch hands the very tensor on."""
    function = call_of(row)
    result = [step for step in record(function, input_of(row)).steps if step.operation == row]
    if not result:
        assert row.mask == "moves" and function(X).data_ptr() == X.data_ptr()
        return None
    return result[0]


@by_name(STEPS)
def test_the_tape_sees_it_by_its_name(row: Op) -> None:
    step = find_step(row)
    assert step is None or step.op == row.name


@by_name([row for row in STEPS if row.kind in {"identity", "random"}])
def test_what_changes_nothing_is_dropped(row: Op) -> None:
    """Casts too: a float64 run is not rounded."""
    left = [step.op for step in simplify(record(lambda x: call_of(row)(2 * x), X)).steps]
    assert row.name not in left


@by_name([row for row in STEPS if row.training_args and row.kind == "random"])
def test_active_dropout_is_refused(row: Op) -> None:
    function = getattr(F, row.name, None) or getattr(torch, row.name)
    shaped = sequence if row.name == "dropout1d" else image
    with pytest.raises(InputError, match=f"'{row.name}' is active"):
        record(lambda x: function(shaped(x), 0.5, True), X)


@by_name(STEPS)
def test_it_gets_the_rule_its_row_says(row: Op) -> None:
    step = find_step(row)
    if step is None:
        return
    words = {"product": "linear", "quotient": "linear"}  # with one live operand
    expected = None if row.rule is None else words.get(row.rule, row.rule)
    assert getattr(rules.default_rule(step), "name", None) == expected
    if row.rule is None:
        with pytest.raises(BilrpError, match="no rule"):
            bilrp.decompose(call_of(row), input_of(row))


def close(result: Tensor, expected: Tensor, row: Op) -> None:
    slack = {"half": 2e-3, "bfloat16": 2e-2}.get(row.name, 1e-6 if _rounds(row) else 1e-10)
    torch.testing.assert_close(result, expected, rtol=slack, atol=slack)


def _rounds(row: Op) -> bool:
    return row.name in {"to", "type", "type_as", "float", "double"}


# The exponent's own slope at 0 and the frozen ratio agree with the gradient for what is piecewise linear through 0.
STRAIGHT = {"linear", "gate", "select", "product", "quotient"}


@by_name([row for row in STEPS if row.rule is not None])
def test_default_rules_push_as_they_pull(row: Op) -> None:
    function, x, composite = call_of(row), input_of(row), composites.uniform(0.0)
    pushed, pulled = (parts(function, x, composite, mode) for mode in ("push", "pull"))
    close(pushed, pulled, row)
    if row.rule in STRAIGHT and row.name not in {"detach", "data"}:  # where autograd itself stops
        close(pulled, gradient_times_input(function, x), row)
    if row.kind == "activation" and row.name != "clamp_min":  # f(a)/a·a: nothing is lost
        close(pulled.sum(0), function(x).detach().flatten(), row)


# Of checked rows, torch's derivatives are tried at every run.
@by_name([row for row in STEPS if row.name not in {"detach", "data"} and not row.verify_derivative])
def test_true_derivatives_push_as_they_pull(row: Op) -> None:
    """What spares a row the trial that torch's derivatives of unknown operations are put to."""
    function, x = call_of(row), input_of(row)
    composite = composites.first_match((row.name, rules.jacobian()), otherwise=composites.hessian_product())
    expected = gradient_times_input(function, x)
    close(parts(function, x, composite, "pull"), expected, row)
    if row.name not in PULLED_ONLY:
        close(parts(function, x, composite, "push"), expected, row)


# ---------------------------------------------------------------- calls that are no steps


@by_name([row for row in OPERATIONS.ops if row.kind == "like"])
def test_new_tensors_are_constants(row: Op) -> None:
    factories = {
        "full_like": lambda x: torch.full_like(x, 2.0),
        "new_zeros": lambda x: x.new_zeros(24),
        "new_ones": lambda x: x.new_ones(24),
        "new_full": lambda x: x.new_full((24,), 2.0),
        "new_empty": lambda x: x.new_empty(24).zero_(),
        "empty_like": lambda x: torch.empty_like(x).zero_(),
        "new_tensor": lambda x: x.new_tensor([2.0]),
        "rand_like": lambda x: torch.rand_like(x),
        "randn_like": lambda x: torch.randn_like(x),
    }
    make = factories.get(row.name) or getattr(torch, row.name)
    if "rand" in row.name:
        with pytest.raises(BilrpError, match="random numbers"):
            record(lambda x: x + make(x), X)
    else:
        assert [step.op for step in record(lambda x: x + make(x), X).steps] == ["add"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@by_name([row for row in OPERATIONS.ops if row.kind == "host_read"])
def test_numbers_do_not_leave(row: Op) -> None:
    reads = {
        "item": lambda x: x[0, 0].item(),
        "tolist": lambda x: x.tolist(),
        "numpy": lambda x: x.detach().numpy(),
        "__float__": lambda x: float(x[0, 0]),
        "__int__": lambda x: int(x[0, 0]),
        "__array__": lambda x: x.detach().__array__(),
        "__dlpack__": lambda x: x.detach().__dlpack__(),
    }
    with pytest.raises(TapeError, match=f"'{row.name}'"):
        record(lambda x: (reads[row.name](x), 2 * x)[1], X)


OPERATORS = [(row, name) for row in OPERATIONS.ops for name in row.inplace_aliases if hasattr(Tensor, name)]


@pytest.mark.parametrize(("row", "name"), OPERATORS, ids=[name for _, name in OPERATORS])
def test_python_operators_that_write(row: Op, name: str) -> None:
    def write(x: Tensor) -> Tensor:
        return getattr(2 * x, name)(3.0)

    assert row.name in [step.op for step in record(write, X).steps]
    assert record(write, X).steps[-1].run(torch.ones_like(X)).shape == X.shape


# ---------------------------------------------------------------- a row from outside


def test_a_user_brings_a_row() -> None:
    """A function the package doesn't know, as an activation and as a gate, without touching the package."""

    def model(x: Tensor) -> Tensor:
        return torch.special.bessel_j1(x) * F.linear(x, SQUARE)

    x = X[:, :4]
    with pytest.raises(BilrpError, match="say which one to detach"):
        bilrp.decompose(model, x)
    encoder = bilrp.Encoder(model, operations=(activation("special_bessel_j1", factor="gate"),))
    stored = torch.special.bessel_j1(x)
    result = bilrp.decompose(encoder, x, regions=regions.features(), composite=composites.uniform(0.0))
    torch.testing.assert_close(result.parts, (stored * SQUARE.T * x.T))
    assert OPERATIONS.find("special_bessel_j1").kind == "unknown", "the table itself is as it was"
    alone = bilrp.Encoder(torch.special.bessel_j1, operations=(activation("special_bessel_j1"),))
    assert [row.rule for row in bilrp.ops(alone, x)] == ["frozen"]


def test_a_composite_may_give_a_rule_to_an_unlisted_operation() -> None:
    composite = composites.first_match(
        ("special_bessel_j1", rules.frozen()), otherwise=composites.uniform(0.0)
    )
    result = bilrp.decompose(torch.special.bessel_j1, X, regions=regions.features(), composite=composite)
    torch.testing.assert_close(result.parts.sum(0), result.embedding)


def test_later_rows_count() -> None:
    table = OperationTable((activation("elu"),)).with_ops(activation("elu", factor="gate"))
    assert table.find("elu").factor == "gate"


@by_name([row for row in STEPS if row.is_like_op])
def test_a_live_tensor_read_only_for_its_shape_or_type_has_no_parts(row: Op) -> None:
    """constant.to(x) is a constant; x.to(x) is x, not x twice."""
    constant = torch.arange(4.0)[None]
    x = torch.randn(1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for function, expected in (
        (lambda x: getattr(constant, row.name)(x) + 0 * x, torch.zeros(4, 4, dtype=x.dtype)),
        (lambda x: getattr(2 * x, row.name)(x), 2 * torch.diag(x[0])),
    ):
        for mode in ("push", "pull"):
            result = bilrp.decompose(function, x, regions=bilrp.regions.features(), mode=mode)
            torch.testing.assert_close(result.parts, expected)


def test_operations_that_are_not_table_rows_are_refused_in_one_line() -> None:
    """In a process of its own: here types are checked before the words are."""
    code = "import bilrp, torch; bilrp.decompose(bilrp.Encoder(torch.erfinv, operations=('erfinv',)), torch.ones(1, 2))"
    stderr = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
    assert (
        "InputError: operations must be a tuple of Op, e.g. operations=(activation('erfinv'),), got 'erfinv'"
        in stderr
    )


def test_an_unknown_function_is_shown_the_way_to_a_row() -> None:
    with pytest.raises(
        BilrpError, match=r"f\(0\) = 0, Encoder\(operations=\(bilrp.trace.operation.activation\('erfinv'\)"
    ):
        bilrp.decompose(torch.erfinv, X.tanh())
