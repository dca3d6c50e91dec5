#!/usr/bin/env python3
"""How varied a corpus is: distinct n-grams, words, and stories that are nearly the same."""

import argparse
import json
import pathlib
import re
import zlib
from collections import Counter

import numpy as np

from bpe import END

WORD = re.compile(r"[A-Za-z'-]+|[^\sA-Za-z]")


def shingles(words, size):
    return {zlib.crc32(" ".join(words[at : at + size]).encode()) for at in range(len(words) - size + 1)}


def nearest(stories, bands=32, rows=2, seed=1):
    """The largest overlap of each story with another found by MinHash (Jaccard, 5-grams, names masked)."""
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(1, 2**31, bands * rows, dtype=np.uint64) for _ in range(2))
    sets, buckets = [], {}
    for index, words in enumerate(stories):
        masked = ["N" if word[0].isupper() and word.isalpha() else word for word in words]
        own = shingles(masked, 5)
        sets.append(own)
        values = np.fromiter(own, dtype=np.uint64)
        signature = ((values[:, None] * a + b) % np.uint64(2**31 - 1)).min(axis=0)
        for band in range(bands):
            buckets.setdefault((band, *signature[band * rows : (band + 1) * rows].tolist()), []).append(index)
    best = np.zeros(len(stories))
    pairs = {(one, other) for group in buckets.values() if len(group) < 40 for one in group
             for other in group if one < other}
    for one, other in pairs:
        overlap = len(sets[one] & sets[other]) / len(sets[one] | sets[other])
        best[one], best[other] = max(best[one], overlap), max(best[other], overlap)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--sample", type=int, default=6000, help="number of stories to analyze")
    args = parser.parse_args()
    stories = [story for story in args.text.read_text().split(END) if story]
    stories = [WORD.findall(story) for story in stories[: args.sample]]
    lengths = sorted(len(story) for story in stories)
    counts = Counter(word.lower() for story in stories for word in story)
    out = {"stories": len(stories), "words": sum(lengths),
           "words of a story": {"5 %": lengths[len(lengths) // 20], "half": lengths[len(lengths) // 2],
           "95 %": lengths[len(lengths) * 19 // 20]}, "distinct words": len(counts)}
    for size in (3, 5, 8, 12):
        total, grams = 0, Counter()
        for story in stories:
            grams.update(tuple(story[at : at + size]) for at in range(len(story) - size + 1))
        total = sum(grams.values())
        once = sum(1 for n in grams.values() if n == 1)
        out[f"distinct {size}-grams"] = {"share": round(len(grams) / total, 3),
                                         "seen once": round(once / total, 3)}
    best = nearest(stories)
    out["nearest story"] = {f"overlap above {limit}": round(float((best > limit).mean()), 4)
                            for limit in (0.3, 0.5, 0.7, 0.9)}
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
