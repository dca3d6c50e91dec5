"""A story while it is told: who is in it, what is so, and what was said already."""

from . import cast, lexicon, places, speech
from .style import manner, wording
from .text import capital, parse, tidy

SEASONS = ["spring", "summer", "autumn", "winter"]
WEATHERS = {"spring": ["sunny", "windy", "rainy", "mild"], "summer": ["sunny", "hot", "sunny", "warm"],
            "autumn": ["windy", "rainy", "foggy", "golden"], "winter": ["cold", "snowy", "frosty", "clear"]}


# A new paragraph where one speaker answers another.
BREAK = "\x01"


class Story:
    """Tells one story: `say` adds sentences, `para` begins a paragraph."""

    def __init__(self, rng, world):
        self.rng, self.world = rng, world
        self.known = {}
        self.paragraphs = [[]]
        self.used = set()
        self.last = None  # Who was named last.
        self.near = []  # Who was named in this paragraph.
        self.facts = {}  # What later sentences may refer to.
        self.quoting = False
        self.spoke = None  # Who spoke in the sentence just before.
        self.taken = set()
        self.manner = manner(rng)

    # -- who and what ------------------------------------------------------------------------------------------------

    def cast(self, trait=None, friend=True, pronoun=None):
        """The hero `h`, a friend `f`, the family `m`, a helper `w`, and the day."""
        rng = self.rng
        h = self.known["h"] = cast.hero(rng, self.world, self.taken, pronoun)
        self.taken |= {h.name, h.kind}
        h.trait = rng.choice(trait.split()) if trait else rng.choice(sorted(lexicon.TRAITS))
        other = {"he": "she", "she": "he", "it": "she"}[h.he] if rng.random() < 0.75 else h.he
        f = self.known["f"] = cast.hero(rng, self.world, self.taken, None if other == "it" else other)
        f.trait = rng.choice(["kind", "cheerful", "lively", "clever", "funny", "friendly"])
        self.taken |= {f.name, f.kind}
        if self.world == "human":
            self.taken -= {"boy", "girl"}
        self.known["m"] = cast.relative(rng, h)
        self.known["w"] = cast.helper(rng, self.world, self.taken)
        self.known["wintro"] = Word(cast.helper_intro(self.known["w"]))
        self.friend = friend
        self.hobby = rng.choice(lexicon.HOBBIES)
        self.setting = rng.choice(places.SETTINGS[self.world])
        self.season = rng.choice(SEASONS)
        self.weather = rng.choice(WEATHERS[self.season])
        self.time = rng.choice(["morning", "morning", "afternoon", "day"])
        return h

    def put(self, name, entity):
        """Makes something known by a name."""
        self.known[name] = entity
        return entity

    def thing(self, name, tag):
        """A thing with one of the tags that nothing else in the story is."""
        thing = self.put(name, cast.thing(self.rng, tag, self.taken))
        self.taken.add(thing.n)
        return thing

    def food(self, name, tag):
        """Food with this tag."""
        return self.put(name, cast.food(self.rng, tag))

    def creature(self, name="c", only=None):
        """A small animal."""
        kinds = only
        if kinds is None:
            kinds = " ".join(k for k in lexicon.CREATURES if k not in self.taken and k != "fox cub")
        return self.put(name, cast.creature(self.rng, kinds))

    def place(self, name="p", tag=None, avoid="inside"):
        """A place of this world with one of the tags."""
        tags, avoid = set((tag or "").split()), set(avoid.split())
        rows = [n for n, row in places.PLACES.items()
                if self.world in row[1].split() and (not tags or tags & set(row[2].split())) and not avoid & set(row[2].split())
                and n not in self.taken]
        chosen = self.rng.choice(rows)
        self.taken.add(chosen)
        return self.put(name, cast.Place(self.rng, chosen, places.PLACES[chosen]))

    def word(self, name, *options):
        """A word chosen once and known by a name; its forms are the parts of an option with `/`."""
        self.known[name] = Word(self.rng.choice(options))

    # -- sentences ---------------------------------------------------------------------------------------------------

    def say(self, *options):
        """Adds one of these."""
        fresh = [o for o in options if o not in self.used] or options
        chosen = self.rng.choice(fresh)
        self.used.add(chosen)
        text = self.expand(parse(chosen)).strip()
        if text:
            self.paragraphs[-1].append(capital(text))
        return self

    def maybe(self, chance, *options):
        """Adds one of these, or nothing."""
        if self.rng.random() < chance:
            self.say(*options)
        return self

    def para(self):
        """Begins a paragraph."""
        if self.paragraphs[-1]:
            self.paragraphs.append([])
        self.last, self.near, self.spoke = None, [], None
        return self

    def render(self, source):
        """A sentence as text, without adding it."""
        return self.expand(parse(source))

    def expand(self, nodes):
        out = []
        for i, node in enumerate(nodes):
            if isinstance(node, str):
                out.append(node)
                if node.strip() and not self.quoting:
                    self.spoke = None
            elif node[0] == "choice":
                out.append(self.expand(self.rng.choice(node[1])))
            elif node[0] == "ref":
                pair = i + 1 < len(nodes) and nodes[i + 1] == " and "
                words = self.refer(node[2], "s" if node[1] and not node[3] and not pair else node[3])
                out.append(capital(words) if node[1] else words)
            else:
                out.append(self.speak(*node[1:]))
        return "".join(out)

    def refer(self, name, form):
        entity = self.known.get(name)
        if entity is None:
            raise ValueError(f"nothing is known as {name!r}")
        if entity.person and not self.quoting:
            self.spoke = None
            if form == "s":
                return self.subject(entity)
            self.mention(entity)
            if not form:
                return self.call(entity)
        return entity.form(self, "" if form == "s" else form)

    def mention(self, person):
        self.last = person
        if person not in self.near:
            self.near.append(person)

    def subject(self, person):
        """The name, or a pronoun where it is clear who is meant."""
        clear = self.last is person and not any(p is not person and p.he == person.he for p in self.near)
        self.mention(person)
        return person.he if clear and self.rng.random() < 0.6 else self.call(person)

    def call(self, person):
        """The name; the friend of the hero is called so when first named."""
        if person is self.known.get("f") and not self.facts.get("friend known"):
            self.facts["friend known"] = True
            hero = self.known["h"]
            kind = "" if self.world == "human" else f" the {person.kind}"
            return self.rng.choice([f"{hero.his} friend {person.name}{kind}", f"{hero.his} friend {person.name}{kind}",
                                    f"{person.name}, {hero.his} {self.rng.choice(['best', 'good', 'dear', 'old'])} friend,"])
        return person.name

    def speak(self, who, mood, nodes):
        person = self.known[who]
        self.quoting = True
        text = tidy(self.expand(nodes).strip())
        self.quoting = False
        new = self.spoke is not None and self.spoke is not person and self.rng.random() < 0.85
        said = speech.quotation(self, person, mood, text)
        self.spoke = person
        return BREAK + said if new else said

    def text(self):
        """The whole story."""
        parts = [part for p in self.paragraphs for part in " ".join(p).split(BREAK)]
        return "\n\n".join(wording(tidy(p), self.rng, self.manner) for p in parts if p.strip())


class Word(cast.Entity):
    """Plain words; `a/b/c` has the forms `1`, `2` and `3`, and is `a` alone."""

    def __init__(self, text):
        self.parts = text.split("/")

    def form(self, story, form):
        return self.parts[int(form) - 1 if form else 0]
