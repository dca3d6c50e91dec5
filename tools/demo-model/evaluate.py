"""Perplexity of the held-out tokens, in f32.

The tokens of all held-out stories, each with its end of text, form one long row, which is split into
non-overlapping windows of the context length; the rest is not used. `second half` scores the tokens 257..511
of each window, like `fulmen bench perplexity` and llama.cpp; `all` scores every token but the first of a
window.
"""

import math

import torch
import torch.nn.functional as F


@torch.no_grad()
def perplexity(model, tokens, batch=64, limit=None):
    """Of a row of tokens (a tensor on the model's device)."""
    size = model.config.context
    count = len(tokens) // size
    if limit:
        count = min(count, limit)
    if count == 0:
        raise ValueError(f"{len(tokens)} tokens are less than one window of {size}")
    windows = tokens[: count * size].view(count, size).long()
    nll = []
    for part in windows.split(batch):
        logits = model(part[:, :-1]).float()
        nll.append(F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(),
                                   reduction="none").view(len(part), -1).double())
    nll = torch.cat(nll)
    # Column i is the score of token i + 1.
    half = nll[:, size // 2 :]
    return {"windows": count, "context": size, "second half": math.exp(half.mean()),
            "all": math.exp(nll.mean()),
            "scored in second half": half.numel(), "loss second half": half.mean().item(),
            "loss all": nll.mean().item()}


@torch.no_grad()
def samples(model, prompts, end, temperature, top_k, generator):
    """Continues all prompts at once until the end of text or of the context."""
    device, size = next(model.parameters()).device, model.config.context
    rows = torch.full((len(prompts), size), end)
    for row, prompt in zip(rows, prompts):
        row[: len(prompt)] = torch.tensor(prompt)
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    open_rows = torch.ones(len(prompts), dtype=torch.bool)
    while open_rows.any() and lengths.max() < size:
        # Attention is causal: tokens after the end of a row do not affect those before it.
        logits = model(rows[:, : lengths.max()].to(device))
        logits = logits[torch.arange(len(prompts)), (lengths - 1).to(device)].float().cpu() / temperature
        best, places = logits.topk(top_k)
        tokens = places.gather(1, torch.multinomial(best.softmax(-1), 1, generator=generator)).flatten()
        open_rows &= tokens != end
        rows[torch.arange(len(prompts))[open_rows], lengths[open_rows]] = tokens[open_rows]
        lengths[open_rows] += 1
    return [row[:length].tolist() for row, length in zip(rows, lengths)]
