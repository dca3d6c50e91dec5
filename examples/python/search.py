"""Search by meaning: embeddings of texts, and their cosines with that of a question.

python search.py [MODEL] [QUESTION]
"""

from __future__ import annotations

import sys

import numpy as np

import fulmen

TEXTS = [
    "The cat slept on the warm bed.",
    "A dog ran after the red ball.",
    "Mom made a big cake for the party.",
    "The bird flew high in the blue sky.",
    "They played in the park all day.",
    "It was raining, so they stayed at home.",
]


def main(arguments: list[str]) -> None:
    model = fulmen.Model.load(arguments[0] if arguments else None)
    question = arguments[1] if len(arguments) > 1 else "A puppy played with a toy."

    index = model.embed(TEXTS, normalize=True)  # [texts, width], each of length 1
    cosines = index @ model.embed(question, normalize=True)
    print(question)
    for at in np.argsort(-cosines):
        print(f"  {cosines[at]:.3f}  {TEXTS[at]}")


if __name__ == "__main__":
    main(sys.argv[1:])
