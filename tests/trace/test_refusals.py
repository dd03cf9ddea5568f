"""Models and inputs that cannot be explained raise a one-line error that says what to do."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bilrp
from bilrp import composites, regions, rules, similarity
from bilrp.errors import BilrpError, InputError, MismatchError, RuleError, TapeError

linear = nn.Linear(6, 6).double()
weight = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
X = torch.randn(1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def assert_rejected(kind: type[BilrpError], words: str, encoder, x=X, **options) -> str:
    """The call raises one line of this kind, with these words in it."""
    with pytest.raises(kind, match=words) as raised:
        bilrp.decompose(encoder, x, **options)
    message = str(raised.value)
    assert "\n" not in message and len(message) < 420
    return message


# ---------------------------------------------------------------- inputs

net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).double()
image = torch.rand(1, 3, 6, 6, dtype=torch.float64)
BAD_INPUTS = {
    "nan": (image.clone().fill_(math.nan), "NaN or infinite"),
    "infinite": (torch.where(image > 0.5, math.inf, image), "NaN or infinite"),
    "batch of two": (image.repeat(2, 1, 1, 1), "batch axis of 1"),
    "no batch axis": (image[0], "batch axis of 1"),
    "a number": (torch.tensor(1.0), "batch axis of 1"),
    "integers": (torch.ones(1, 3, 6, 6, dtype=torch.long), "inputs_embeds"),
    "booleans": (torch.ones(1, 3, 6, 6, dtype=torch.bool), "dtype torch.bool"),
    "complex": (image.to(torch.complex128), "dtype torch.complex128"),
    "empty": (image[..., :0], "is empty"),
    "another type": (image.float(), "float64 and the input torch.float32"),
    "another device": (image.to("meta"), "on cpu and the input on meta"),
    "a string": ("cat.png", "cannot read str"),
    "sparse": (image.to_sparse(), "to_dense"),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_inputs(name: str) -> None:
    x, words = BAD_INPUTS[name]
    assert_rejected(InputError, words, net, x)
    assert_rejected(InputError, words, lambda t: net(t), x)


def test_model_elsewhere() -> None:
    assert_rejected(InputError, "on meta and the input on cpu", nn.Linear(6, 2, device="meta"), X)
    assert_rejected(InputError, "has no values", nn.Sequential(linear, nn.Linear(6, 2, device="meta")))
    nowhere = nn.BatchNorm1d(6, affine=False, device="meta").eval()
    assert_rejected(InputError, "has no values", nowhere)


def test_no_encoder_at_all() -> None:
    assert_rejected(InputError, "callable", 3)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (regions.labels(torch.tensor([0, 0, 2, 2, -1, -1])), "region 1 is empty"),
        (regions.labels(torch.full((6,), -1)), "there are none"),
        (regions.labels(torch.tensor([0, 0, -2, 1, 1, 1])), "run from -1"),
        (regions.labels(torch.tensor([0, 1, 2])), "shape"),
        (regions.grid(2), "features()"),
        (regions.tokens(), "length"),
        (regions.features()(torch.zeros(1, 5)), "regions for an input"),
        (regions.labels(torch.tensor([0, 0, 0, 0, 0, 10**12])), "without gaps"),
        (regions.labels(torch.tensor([0, 1, 0, 1, 0, 1]), names=("odd",)), "1 names for 2 regions"),
        ([0, 0, 0, 1, 1, 1], "not list"),
        ("grid", "not str"),
        (8.0, "not float"),
    ],
)
def test_bad_regions(spec, words: str) -> None:
    assert_rejected(InputError, words, linear, regions=spec)


def test_labels_are_never_spread_over_the_wrong_axis() -> None:
    """A mask of one axis names the positions of a sequence, never its features, also where there are as many."""
    by_position = regions.labels(torch.arange(4))(torch.ones(1, 4, 4))
    assert torch.equal(by_position.labels, torch.arange(4)[:, None].expand(4, 4))
    assert_rejected(
        InputError, "shape", lambda x: x.sum(1), torch.ones(1, 4, 5), regions=regions.labels(torch.arange(5))
    )
    result = regions.labels(torch.zeros(6, 6, dtype=torch.long))(image)
    assert result.labels.shape == (3, 6, 6), "a mask without channels holds for all channels of an image"


def test_a_sequence_has_its_tokens_for_regions() -> None:
    """Nine tokens of 384 numbers each are nine regions, not 3,456."""
    x = torch.rand(1, 9, 384)
    result = bilrp.decompose(lambda x: x.mean(1), x)
    assert result.regions.count == 9
    torch.testing.assert_close(result.parts, x[0] / 9)


def test_bad_labels_and_sizes() -> None:
    for make in (
        lambda: regions.labels(torch.rand(3)),
        lambda: regions.labels(torch.ones(3, dtype=torch.bool)),
        lambda: regions.grid(0),
        lambda: regions.Regions(torch.tensor([0, 1, 2]), 2, "by hand"),
        lambda: similarity.bilinear(torch.ones(3)),
        lambda: bilrp.decompose(linear, X, mode="sideways"),  # type: ignore[arg-type]
        lambda: bilrp.decompose(linear, X, project=0),
        lambda: bilrp.explain(linear, X, X, similarity="cosin"),
    ):
        with pytest.raises(InputError):
            make()


def test_embeddings_that_are_not_numbers() -> None:
    assert_rejected(InputError, "embedding has NaN", lambda x: linear(x) / 0)


def test_parts_that_overflow() -> None:
    """The embedding is finite, its parts are not: 2·40000 does not fit half precision."""
    model = nn.Linear(2, 1, bias=False).half()
    model.weight.data = torch.tensor([[2.0, -2.0]]).half()
    assert_rejected(
        RuleError, "float64", model, torch.tensor([[40_000.0, 39_000.0]]).half(), composite=rules.zero()
    )


def test_scores_that_overflow() -> None:
    model = nn.Linear(6, 3, bias=False)
    nn.init.constant_(model.weight, 1e30)
    with pytest.raises(InputError, match="dot of these embeddings is inf"):
        bilrp.explain(model, X.float(), X.float(), similarity="dot")


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_cosine_does_not_depend_on_the_scale(scale: float) -> None:
    model = nn.Linear(6, 3, bias=False)
    expected = bilrp.explain(model, X.float(), -2 * X.float(), similarity="cosine")
    model.weight.data *= scale
    result = bilrp.explain(model, X.float(), -2 * X.float(), similarity="cosine")
    torch.testing.assert_close(result.relevance, expected.relevance)
    assert result.score == pytest.approx(-1)


def test_zero_embedding_under_cosine() -> None:
    dead = nn.Sequential(nn.Linear(6, 3), nn.ReLU()).double()
    nn.init.constant_(dead.get_parameter("0.bias"), -100.0)
    with pytest.raises(InputError, match="zero"):
        bilrp.explain(dead, X, X, similarity="cosine")


def test_matrices_that_do_not_fit() -> None:
    with pytest.raises(MismatchError, match="coordinates"):
        bilrp.explain(linear, X, X, similarity=similarity.bilinear(torch.eye(5)))


# ---------------------------------------------------------------- pairs that do not belong together


def test_pairs_of_different_origin() -> None:
    other = nn.Linear(6, 6).double()
    a = bilrp.decompose(linear, X)
    for b, words in (
        (bilrp.decompose(other, X), "weights"),
        (bilrp.decompose(linear, X, composite=composites.uniform(0.5)), "composite"),
        (bilrp.decompose(linear, X, project=3), "projection"),
        (bilrp.decompose(lambda x: linear(x), X), "encoder"),
    ):
        with pytest.raises(MismatchError, match=words):
            bilrp.pair(a, b, similarity="dot")
    assert composites.paper_vgg((-9.0,), (9.0,)).name != composites.paper_vgg((-8.0,), (8.0,)).name


def test_pairs_of_different_sizes() -> None:
    conv = nn.Conv2d(3, 2, 3).double()
    with pytest.raises(MismatchError, match="coordinates"):
        bilrp.explain(conv, image, image[..., :5], similarity="dot")


def test_weights_made_from_parameters_count() -> None:
    """Weight norm: the weight is computed in each run; the parameters still distinguish two models."""

    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.utils.parametrizations.weight_norm(nn.Linear(6, 2)).double()

    a = bilrp.decompose(build(0), X)
    bilrp.pair(a, bilrp.decompose(build(0), X), similarity="dot")
    with pytest.raises(MismatchError, match="weights"):
        bilrp.pair(a, bilrp.decompose(build(1), X), similarity="dot")
    scale = {1: torch.ones(6).double(), 2: 2 * torch.ones(6).double()}
    one, two = (bilrp.decompose(lambda x, s=s: linear(x) * (s * 2), X) for s in scale.values())
    with pytest.raises(MismatchError, match="weights"):
        bilrp.pair(one, two, similarity="dot")


def test_control_flow_does_not_change_the_origin() -> None:
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(6, 2), nn.Linear(6, 2)

        def forward(self, x):
            return self.left(x) if x.sum() > 0 else self.right(x)

    model = Branching().double()
    result = bilrp.explain(model, torch.ones(1, 6).double(), -torch.ones(1, 6).double(), similarity="dot")
    assert math.isfinite(result.score)


# ---------------------------------------------------------------- what the tape cannot follow


def through_data(x):
    y = linear(x)
    y.data.mul_(0)
    return y + x


def one_of_several_views(x):
    a, b = linear(x).chunk(2, -1)
    a.relu_()
    return a + b


def out_argument(x):
    target = torch.empty(1, 6, dtype=x.dtype)
    torch.add(x, 1.0, out=target)
    return linear(target)


def out_of_live(x):
    y = linear(x)
    torch.mul(constant, 2.0, out=y)
    return y + x


constant = torch.ones(1, 6, dtype=torch.float64)


def several_in_place(x):
    y = linear(x)
    vars(torch)["_foreach_mul_"]([y], 2.0)  # no name that torch exports
    return y


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return x * 2


def with_script(x):
    return linear(scripted(x)) + x


@torch.no_grad()
def with_script_without_gradients(x):
    return linear(scripted(x)) + x


def with_numpy(x):
    return linear(torch.from_numpy(np.tanh(x.detach().numpy()))) + x


def with_item(x):
    return linear(x) * x.max().item()


def with_float(x):
    return linear(x) * float(x.sum())


def with_list(x):
    return linear(x) + torch.tensor(x.tolist())


@torch.inference_mode()
def in_inference_mode(x):
    return F.relu(linear(x)) + x


def complex_numbers(x):
    return torch.fft.rfft(x).abs() + x[:, :4]


def complex_length(x):
    return torch.view_as_complex(x.reshape(1, 3, 2)).abs()


def complex_square(x):
    z = torch.view_as_complex(x.reshape(1, 3, 2))
    return torch.view_as_real(z * z).flatten(1)


def complex_in_place(x):
    z = torch.view_as_complex(linear(x).reshape(1, 3, 2))
    z *= 1j
    return torch.view_as_real(z).flatten(1)


def bits(x):
    return x.view(torch.float32).double()


def sparse_constant(x):
    return (weight.to_sparse() @ x.T).T


def gradient_inside(x):
    return torch.autograd.grad(linear(x).square().sum(), x, create_graph=True)[0] + x


UNSEEN = {
    sparse_constant: "to_dense",
    gradient_inside: "cannot be replayed",
    through_data: "view",
    one_of_several_views: "several views",
    out_argument: "out=",
    out_of_live: "out=",
    several_in_place: "out of place",
    with_script: "scripted",
    with_script_without_gradients: "scripted",
    with_numpy: "numpy",
    with_item: "item",
    with_float: "float",
    with_list: "tolist",
    in_inference_mode: "inference_mode",
    complex_numbers: "complex",
    complex_length: "complex",
    complex_square: "complex",
    complex_in_place: "complex",
    bits: "bits",
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("function", UNSEEN, ids=lambda f: getattr(f, "__name__", "f"))
def test_what_the_tape_cannot_follow(function) -> None:
    assert_rejected(TapeError, UNSEEN[function], function)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_and_compiled_modules() -> None:
    plain = nn.Sequential(nn.Linear(6, 3), nn.ReLU()).double()
    assert_rejected(TapeError, "scripted", torch.jit.script(plain))
    assert_rejected(TapeError, "scripted", nn.Sequential(torch.jit.script(plain), nn.ReLU()))
    assert_rejected(TapeError, "scripted", torch.jit.trace(plain, X))
    assert_rejected(TapeError, "compiled", torch.compile(plain))


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__.startswith("2.5."), reason="torch 2.5 cannot compile under a recording")
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_function_inside_is_refused_or_right() -> None:
    doubled = torch.compile(lambda x: x * 2, backend="eager")
    expected = bilrp.decompose(lambda x: linear(x * 2) + x, X, regions=regions.features()).parts
    try:
        result = bilrp.decompose(lambda x: linear(doubled(x)) + x, X, regions=regions.features()).parts
    except TapeError:
        return
    torch.testing.assert_close(result, expected)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def test_what_is_not_one_tensor() -> None:
    assert_rejected(InputError, r"tuple, .* model\(x\)\[0\]$", lambda x: (linear(x), x))
    assert_rejected(
        InputError,
        r'dict with map, embedding, .* model\(x\)\["embedding"\]$',
        lambda x: {"map": x, "embedding": x},
    )
    assert_rejected(
        InputError, r"Pair with first, second, .* model\(x\)\.first$", lambda x: Pair(linear(x), x)
    )
    assert_rejected(InputError, "None, .* return", lambda x: None)
    assert_rejected(InputError, "pooler_output", lambda x: object())
    assert_rejected(TapeError, "does not depend", lambda x: torch.ones(1, 3))
    assert_rejected(TapeError, "does not depend", lambda x: (x > 0).double())


def test_custom_autograd_functions_are_seen_inside() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, *grad_outputs):
            return grad_outputs[0] * 2

    try:
        result = bilrp.decompose(lambda x: linear(Double.apply(x)), X, regions=regions.features())
    except TapeError:
        return  # refusing is fine too
    expected = bilrp.decompose(lambda x: linear(x * 2), X, regions=regions.features())
    torch.testing.assert_close(result.parts, expected.parts)


# ---------------------------------------------------------------- moving targets


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


def training_models() -> dict[str, nn.Module]:
    return {
        "dropout": nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)),
        "dropout deep": nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.Dropout1d(0.1)))),
        "attention": nn.TransformerEncoderLayer(6, 2, 8, dropout=0.1, batch_first=True),
        "batch norm": nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3)), nn.BatchNorm1d(2)),
    }


@pytest.mark.parametrize("name", training_models())
def test_training_mode(name: str) -> None:
    model = training_models()[name].double()
    x = X.reshape(1, 1, 6) if name == "attention" else X
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert_rejected(InputError, "model.eval", model, x)
    assert_rejected(InputError, "model.eval", lambda t: model(t), x)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_functional_dropout_is_on_by_default() -> None:
    assert_rejected(InputError, "model.eval", lambda x: F.dropout(linear(x)))
    assert_rejected(InputError, "model.eval", lambda x: F.dropout(linear(x), 1.0))
    assert_rejected(InputError, "model.eval", lambda x: torch.dropout(linear(x), 0.5, True))

    def attended(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x[None], x[None], x[None], None, 0.5)

    state = torch.random.get_rng_state()
    for on in (True, None):  # None is on, and it raises before anything is drawn
        assert_rejected(
            InputError, "model.eval", lambda x, on=on: torch.native_dropout(linear(x), 0.5, on)[0]
        )
    assert torch.equal(state, torch.random.get_rng_state())
    assert_rejected(InputError, "model.eval", attended)


def test_dropout_that_does_nothing_is_fine() -> None:
    for model in (nn.Dropout(0.0), nn.Dropout(0.5).eval()):
        assert model(X) is not None
        bilrp.decompose(nn.Sequential(nn.Linear(6, 6), model).double(), X)


def test_the_error_for_functional_dropout_in_eval_mode_says_what_to_do() -> None:
    class Careless(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.5)

    class Careful(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.5, training=self.training)

    message = assert_rejected(InputError, "pass training=self.training", Careless().eval())
    assert "eval()" not in message
    bilrp.decompose(Careful().eval(), X)


class LayerDrop(nn.Module):
    """As wav2vec 2.0 has it: random numbers are drawn in eval mode too, but not used."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            drawn = torch.rand([])
            torch.rand_like(x).mul_(2)
            skip = self.training and drawn < 0.5
            x = x if skip else layer(x)
        return x


