#!/usr/bin/env python3
"""Measures the model with `fulmen`: file size, samples and perplexity."""

import argparse
import json
import pathlib
import re
import subprocess

from prompts import PROMPTS


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--fulmen", default="fulmen")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=10)
    args = parser.parse_args()
    small = args.work / "story-q4_k_m.gguf"
    out = {"size": small.stat().st_size, "samples": [], "perplexity": {}}
    for seed, prompt in enumerate(PROMPTS[: args.samples], start=1):
        said = run(args.fulmen, "run", str(small), "--raw", "--quiet", "--device", args.device, "--seed",
                   str(seed), prompt)
        if said.returncode:
            raise SystemExit(f"fulmen run: {said.stderr}")
        out["samples"].append({"prompt": prompt, "seed": seed, "text": said.stdout})
    for name in ("f32", "q4_k_m"):
        said = run(args.fulmen, "bench", "perplexity", str(args.work / f"story-{name}.gguf"),
                   str(args.work / "held-out.txt"),
                   "--special", "--bare", "--device", args.device)
        if said.returncode:
            raise SystemExit(f"fulmen bench perplexity: {said.stderr}")
        number = re.search(r"perplexity\D*([0-9]+\.[0-9]+)", said.stdout)
        if number is None:
            raise SystemExit(f"fulmen bench perplexity says no figure:\n{said.stdout}")
        out["perplexity"][name] = float(number.group(1))
    (args.work / "fulmen.json").write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
