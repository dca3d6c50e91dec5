"""Answers that match a schema: a pydantic model, a dictionary, a regular expression.

python structured.py [MODEL]
"""

from __future__ import annotations

import sys
from typing import Literal

from pydantic import BaseModel, Field

import fulmen


class Animal(BaseModel):
    kind: Literal["cat", "dog", "bird"]
    name: str = Field(max_length=12, pattern="^[A-Z][a-z]+$")
    legs: int = Field(ge=0, le=4)


def main(arguments: list[str]) -> None:
    model = fulmen.Model.load(arguments[0] if arguments else None)
    prompt = "Once upon a time, there was a little dog named Max. As JSON: "

    animal = model.generate(prompt, schema=Animal, max_tokens=100).parsed
    print(animal)

    colors = {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3}
    print(model.generate("The ball was ", schema=colors, max_tokens=60).parsed)

    print(model.generate("Was the dog happy?", regex=" (yes|no)"))


if __name__ == "__main__":
    main(sys.argv[1:])
