"""The plots. Each is a function that tells one story; `PLOTS` lists them with the worlds they fit and how often they come."""

from . import animals, courage, friends, home, honesty, lost, making, nature, travel, wonder

PLOTS = [plot for room in (lost, friends, courage, making, honesty, animals, nature, home, travel, wonder) for plot in room.PLOTS]
