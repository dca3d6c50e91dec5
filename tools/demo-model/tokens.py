#!/usr/bin/env python3
"""Learns the tokenizer from the corpus and writes the corpus as tokens.

The files are train.bin and held-out.bin, little-endian u16. The tokenizer is learned from the first stories,
so it does not depend on the size of the corpus.
"""

import argparse
import json
import multiprocessing
import pathlib
import sys
import time
from array import array

from bpe import END, Bpe, description, learn

ENCODER = None


def prepare(path):
    global ENCODER
    ENCODER = Bpe(path)


def encode(texts):
    out = array("H")
    for text in texts:
        out.extend(ENCODER.encode(text))
        out.append(ENCODER.end)
    if sys.byteorder == "big":
        out.byteswap()
    return out.tobytes()


def split(path):
    """The stories of a file."""
    return [story for story in path.read_text().split(END) if story]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="with train.txt and held-out.txt")
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--learn-from", type=int, default=30_000,
                        help="number of stories to learn the tokenizer from")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    args = parser.parse_args()
    train = split(args.folder / "train.txt")
    file = args.folder / "tokenizer.json"
    if not file.exists():
        begin = time.time()
        merges = learn(train[: args.learn_from], args.vocabulary)
        file.write_text(json.dumps(description(merges), ensure_ascii=False, indent=0))
        print(f"{args.vocabulary} tokens learned in {time.time() - begin:.0f} s", file=sys.stderr)
    for name, stories in (("train", train), ("held-out", split(args.folder / "held-out.txt"))):
        parts = [stories[at : at + 500] for at in range(0, len(stories), 500)]
        path = args.folder / f"{name}.bin"
        with multiprocessing.Pool(args.jobs, prepare, (file,)) as pool, open(path, "wb") as out:
            size = sum(out.write(part) for part in pool.imap(encode, parts))
        text = sum(len(story) for story in stories)
        print(f"{name}: {size // 2} tokens, {text / (size // 2):.2f} bytes each", file=sys.stderr)


if __name__ == "__main__":
    main()
