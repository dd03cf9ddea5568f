"""Mean embeddings of everyday photographs for encoders with known weights, for `composites.centered`.

`photograph_means.safetensors` has, for each encoder, the mean of the normalized embeddings of 64 photographs of Pascal VOC
2007 at 224 × 224 pixels, under the hash of the encoder's weights; `python benchmarks/random_pairs.py` writes it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor, nn

from bilrp.trace.fingerprint import hash_tensors

MEANS_FILE = Path(__file__).with_suffix(".safetensors")


def hash_module(module: nn.Module) -> str:
    """Return a hash of the values of all weights and buffers, the same in every dtype that holds them exactly."""
    state = module.state_dict().values()
    return hash_tensors(tensor.float() for tensor in state if tensor.is_floating_point())


def find_photograph_mean(module: nn.Module) -> Tensor | None:
    """Return the mean embedding [h] of photographs under these weights; None if they are not known."""
    return _read_means().get(hash_module(module))


@cache
def _read_means() -> dict[str, Tensor]:
    return {key: mean.double() for key, mean in load_file(MEANS_FILE).items()}
