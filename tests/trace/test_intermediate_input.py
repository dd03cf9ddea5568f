"""Runs that begin inside a model: the resumed run is the model's own, also where it writes into that value."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import bilrp
from bilrp import composites
from bilrp.encoder import read_item
from bilrp.errors import TapeError
from bilrp.pipeline import Mode

IDS = torch.tensor([[3, 1, 4, 1, 5]])


class Written(nn.Module):
    """Adds positions into the memory of the words' vectors."""

    def __init__(self, inplace: bool = True) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 6), nn.Linear(6, 3)
        self.positions, self.inplace = nn.Parameter(torch.randn(5, 6)), inplace

    def forward(self, ids: Tensor) -> Tensor:
        h = self.words(ids)
        if self.inplace:
            h += self.positions
        else:
            h = h + self.positions
        return self.head(torch.relu(h)).sum(1)


def build_pair() -> tuple[Written, Written]:
    torch.manual_seed(0)
    written, plain = Written().double().eval(), Written(inplace=False).double().eval()
    plain.load_state_dict(written.state_dict())
    return written, plain


@pytest.mark.parametrize("mode", ["push", "pull"])
@pytest.mark.parametrize("gamma", [0.0, 0.25])
def test_a_write_into_the_start_counts_once(gamma: float, mode: Mode) -> None:
    written, plain = build_pair()
    result, expected = (
        bilrp.decompose(
            bilrp.Encoder(net, input_layer="words"), IDS, composite=composites.uniform(gamma), mode=mode
        )
        for net in (written, plain)
    )
    torch.testing.assert_close(result.embedding, written(IDS)[0])
    torch.testing.assert_close(result.parts, expected.parts)


def test_the_value_at_the_start_is_not_written_to() -> None:
    written, _ = build_pair()
    encoder = bilrp.Encoder(written, input_layer="words")
    item = read_item(encoder, IDS)
    assert torch.equal(item.x, written.words(IDS))
    for _ in range(2):
        torch.testing.assert_close(encoder.forward_fn(item.model_input)(item.x), written(IDS))
    assert torch.equal(item.x, written.words(IDS))


def test_a_resumed_run_that_gives_another_embedding_is_refused() -> None:
    class Counting(Written):
        runs = 0

        def forward(self, ids: Tensor) -> Tensor:
            self.runs += 1
            return super().forward(ids) * self.runs

    with pytest.raises(TapeError, match="resumed at 'words' gives another embedding") as raised:
        bilrp.decompose(bilrp.Encoder(Counting().double().eval(), input_layer="words"), IDS)
    assert "\n" not in str(raised.value)


def test_the_text_tower_of_blip2() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 20,
    }
    config = transformers.Blip2Config(
        vision_config={"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
                           "image_size": 8, "patch_size": 4},
        qformer_config=dict(small, encoder_hidden_size=8, use_qformer_text_input=True, max_position_embeddings=16),
        image_text_hidden_size=4,
    )  # fmt: skip
    model = transformers.Blip2TextModelWithProjection(config).double().eval().requires_grad_(False)

    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Tensor) -> Tensor:
            return self.model(input_ids=ids).text_embeds[:, 0]

    tower = Tower().eval()
    result = bilrp.decompose(
        bilrp.Encoder(tower, input_layer="model.embeddings.word_embeddings"),
        IDS,
        composite=composites.hessian_product(),
    )
    torch.testing.assert_close(result.embedding, tower(IDS)[0])
    # an oracle of its own: the table's rows of these tokens, moved a little along themselves
    table, step, rows = model.embeddings.word_embeddings.weight, 1e-6, []
    stored = table.detach().clone()
    for token in (3, 4, 5):  # those that come once
        moved = []
        for sign in (1, -1):
            table.data.copy_(stored)
            table.data[token] *= 1 + sign * step
            moved.append(tower(IDS)[0])
        rows.append((moved[0] - moved[1]) / (2 * step))
    torch.testing.assert_close(result.parts[[0, 2, 4]], torch.stack(rows), rtol=1e-6, atol=1e-8)
