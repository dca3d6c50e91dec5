#!/usr/bin/env python3
"""Writes the corpus: stories from the engine in `story/`, without duplicates, split into train and held-out.

Every story is determined by the seed and its number alone, so the corpus is the same on every machine and
with any number of processes, and a larger corpus starts with the smaller ones. One story in a hundred is held
out; those among the first 80,000 are measured. Stories end with <|endoftext|>.
"""

import argparse
import hashlib
import json
import multiprocessing
import pathlib
import re
import sys
import time
from collections import Counter

from story.tell import tell

END = "<|endoftext|>"
# What no story may contain: template syntax, doubled punctuation, sentences without an initial capital.
WRONG = re.compile(r"[^\n\x20-\x7e]|[{}\[\]<>|^_\\/]|  |[.,;]{2}|,[.!?]| [,.!?]|\b(the the|a a|an an)\b")


def one(job):
    seed, number = job
    text, plot = tell(seed, number)
    if WRONG.search(text):
        raise ValueError(f"story {number} of seed {seed} ({plot}) is not well-formed:\n{text}")
    return text, plot


def held_out(seed, number, share):
    """Whether a story is held out; decided by its number alone, so it does not depend on the corpus size."""
    digest = hashlib.sha256(f"held-out/{seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < share * 2**32


def stories(seed, count, jobs):
    """All stories with their numbers and plots, duplicates left out."""
    seen = set()
    with multiprocessing.Pool(jobs) as pool:
        results = pool.imap(one, ((seed, number) for number in range(count)), chunksize=200)
        for number, (text, plot) in enumerate(results):
            # Two stories that differ only in names count as the same.
            key = hashlib.blake2b(re.sub(r"\b[A-Z][a-z]+\b", "N", text).encode(), digest_size=12).digest()
            if key not in seen:
                seen.add(key)
                yield number, text, plot


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path, help="folder for train.txt, held-out.txt and corpus.json")
    parser.add_argument("--stories", type=int, default=400_000)
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--held-out", type=float, default=0.01, help="fraction of stories to hold out")
    parser.add_argument("--measure", type=int, default=80_000,
                        help="write the held-out stories among the first MEASURE")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    begin, counts, plots = time.time(), Counter(), Counter()
    with open(args.out / "train.txt", "w") as train, open(args.out / "held-out.txt", "w") as kept:
        files = {"train": train, "measured": kept}
        for number, text, plot in stories(args.seed, args.stories, args.jobs):
            part = "train"
            if held_out(args.seed, number, args.held_out):
                part = "measured" if number < args.measure else "unused"
            if part in files:
                files[part].write(text + END)
            counts[part] += 1
            counts[part + " bytes"] += len(text)
            plots[plot] += 1
    for name in ("", " bytes"):
        counts["held-out" + name] = counts["measured" + name] + counts["unused" + name]
    total = counts["train"] + counts["held-out"]
    summary = {"seed": args.seed, "stories": total, "duplicates left out": args.stories - total,
               "train": {"stories": counts["train"], "bytes": counts["train bytes"]},
               "held-out": {"stories": counts["held-out"], "bytes": counts["held-out bytes"]},
               "measured": {"stories": counts["measured"], "bytes": counts["measured bytes"]},
               "plots": dict(sorted(plots.items()))}
    (args.out / "corpus.json").write_text(json.dumps(summary, indent=1))
    print(f"{total} stories of {len(plots)} plots, {counts['train bytes'] / 1e6:.1f} MB to train on, "
          f"{counts['held-out bytes'] / 1e3:.0f} kB held out, {args.stories - total} duplicates left out, "
          f"{time.time() - begin:.0f} s",
          file=sys.stderr)


if __name__ == "__main__":
    main()
