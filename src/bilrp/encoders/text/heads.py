"""Modules after the transformer: pooling over tokens, dense layers, norms. They take a single text without padding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilrp.errors import InputError

# Names of sentence-transformers and short forms.
POOLING_MODES = {
    "mean": "mean",
    "cls": "cls",
    "last": "last",
    "lasttoken": "last",
    "max": "max",
    "weightedmean": "weightedmean",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "tokens": "tokens",
}
ACTIVATIONS = {
    "Identity", "Tanh", "ReLU", "GELU", "SiLU", "Mish", "LeakyReLU", "ELU", "SELU", "Hardswish", "Softsign",
}  # fmt: skip


class Pooling(nn.Module):
    """(1, tokens, width) → (1, width · modes): the pooled vectors, concatenated; "tokens" returns all tokens.

    Args:
        modes: names of `POOLING_MODES`.
        prompt_tokens: number of leading tokens to exclude.
    """

    def __init__(self, modes: tuple[str, ...], prompt_tokens: int = 0):
        super().__init__()
        unknown = [mode for mode in modes if mode not in POOLING_MODES]
        if unknown or not modes or ("tokens" in modes and len(modes) > 1):
            raise InputError(
                f"unknown pooling {', '.join(unknown or modes) or '()'}: use {', '.join(POOLING_MODES)}"
            )
        self.modes, self.prompt_tokens = tuple(POOLING_MODES[mode] for mode in modes), prompt_tokens

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, self.prompt_tokens :] if self.prompt_tokens else x
        pooled = [self._pool(x, mode) for mode in self.modes]
        return pooled[0] if len(pooled) == 1 else torch.cat(pooled, 1)

    def _pool(self, x: Tensor, mode: str) -> Tensor:
        if mode == "cls":
            return x[:, 0]
        if mode == "last":
            return x[:, -1]
        if mode == "max":
            return x.amax(1)
        if mode == "weightedmean":
            weights = torch.arange(
                1 + self.prompt_tokens, 1 + self.prompt_tokens + x.shape[1], dtype=x.dtype, device=x.device
            )
            return (x * (weights / weights.sum())[:, None]).sum(1)
        if mode == "mean_sqrt_len_tokens":
            return x.sum(1) / x.shape[1] ** 0.5
        return x if mode == "tokens" else x.mean(1)

    @property
    def is_linear(self) -> bool:
        """Whether the pooled vector is a sum of tokens with fixed weights."""
        return len(self.modes) == 1 and self.modes[0] not in ("max", "tokens")

    def token_weights(self, lengths: list[int]) -> Tensor:
        """Return [texts, tokens], the weight of each token in the pooled vector, of a linear pooling.

        Args:
            lengths: number of tokens of each text; shorter texts are padded at the end.
        """
        # The pooling of the identity matrix: one unit vector for each token.
        rows = [self(torch.eye(length, dtype=torch.float64)[None])[0] for length in lengths]
        return torch.stack([F.pad(row, (0, max(lengths) - len(row))) for row in rows])

    def extra_repr(self) -> str:
        return "+".join(self.modes) + (f", prompt_tokens={self.prompt_tokens}" if self.prompt_tokens else "")


class Normalize(nn.Module):
    """x / ‖x‖ for each vector."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


class Dense(nn.Module):
    """Linear layer and activation, with an optional residual connection."""

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool, activation: str, residual: bool = False
    ):
        super().__init__()
        name = activation.rpartition(".")[2]
        if name not in ACTIVATIONS or not activation.startswith("torch.nn."):
            raise InputError(
                f"unsupported activation {activation!r} of a dense layer: use {', '.join(sorted(ACTIVATIONS))} of torch.nn"
            )
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation = getattr(nn, name)()
        self.residual: nn.Module | None = None
        if residual:
            self.residual = (
                nn.Identity()
                if in_features == out_features
                else nn.Linear(in_features, out_features, bias=False)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.activation(self.linear(x))
        return out if self.residual is None else out + self.residual(x)


class LayerNorm(nn.Module):
    """Layer norm with the parameter names of sentence-transformers."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)
