"""One story from one number."""

import random

from .plots import PLOTS
from .world import Story

WORLDS = (("human", 5), ("animal", 4), ("fairy", 3))


def tell(seed, number, plot=None):
    """The story with this number, and the name of its plot. The same seed and number give the same story."""
    rng = random.Random(f"{seed}/{number}")
    rows = [row for row in PLOTS if plot is None or row[0].__name__ == plot]
    tell_it, worlds, _ = rng.choices(rows, [row[2] for row in rows])[0]
    options = [w for w in WORLDS if w[0] in worlds.split()]
    world = rng.choices([w[0] for w in options], [w[1] for w in options])[0]
    story = Story(rng, world)
    tell_it(story)
    return story.text(), tell_it.__name__