def test_random_numbers_that_nothing_depends_on_are_fine() -> None:
    model = LayerDrop().eval()
    first, second = (model.get_parameter(f"layers.{number}.weight") for number in range(2))
    expected = second @ first * X
    result = bilrp.decompose(model, X, regions=regions.features(), composite=composites.uniform(0.0))
    torch.testing.assert_close(result.parts.T, expected)
    assert "call model.eval() first" in assert_rejected(InputError, "'__bool__' uses them", model.train())


def by_setting(x: Tensor) -> Tensor:
    mask = torch.zeros(6, dtype=x.dtype)
    mask[2:] = torch.rand(4, dtype=x.dtype)
    return x * mask


def through_a_view(x: Tensor) -> Tensor:
    mask = torch.zeros(6, dtype=x.dtype)
    mask[2:].uniform_()
    return x * mask


RANDOM = {
    "noise": lambda x: x + torch.randn_like(x),
    "mask": lambda x: x * torch.bernoulli(torch.full((6,), 0.5)),
    "further": lambda x: x * (torch.rand(6, dtype=x.dtype) + 1).exp(),
    "order": lambda x: x[:, torch.randperm(6)],
    "setting": by_setting,
    "view": through_a_view,
    "type": lambda x: x * torch.rand(6).type_as(x),
    "written": lambda x: torch.zeros_like(x).copy_(torch.rand(6)).add_(x),
    "element": lambda x: x * next(iter(torch.rand(3, 6, dtype=x.dtype))),
    "branch": lambda x: x if torch.rand(()) < 2 else -x,
    "number": lambda x: x * torch.rand(()).item(),
    "list": lambda x: x * torch.rand(1).tolist()[0],
    "array": lambda x: x * float(torch.rand(()).numpy()),
    "live odds": lambda x: x * torch.bernoulli(x.sigmoid()),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_models(name: str) -> None:
    message = assert_rejected(InputError, "random numbers", RANDOM[name])
    assert "call model.eval() first; in eval mode, draw them once" in message  # a function has no mode


def test_the_error_for_random_numbers_in_eval_mode_says_what_to_do() -> None:
    message = assert_rejected(InputError, "keep them as a buffer", Noise().eval())
    assert "eval()" not in message

    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.noise: Tensor
            self.register_buffer("noise", torch.randn(1, 6, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.noise

    bilrp.decompose(Kept().eval(), X)

    def seeded(x: Tensor) -> Tensor:
        return x + torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)

    bilrp.decompose(seeded, X)


def test_autocast() -> None:
    model = nn.Linear(6, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert_rejected(InputError, "autocast", model, X.float())

    def inside(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    assert_rejected(InputError, "autocast", inside, X.float())


# ---------------------------------------------------------------- steps without a rule

NO_RULE = {
    "softmax": lambda x: linear(x).softmax(-1),
    "sigmoid": lambda x: torch.sigmoid(linear(x)),
    "exp": lambda x: linear(x).exp(),
    "rtruediv": lambda x: 1 / linear(x),
    "two live factors": lambda x: linear(x) * (x @ weight),
    "two live matrices": lambda x: linear(x).T @ (x @ weight),
    "floor division": lambda x: torch.div(linear(x), 0.1, rounding_mode="floor"),
    "rounding": lambda x: (100 * linear(x)).round(),
    "live weight of lerp": lambda x: torch.lerp(linear(x), x, x @ weight),
    "live grid": lambda x: F.grid_sample(
        torch.ones(1, 1, 3, 3).double(), x.reshape(1, 1, 3, 2), align_corners=False
    ),
    "live exponent": lambda x: torch.pow(2.0, linear(x)),
    "two live powers": lambda x: linear(x).abs() ** x,
    "live bound": lambda x: torch.clamp(linear(x), max=x),
    "live chain": lambda x: torch.linalg.multi_dot([linear(x), weight, x.T]),
    "live addcmul": lambda x: torch.addcmul(x, linear(x), x @ weight),
    "live kernel": lambda x: F.conv1d(linear(x)[None], x.reshape(1, 1, 6)[..., :3])[0],
    "live fill": lambda x: linear(x).new_full((1, 6), 0.0).fill_(x[0, 0]),
    "new tensor": lambda x: x.new_tensor(x) + x,
    "multiplying scatter": lambda x: x.scatter(
        1, torch.tensor([[0, 1]]), linear(x)[:, :2], reduce="multiply"
    ),
    "recurrent": lambda x: recurrent(x.reshape(1, 2, 3))[0],
    "cumulative product": lambda x: linear(x).cumprod(-1),
    "median": lambda x: linear(x).median(-1).values[:, None],
}
recurrent = nn.LSTM(3, 4, batch_first=True).double().eval()


@pytest.mark.filterwarnings("ignore:To copy construct:UserWarning")
@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter:UserWarning")
@pytest.mark.parametrize("name", NO_RULE)
@pytest.mark.parametrize("mode", ["push", "pull"])
def test_steps_without_a_rule(name: str, mode: str) -> None:
    assert_rejected(
        RuleError, r"step '.*' \(.*->.*\)", NO_RULE[name], mode=mode, composite=composites.uniform(0.0)
    )


def test_the_message_names_op_step_shapes_and_the_call_that_fixes_it() -> None:
    class Softened(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 6)

        def forward(self, x):
            return F.softmax(self.head(x), -1)

    model = Softened().double()
    message = assert_rejected(RuleError, "no rule", model)
    for words in (
        "softmax_1",
        "softmax:",
        "(1, 6) -> (1, 6)",
        "first_match(('softmax_1', bilrp.rules.jacobian())",
    ):
        assert words in message
    fixed = composites.first_match(("softmax_1", rules.jacobian()), otherwise=composites.uniform(0.25))
    bilrp.decompose(model, X, composite=fixed)
    gated = assert_rejected(RuleError, "no rule", NO_RULE["two live factors"])
    assert "product(freeze=1)" in gated
    fixed = composites.first_match(("mul_1", rules.product(freeze=1)), otherwise=composites.uniform(0.25))
    bilrp.decompose(NO_RULE["two live factors"], X, composite=fixed)


def test_rules_that_do_not_fit_their_step() -> None:
    def with_rule(rule, op):
        return composites.first_match((op, rule), otherwise=composites.uniform(0.0))

    assert_rejected(RuleError, "neither", lambda x: F.gelu(x), composite=with_rule(rules.gamma(0.1), "gelu"))
    assert_rejected(
        RuleError,
        "nonlinear",
        NO_RULE["two live powers"],
        composite=with_rule(rules.product(freeze=1), "pow"),
    )
    assert_rejected(
        RuleError, "nonlinear", lambda x: linear(x) / x, composite=with_rule(rules.product(freeze=0), "div")
    )
    assert_rejected(RuleError, "is not", lambda x: x.exp(), composite=with_rule(rules.linear(), "exp"))
    positively_homogeneous = {  # linear on multiples of the input, and only there
        "abs": lambda x: x.abs(),
        "relu": lambda x: F.relu(x),
        "amax": lambda x: x.amax(1),
        "median": lambda x: x[:, :5].median(1)[0],
        "sort": lambda x: x.sort(1)[0],
    }
    for op, function in positively_homogeneous.items():
        assert_rejected(RuleError, "is not", function, composite=with_rule(rules.linear(), op))
    assert_rejected(RuleError, "is not", lambda x: linear(x) * x, composite=with_rule(rules.linear(), "mul"))
    assert_rejected(RuleError, "is not", lambda x: linear(x) / x, composite=with_rule(rules.linear(), "div"))
    assert_rejected(
        RuleError, "gate is a rule", lambda x: linear(x) + x, composite=with_rule(rules.gate(), "add")
    )
    assert_rejected(RuleError, "gate is a rule", linear, composite=with_rule(rules.gate(), "linear"))
    assert_rejected(
        RuleError, "clamp is a rule", lambda x: x.exp(), composite=with_rule(rules.clamp(), "exp")
    )
    assert_rejected(
        RuleError, "select is a rule", lambda x: x.exp(), composite=with_rule(rules.select(), "exp")
    )
    assert_rejected(RuleError, "0 to 0", lambda x: x.exp(), composite=with_rule(rules.frozen(), "exp"))
    assert_rejected(RuleError, "first layer", lambda x: linear(linear(x)), composite=rules.zbox(-9.0, 9.0))
    assert_rejected(RuleError, "bounds given to zbox", linear, composite=rules.zbox(0.0, 0.1))
    assert_rejected(RuleError, "low ≤ high", linear, composite=rules.zbox(9.0, -9.0))
    assert_rejected(RuleError, "low ≤ high", linear, composite=rules.zbox(math.nan, 9.0))
    assert_rejected(
        RuleError, "one for each channel", net, image, composite=rules.zbox((0.0, 0.0), (1.0, 1.0))
    )
    for make in (
        lambda: rules.gamma(-1),
        lambda: rules.gamma(math.inf),
        lambda: rules.epsilon(-0.1),
        lambda: rules.alphabeta(2, 2),
    ):
        with pytest.raises(RuleError):
            make()


def test_rules_that_are_none() -> None:
    assert_rejected(RuleError, "got str", linear, composite="gamma")
    assert_rejected(RuleError, "got float", linear, composite=0.25)
    assert_rejected(RuleError, "gave str", linear, composite=lambda step: "gamma")


def test_what_torch_cannot_push() -> None:
    def distances(x):
        return torch.pdist(x.reshape(3, 2))

    assert_rejected(RuleError, "mode='pull'", distances, composite=composites.hessian_product(), mode="push")
    bilrp.decompose(distances, X, composite=composites.hessian_product(), mode="pull")


@pytest.mark.parametrize(
    "rule", [rules.jacobian(), rules.linear(), rules.zero(), rules.epsilon(0.0)], ids=lambda r: r.name
)
def test_any_rule_respects_the_relu_behind_its_step(rule) -> None:
    """A ReLU is fused into the linear step before it; a rule without support for that must not drop it."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    composite = composites.first_match(("linear", rule), otherwise=composites.uniform(0.0))
    expected = bilrp.decompose(model, X, composite=composites.uniform(0.0)).parts
    for mode in ("push", "pull"):
        torch.testing.assert_close(bilrp.decompose(model, X, composite=composite, mode=mode).parts, expected)


def test_transforms_and_compiled_parts_inside_raise_our_own_errors() -> None:
    assert_rejected(TapeError, "torch.vmap", lambda x: torch.vmap(torch.relu)(linear(x)))
    assert_rejected(
        TapeError,
        "torch.func.jvp",
        lambda x: torch.func.jvp(torch.tanh, (linear(x),), (torch.ones_like(x),))[1],
    )

    class Compiled(nn.Module):
        @torch.compile(backend="eager")
        def inside(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inside(linear(x))

    assert_rejected(TapeError, "compiled", Compiled())


def test_a_write_without_an_out_of_place_form_says_how_to_write_it() -> None:
    def zeroed(x: torch.Tensor) -> torch.Tensor:
        h = linear(x)
        h[:, 0].zero_()
        return h

    assert_rejected(TapeError, "masked_fill.*index_fill", zeroed)
