"""Byte-level BPE as in GPT-2: learns merges, encodes, and writes the `tokenizer.json`.

Text is first split into words by GPT-2's pattern, written here for ASCII, which is all that the corpus
contains; on such text it splits exactly like the pattern in the file.
"""

import json
import re
from collections import Counter, defaultdict

END = "<|endoftext|>"
WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


def byte_signs():
    """The printable character for each byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    signs, extra = {}, 0
    for byte in range(256):
        if byte in plain:
            signs[byte] = chr(byte)
        else:
            signs[byte] = chr(256 + extra)
            extra += 1
    return signs


SIGNS = byte_signs()


def signs_of(word):
    return tuple(SIGNS[byte] for byte in word.encode())


def learn(texts, size):
    """The merges for a vocabulary of `size` tokens: 256 bytes, the merges and the end of text.

    Ties are resolved in favor of the smaller pair.
    """
    counts = Counter()
    for text in texts:
        counts.update(WORDS.findall(text))
    words = [[list(signs_of(word)), count] for word, count in sorted(counts.items())]
    pairs, where = Counter(), defaultdict(set)
    for index, (parts, count) in enumerate(words):
        for pair in zip(parts, parts[1:]):
            pairs[pair] += count
            where[pair].add(index)
    merges = []
    while len(merges) < size - 257:
        if not pairs:
            raise ValueError(f"this text yields only {len(merges)} merges, {size - 257} are needed")
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for index in where.pop(best):
            parts, count = words[index]
            for pair in zip(parts, parts[1:]):
                pairs[pair] -= count
                if pairs[pair] <= 0:
                    del pairs[pair]
            words[index][0] = parts = merged(parts, best)
            for pair in zip(parts, parts[1:]):
                pairs[pair] += count
                where[pair].add(index)
        pairs.pop(best, None)
    return merges


def merged(parts, pair):
    """Joins every occurrence of a pair, from the left."""
    out, at = [], 0
    while at < len(parts):
        if at + 1 < len(parts) and (parts[at], parts[at + 1]) == pair:
            out.append(parts[at] + parts[at + 1])
            at += 2
        else:
            out.append(parts[at])
            at += 1
    return out


def description(merges):
    """The tokenizer.json: bytes first, then merges in their order, then the end of text."""
    vocab = {sign: index for index, sign in enumerate(SIGNS[byte] for byte in range(256))}
    for left, right in merges:
        vocab[left + right] = len(vocab)
    end = len(vocab)
    vocab[END] = end
    token = {"id": end, "content": END, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [token],
            "normalizer": None,
            "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab,
                      "merges": [f"{left} {right}" for left, right in merges]}}


class Bpe:
    """Encodes and decodes with a tokenizer.json written by `description`."""

    def __init__(self, path):
        model = json.loads(open(path, encoding="utf-8").read())["model"]
        self.vocab = model["vocab"]
        self.size, self.end = len(self.vocab), self.vocab[END]
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(model["merges"])}
        self.texts = {index: text for text, index in self.vocab.items()}
        self.bytes = {sign: byte for byte, sign in SIGNS.items()}
        self.known = {}

    def word(self, word):
        parts = list(signs_of(word))
        while len(parts) > 1:
            best = min(zip(parts, parts[1:]), key=lambda pair: self.ranks.get(pair, 1 << 30))
            if best not in self.ranks:
                break
            parts = merged(parts, best)
        return [self.vocab[part] for part in parts]

    def encode(self, text):
        """The tokens of a text without an end of text in it."""
        if not text.isascii():
            raise ValueError("this encoder cuts words by a pattern for ASCII")
        out = []
        for word in WORDS.findall(text):
            tokens = self.known.get(word)
            if tokens is None:
                tokens = self.known[word] = self.word(word)
            out += tokens
        return out

    def decode(self, tokens):
        signs = "".join(self.texts[token] for token in tokens if token != self.end)
        return bytes(self.bytes[sign] for sign in signs).decode("utf-8", errors="replace")
