"""How a story is worded: short forms in speech, and words that may stand for each other.

A story keeps to its own manner: whether people in it say `do not` or `don't` is decided once.
"""

import re

# `not` and what comes before it; these hold anywhere.
NOT = {"do not": "don't", "does not": "doesn't", "did not": "didn't", "cannot": "can't", "could not": "couldn't", "will not": "won't",
       "is not": "isn't", "are not": "aren't", "was not": "wasn't", "were not": "weren't", "would not": "wouldn't", "should not": "shouldn't",
       "has not": "hasn't", "had not": "hadn't", "must not": "mustn't", "have not": "haven't"}
# These only before another word, and not where the verb bears the stress: nobody says `as strong as I'm` or `there you're`.
SHORT = {"I am": "I'm", "I will": "I'll", "it is": "it's", "that is": "that's", "there is": "there's", "he is": "he's", "she is": "she's",
         "what is": "what's", "where is": "where's", "you are": "you're", "we are": "we're", "they are": "they're", "you will": "you'll",
         "we will": "we'll", "he will": "he'll", "she will": "she'll", "they will": "they'll", "let us": "let's", "I would": "I'd"}
PERFECT = re.compile(r"\b(I|[Yy]ou|[Ww]e) have (?=(lost|found|got|never|always|been|seen|heard|missed|broken|kept|saved|come|made|waited|almost)\b)")

SAME = {"at once": ["right away", "straight away"], "began to": ["started to"], "suddenly": ["all of a sudden"], "at last": ["finally"],
        "everyone": ["everybody"], "everybody": ["everyone"], "nobody": ["no one"], "someone": ["somebody"], "for a long time": ["for a long while"],
        "beautiful": ["lovely"], "wonderful": ["marvellous", "splendid"], "afraid of": ["scared of", "frightened of"], "a little later": ["a short time later", "not long after"],
        "very happy": ["very glad", "really happy"], "just then": ["at that moment", "right then"], "after a while": ["after some time", "a while later"],
        "tried again": ["tried once more"], "the next morning": ["the following morning"], "the next day": ["the following day"],
        "went home": ["walked home", "set off for home"],
        "thought for a moment": ["thought about it"], "looked around": ["looked about"]}


def like(model, text):
    """`text` with a capital where `model` has one."""
    return text[0].upper() + text[1:] if model[0].isupper() else text


def table(words, before, after):
    pattern = re.compile(before + r"\b(" + "|".join(sorted(map(re.escape, words), key=len, reverse=True)) + r")\b" + after, re.IGNORECASE)
    return lambda text: pattern.sub(lambda match: like(match.group(1), words.get(match.group(1), words.get(match.group(1).lower(), match.group(1)))), text)


short_not = table(NOT, "", "")
short_verb = table({key.lower() if key[0] != "I" else key: value for key, value in SHORT.items()}, r"(?<!here )(?<!hat )(?<!as )(?<!than )", r"(?= [A-Za-z])")
SAME_PATTERN = re.compile(r"(?<!all )\b(" + "|".join(sorted(SAME, key=len, reverse=True)) + r")\b", re.IGNORECASE)


def shorten(text):
    """Short forms, as people speak."""
    return PERFECT.sub(lambda match: match.group(1) + "'ve ", short_verb(short_not(text)))


def manner(rng):
    """Whether people in a story use short forms, and whether its teller does."""
    speech = rng.random() < 0.7
    return speech, speech and rng.random() < 0.35


def wording(text, rng, manner):
    """A paragraph in the manner of its story."""
    speech, telling = manner

    def other(match):
        words = match.group(1)
        return like(words, rng.choice(SAME[words.lower()])) if rng.random() < 0.4 else words

    text = SAME_PATTERN.sub(other, text)
    parts = text.split('"')
    for at, part in enumerate(parts):
        if at % 2 and speech:
            parts[at] = shorten(part)
        elif at % 2 == 0 and telling:
            parts[at] = short_not(part)
    return '"'.join(parts)
