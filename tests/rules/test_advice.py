"""What a refusal advises is followed here, and works."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bilrp
from bilrp import composites
from bilrp.errors import BilrpError

image = torch.rand(1, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
attention = torch.rand(1, 2, 6, 4, generator=torch.Generator().manual_seed(1))


def refusal(encoder, x: Tensor) -> str:
    with pytest.raises(BilrpError) as raised:
        bilrp.decompose(encoder, x)
    message = str(raised.value)
    assert "\n" not in message
    return message


def options_in(message: str) -> dict[str, Any]:
    """The keywords that a message says to pass."""
    written = re.search(r"composite=.*?(?=; or|$)", message)
    assert written is not None, message
    return eval(f"dict({written[0]})", {"bilrp": bilrp})


def transformed(x: Tensor) -> Tensor:
    return F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1) - 0.5, align_corners=False)


def test_a_grid_that_depends_on_the_input() -> None:
    options = options_in(refusal(transformed, image))
    decomposition = bilrp.decompose(transformed, image, regions=4, **options)
    jacobian = torch.autograd.functional.jacobian(lambda t: transformed(t).flatten(), image)
    assert isinstance(jacobian, Tensor)
    torch.testing.assert_close(decomposition.parts.sum(0), (jacobian.flatten(1) @ image.flatten()))


def test_a_curve_pushes_and_pulls() -> None:
    options = options_in(refusal(lambda x: x.exp(), image))
    assert "mode" not in options
    bilrp.decompose(lambda x: x.exp(), image, **options)


@pytest.mark.filterwarnings("ignore")  # torch's own, of its old quantization
def test_int8() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    small = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, torch.qint8)
    message = refusal(small, torch.rand(1, 8))
    assert "explain the model as it was before it was quantized" in message and "jacobian" not in message
    bilrp.decompose(plain, torch.rand(1, 8))


def test_an_operator_of_ones_own() -> None:
    @torch.library.custom_op("bilrp_tests::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return 2 * x

    message = refusal(lambda x: twice(x), image)
    assert "write it out in the model with torch's own calls" in message and "jacobian" not in message
    bilrp.decompose(lambda x: 2 * x, image)


def test_flex_attention() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    def flexible(x: Tensor) -> Any:
        return flex_attention(x, x, x)

    assert "scaled_dot_product_attention with attn_mask" in refusal(flexible, attention)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    bilrp.decompose(lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=mask), attention)


@pytest.mark.slow  # transformers compiles the mask
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_flex_attention_in_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 30,
    }
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**sizes)).eval()

    def encode(x: Tensor) -> Tensor:
        return model(inputs_embeds=x).pooler_output

    x = torch.rand(1, 5, 32)
    model.set_attn_implementation("flex_attention")
    assert "attn_implementation='sdpa'" in refusal(encode, x)
    model.set_attn_implementation("sdpa")
    bilrp.decompose(encode, x, composite=composites.uniform(0.0))


class Scaled(nn.Embedding):
    """An embedding with a norm of its own, which has no weights."""

    def __init__(self) -> None:
        super().__init__(9, 4)
        self.norm = nn.LayerNorm(4, elementwise_affine=False)

    def forward(self, input: Tensor) -> Tensor:
        return self.norm(super().forward(input))


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = Scaled(), nn.Linear(4, 2)

    def forward(self, ids: Tensor | None = None, inputs_embeds: Tensor | None = None) -> Tensor:
        x = self.words(ids) if inputs_embeds is None else inputs_embeds
        return self.last(x).mean(1)


def test_an_embedding_made_of_parts_without_weights() -> None:
    torch.manual_seed(0)
    model, ids = Reader().eval(), torch.tensor([[3, 5, 1]])
    with pytest.raises(BilrpError, match="explain the model from its inputs_embeds"):
        bilrp.decompose(bilrp.Encoder(model, input_layer="words"), ids)
    bilrp.decompose(lambda x: model(inputs_embeds=x), model.words(ids).detach())
