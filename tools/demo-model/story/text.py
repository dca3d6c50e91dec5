"""The little language that sentences are written in.

    {one|two|}        one of these, chosen by the story's random numbers; they may be nested
    [h]  [h.his]      a form of something that the story knows; [^h.he] with a capital
    <h/sad: Oh no!>   h says this: a quotation with a tag that fits the mood, before, after or inside it

Sentences are parsed once and kept.
"""

import re
from functools import lru_cache


class TemplateError(ValueError):
    """A sentence that is not well-formed."""


@lru_cache(maxsize=None)
def parse(source):
    """The nodes of a sentence: text, ("choice", options), ("ref", capital, name, form), ("quote", who, mood, nodes)."""
    nodes, end = _sequence(source, 0, "")
    if end != len(source):
        raise TemplateError(f"unexpected {source[end]!r} at {end} in {source!r}")
    return nodes


def _sequence(source, at, stops):
    nodes, start = [], at
    while at < len(source):
        sign = source[at]
        if sign in stops:
            break
        if sign in "{[<":
            if at > start:
                nodes.append(source[start:at])
            node, at = {"{": _choice, "[": _reference, "<": _quote}[sign](source, at + 1)
            nodes.append(node)
            start = at
        elif sign in "}]>|":
            raise TemplateError(f"unexpected {sign!r} at {at} in {source!r}")
        else:
            at += 1
    if at > start:
        nodes.append(source[start:at])
    return tuple(nodes), at


def _choice(source, at):
    options = []
    while True:
        nodes, at = _sequence(source, at, "|}")
        options.append(nodes)
        if at >= len(source):
            raise TemplateError(f"a choice without an end in {source!r}")
        at += 1
        if source[at - 1] == "}":
            return ("choice", tuple(options)), at


def _reference(source, at):
    end = source.find("]", at)
    if end < 0:
        raise TemplateError(f"a reference without an end in {source!r}")
    inner = source[at:end]
    capital = inner.startswith("^")
    name, _, form = inner.lstrip("^").partition(".")
    return ("ref", capital, name, form), end + 1


def _quote(source, at):
    colon = source.find(":", at)
    if colon < 0:
        raise TemplateError(f"a quotation without a speaker in {source!r}")
    who, _, mood = source[at:colon].partition("/")
    nodes, end = _sequence(source, colon + 1, ">")
    if end >= len(source):
        raise TemplateError(f"a quotation without an end in {source!r}")
    return ("quote", who, mood, nodes), end + 1


def capital(text):
    """With a capital as its first letter, behind a quotation mark if there is one."""
    for i, sign in enumerate(text):
        if sign.isalpha():
            return text[:i] + sign.upper() + text[i + 1 :]
    return text


# Words that begin with a vowel letter and a consonant's sound.
_HARD = ("uni", "use", "usu", "one", "once", "uku", "eu")
_ARTICLE = re.compile(r"\b([Aa])n? (?=([A-Za-z]+))")


def _article(match):
    word = match.group(2).lower()
    vowel = word[0] in "aeiou" and not (word.startswith(_HARD) and not word.startswith("unin"))
    vowel = vowel or word in ("hour", "honest")
    return match.group(1) + ("n " if vowel else " ")


def tidy(text):
    """Right articles, single spaces, a capital at the start."""
    text = re.sub(r" +", " ", text).strip()
    text = re.sub(r" ([,.!?;:])", r"\1", text)
    text = re.sub(r",+([,.!?;:])", r"\1", text)
    text = _ARTICLE.sub(_article, text)
    return capital(text)
