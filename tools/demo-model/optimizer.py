"""Muon for the matrices of the layers, AdamW for the embedding and the norms.

Muon replaces the momentum of a matrix with the nearest matrix whose singular values are all about 1. Matrices
of the same shape are processed as a batch.
"""

import torch


def orthogonal(batch, steps=5):
    """About U V^T of each matrix of a batch [n, rows, columns], by Newton-Schulz steps of the fifth order."""
    x = batch.bfloat16() if batch.is_cuda else batch.float()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return (x.mT if tall else x).to(batch.dtype)


class Muon:
    """Orthogonalized momentum. Steps have the size of an Adam step with the same learning rate."""

    def __init__(self, weights, rate, decay, momentum=0.95):
        self.rate, self.decay, self.momentum = rate, decay, momentum
        shapes = {}
        for weight in weights:
            shapes.setdefault(tuple(weight.shape), []).append(weight)
        self.groups = [(group, torch.zeros((len(group), *shape), device=group[0].device))
                       for shape, group in shapes.items()]

    @torch.no_grad()
    def step(self, scale):
        for weights, momentum in self.groups:
            gradient = torch.stack([weight.grad for weight in weights])
            momentum.lerp_(gradient, 1 - self.momentum)
            update = orthogonal(gradient.lerp(momentum, self.momentum))
            rate = self.rate * scale
            size = 0.2 * max(momentum.shape[-2:]) ** 0.5
            for weight, part in zip(weights, update):
                weight.mul_(1 - rate * self.decay)
                weight.add_(part, alpha=-rate * size)


def split(model):
    """Matrices of layers, and everything else."""
    matrices = [w for name, w in model.named_parameters() if w.dim() == 2 and ".layers." in name]
    others = [w for name, w in model.named_parameters() if not (w.dim() == 2 and ".layers." in name)]
    return matrices, others
