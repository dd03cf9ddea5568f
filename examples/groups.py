"""Explain sets, contrasts and many inputs on handwritten digits; each image is decomposed once.

Needs scikit-learn (pip install "bilrp[studies]") for its 8×8 digits and takes a few seconds. With a file name
(python examples/groups.py threes_and_eights.png) it also draws the two sets, each as its mean image.
"""

import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import bilrp


def train_encoder(images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    """Train a small convolutional classifier and return its features."""
    features = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    model = nn.Sequential(features, nn.Linear(32, 10))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        batch = torch.randint(len(images), (128,))
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return features.eval().requires_grad_(False)


def print_map(title: str, values: torch.Tensor) -> None:
    """Print a 4×4 map of regions in percent of its sum."""
    print(title)
    for row in (100 * values / values.sum()).reshape(4, 4).tolist():
        print("   " + " ".join(f"{value:6.1f}" for value in row))


torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
labels = torch.tensor(digits.target)
encoder = bilrp.Encoder(
    train_encoder(images, labels), composite=bilrp.composites.uniform(0.25), regions=bilrp.regions.grid(2)
)

threes = [bilrp.decompose(encoder, images[i : i + 1]) for i in (labels == 3).nonzero()[:20, 0]]
eights = [bilrp.decompose(encoder, images[i : i + 1]) for i in (labels == 8).nonzero()[:20, 0]]

# Two sets: 400 pairs for the cost of 40 decompositions and one small matrix product.
sets = bilrp.explain_sets(threes, eights, similarity="cosine")
print(f"mean cosine of 20 threes with 20 eights: {sets.score / 400:.3f}")
print_map("where threes look like eights:", sets.marginals()[0])

# A contrast: what makes this three closer to another three than to an eight?
contrast = bilrp.contrast(threes[0], threes[1], eights[0], similarity="cosine")
print(contrast)
print("strongest evidence:", *contrast.top(3), sep="\n   ")

# Many inputs: what do four threes have in common? Only few of the 16⁴ tuples of regions are evaluated.
many = bilrp.explain_many(threes[:4], similarity="dot")
print(many)
print_map("what four threes have in common, on the first of them:", many.marginals()[0])
print("strongest tuples of regions:", *many.top(3), sep="\n   ")

if len(sys.argv) > 1:
    print("wrote", sets.save(sys.argv[1]))
