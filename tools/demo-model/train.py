#!/usr/bin/env python3
"""Trains the story model and writes it as a Hugging Face folder, with its loss curve, perplexity and samples.

Needs only PyTorch and NumPy. The data stays on the device. Half of the windows start with a story, the others
anywhere. The learning rate warms up, stays constant, and decays to 0, by steps or, with --minutes, by time.
"""

import argparse
import contextlib
import json
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F

import curve
import export
from bpe import Bpe
from evaluate import perplexity, samples
from model import Config, StoryModel
from optimizer import Muon, split
from prompts import PROMPTS


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=pathlib.Path, help="folder with train.bin, held-out.bin and "
                                                        "tokenizer.json")
    parser.add_argument("out", type=pathlib.Path, help="folder for the model and the report of its training")
    parser.add_argument("--minutes", type=float, help="training time in minutes")
    parser.add_argument("--steps", type=int, help="number of training steps")
    parser.add_argument("--batch", type=int, default=256, help="windows per step")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--inner", type=int, default=768)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--optimizer", choices=["muon", "adamw"], default="muon")
    parser.add_argument("--rate", type=float, default=5e-3)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--samples", type=int, default=10)
    args = parser.parse_args()
    if (args.minutes is None) == (args.steps is None):
        parser.error("one of --minutes and --steps is needed")
    return args


def read(path, device):
    """Tokens of a file, on the device."""
    return torch.from_numpy(np.fromfile(path, dtype="<u2").astype(np.int32)).to(device)


def rate_at(done):
    """The learning rate schedule (warmup, constant, decay) as a fraction of the full rate."""
    return min(1.0, done / 0.02 + 0.02, (1.0 - done) / 0.45)


def window_maker(tokens, starts, size, batch, seed):
    """A function that draws batches of windows, each one token longer than the model's input."""
    generator = torch.Generator(device=tokens.device).manual_seed(seed)
    last = len(tokens) - size - 1
    starts = starts[starts <= last]
    span = torch.arange(size + 1, device=tokens.device)

    def draw():
        anywhere = torch.randint(last + 1, (batch - batch // 2,), device=tokens.device, generator=generator)
        story = starts[torch.randint(len(starts), (batch // 2,), device=tokens.device, generator=generator)]
        return tokens[torch.cat((anywhere, story))[:, None] + span].long()

    return draw


def main():
    args = arguments()
    device = torch.device(args.device)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    tokenizer = Bpe(args.data / "tokenizer.json")
    train, held_out = read(args.data / "train.bin", device), read(args.data / "held-out.bin", device)
    config = Config(vocabulary=tokenizer.size, hidden=args.hidden, inner=args.inner, layers=args.layers,
                    context=args.context)
    model = StoryModel(config).to(device)
    print(f"{model.parameters_count() / 1e6:.2f} M parameters, {len(train) / 1e6:.2f} M tokens, on "
          f"{device}", flush=True)

    matrices, others = split(model)
    if args.optimizer == "muon":
        muon = Muon(matrices, args.rate, args.decay)
    else:
        muon, others = None, matrices + others
    adam = torch.optim.AdamW([{"params": [w for w in others if w.dim() == 2], "weight_decay": args.decay},
                              {"params": [w for w in others if w.dim() == 1], "weight_decay": 0.0}],
                             lr=args.rate, betas=(0.9, 0.98), fused=device.type == "cuda")
    cast = torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else contextlib.nullcontext()

    def score(windows):
        logits = model(windows[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())

    draw = window_maker(train, (train == tokenizer.end).nonzero().flatten(), config.context, args.batch,
                        args.seed)
    if device.type == "cuda" and not args.no_compile:
        plain, begin = score, time.time()
        try:
            score = torch.compile(plain)
            with cast:
                loss = score(draw())
            loss.backward()
            torch.cuda.synchronize()
            print(f"compiled in {time.time() - begin:.0f} s", flush=True)
        except Exception as error:  # The uncompiled model computes the same.
            print(f"not compiled: {type(error).__name__}: {str(error)[:200]}", flush=True)
            score = plain
        model.zero_grad(set_to_none=True)

    history, measured = [], []
    step, begin, pending = 0, time.time(), []
    every = 20 if device.type == "cuda" else 5
    limit = args.minutes * 60 if args.minutes else None
    next_look, done = 0.0, 0.0
    while done < 1.0:
        scale = rate_at(done)
        with cast:
            loss = score(draw())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        if muon:
            muon.step(scale)
        for group in adam.param_groups:
            group["lr"] = args.rate * scale
        adam.step()
        model.zero_grad(set_to_none=True)
        pending.append(loss.detach())
        step += 1
        if step % every == 0 or (args.steps and step == args.steps):
            mean = torch.stack(pending).mean().item()
            pending = []
            seconds = time.time() - begin
            history.append({"step": step, "seconds": round(seconds, 2), "loss": round(mean, 4),
                            "rate": args.rate * scale})
            done = seconds / limit if limit else step / args.steps
            if done >= next_look:
                next_look = done + 0.05
                look = perplexity(model, held_out, limit=64)
                measured.append({"step": step, "loss": round(look["loss all"], 4)})
                tokens = step * args.batch * config.context
                print(f"step {step:6d}  {seconds:6.1f} s  {tokens / seconds / 1e3:8.0f} k tokens/s  loss "
                      f"{mean:.4f}  "
                      f"held-out {look['loss all']:.4f}", flush=True)
        if args.steps:
            done = step / args.steps
    seconds = time.time() - begin

    model.eval()
    torch.set_float32_matmul_precision("highest")
    quality = perplexity(model, held_out)
    seen = perplexity(model, train, limit=quality["windows"])
    export.folder(args.out, model, args.data / "tokenizer.json", tokenizer.end)
    generator = torch.Generator().manual_seed(args.seed)
    prompts = PROMPTS[: args.samples]
    texts = samples(model, [[tokenizer.end, *tokenizer.encode(prompt)] for prompt in prompts],
                    tokenizer.end, 0.8, 40, generator)
    told = [{"prompt": prompt, "text": tokenizer.decode(tokens)} for prompt, tokens in zip(prompts, texts)]
    report = {"arguments": {key: str(value) if isinstance(value, pathlib.Path) else value for key,
                            value in vars(args).items()},
              "config": config.as_dict(), "parameters": model.parameters_count(), "train tokens": len(train),
              "tokens seen": step * args.batch * config.context,
              "epochs": round(step * args.batch * config.context / len(train), 2),
              "steps": step, "seconds": round(seconds, 1), "torch": torch.__version__,
              "machine": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
              "perplexity": quality, "perplexity of training text": seen, "samples": told}
    (args.out / "training.json").write_text(json.dumps(report, indent=1))
    (args.out / "loss.json").write_text(json.dumps({"train": history, "held-out": measured}))
    (args.out / "loss.svg").write_text(curve.svg(history, measured))
    print(f"{step} steps in {seconds:.0f} s, {report['epochs']} epochs; held-out perplexity: second half "
          f"{quality['second half']:.3f}, "
          f"all {quality['all']:.3f}; training text: all {seen['all']:.3f}")
    for row in told[:3]:
        print("\n" + row["text"])


if __name__ == "__main__":
    main()
