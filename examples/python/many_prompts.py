"""Many prompts at once: the engine runs them together, as many rows of one step.

python many_prompts.py [MODEL]
"""

from __future__ import annotations

import sys
import time

import fulmen

NAMES = ["Lily", "Ben", "Tom", "Anna", "Max", "Sue", "Tim", "Mia"]


def main(arguments: list[str]) -> None:
    model = fulmen.Model.load(arguments[0] if arguments else None)
    prompts = [f"One day, {name} went to the" for name in NAMES]

    began = time.perf_counter()
    texts = model.generate_many(prompts, max_tokens=30)
    together = time.perf_counter() - began
    for prompt, text in zip(prompts, texts):
        print(f"{prompt}{text} […]" if text.finish_reason == "length" else f"{prompt}{text}")

    began = time.perf_counter()
    for prompt in prompts:
        model.generate(prompt, max_tokens=30)
    alone = time.perf_counter() - began
    tokens = sum(len(text.tokens) for text in texts)
    print(f"\n{tokens} tokens: {tokens / together:.0f} tok/s together, {tokens / alone:.0f} one by one")


if __name__ == "__main__":
    main(sys.argv[1:])
