"""Who and what can be in a story, with the forms that sentences ask for."""

from . import lexicon

PRONOUNS = {
    "he": ("he", "him", "his", "himself"),
    "she": ("she", "her", "her", "herself"),
    "it": ("it", "it", "its", "itself"),
}


class Entity:
    """Something with forms: `[x.form]` in a sentence."""

    person = False

    def form(self, story, form):
        """The words for a form; the name where there is none."""
        value = getattr(self, form or "name", None)
        if value is None:
            raise ValueError(f"{type(self).__name__} has no form {form!r}")
        return value() if callable(value) else value


class Person(Entity):
    """A character. `name` is what the story calls it; `kind` is what it is."""

    person = True

    def __init__(self, name, kind, pronoun, home="house", hand="hand", look="little", voc=None):
        self.name, self.kind, self.home, self.hand, self.look = name, kind, home, hand, look
        self.he, self.him, self.his, self.himself = PRONOUNS[pronoun]
        self.voc = voc or name
        self.hands = hand + "s"
        if hand == "foot":
            self.hands = "feet"
        if hand == "hoof":
            self.hands = "hooves"
        self.feet = {"hand": "feet", "wing": "feet", "claw": "feet"}.get(hand, self.hands)
        self.trait = "kind"


class Relative(Person):
    """Someone of the family: `his mother`, or `Mama`."""

    def __init__(self, of, kind, pronoun, voc, by_name):
        super().__init__(voc if by_name else f"{of.his} {kind}", kind, pronoun, of.home, of.hand, "", voc)


class Thing(Entity):
    """A thing that can be carried."""

    def __init__(self, noun, adjective, tags):
        self.n, self.adj, self.tags = noun, adjective, tags
        self.full = f"{adjective} {noun}"
        self.a, self.an = f"a {self.full}", f"a {noun}"
        self.the, self.thefull = f"the {noun}", f"the {self.full}"

    def form(self, story, form):
        if not form:
            return self.thefull if story.rng.random() < 0.25 else self.the
        return super().form(story, form)


class Food(Entity):
    """Something to eat."""

    def __init__(self, noun, number):
        self.n = noun
        self.some = f"a {noun}" if number == "sg" else f"some {noun}"
        self.the = self.name = f"the {noun}"
        self.it = "they" if number == "pl" else "it"
        self.them = "them" if number == "pl" else "it"
        self.was = "were" if number == "pl" else "was"


class Place(Entity):
    """Where something happens."""

    def __init__(self, rng, name, row):
        at, _, tags, spots, sights = row
        self.name, self.at, self.tags = name, f"{at} {name}", tags.split()
        self.to = f"to {name}"
        self.spot, self.spot2, self.spot3 = rng.sample(spots, 3)
        self.sight, self.sight2 = rng.sample(sights, 2)


class Creature(Entity):
    """A small animal without a name."""

    person = True

    def __init__(self, kind, look, voice, home):
        self.kind, self.look, self.voice, self.home = kind, look, voice, home
        self.he, self.him, self.his, self.himself = PRONOUNS["it"]
        self.a, self.the = f"a {look} {kind}", f"the {kind}"
        self.name = self.the
        self.n = kind
        self.hand, self.hands = "paw", "paws"


RELATIVES = [("mother", "she", "Mama"), ("father", "he", "Papa"), ("grandmother", "she", "Grandma"), ("grandfather", "he", "Grandpa"),
             ("mother", "she", "Mum"), ("father", "he", "Dad"), ("aunt", "she", "Auntie"), ("uncle", "he", "Uncle")]

HELPERS = {
    "human": [("baker", "old"), ("farmer", "friendly"), ("gardener", "old"), ("postman", "cheerful"), ("librarian", "kind"), ("fisherman", "old"),
              ("shopkeeper", "friendly"), ("teacher", "young"), ("neighbour", "old"), ("carpenter", "strong"), ("clockmaker", "old"), ("shepherd", "old"),
              ("miller", "jolly"), ("painter", "young"), ("sailor", "old"), ("tailor", "thin"), ("beekeeper", "old"), ("doctor", "kind")],
    "animal": [("owl", "wise old"), ("turtle", "old"), ("badger", "grumpy old"), ("heron", "tall"), ("goose", "busy"), ("toad", "old"), ("crow", "clever"),
               ("stag", "proud"), ("beaver", "hard-working"), ("hare", "quick old"), ("raven", "black"), ("otter", "jolly"), ("swan", "graceful"),
               ("mole", "blinking old"), ("snail", "slow"), ("bear", "big old")],
    "fairy": [("wizard", "wise old"), ("fairy", "tiny"), ("gnome", "bearded"), ("owl", "snow-white"), ("witch", "friendly old"), ("dragon", "old"),
              ("king", "good"), ("queen", "gentle"), ("giant", "friendly"), ("woodcutter", "old"), ("elf", "merry"), ("cook", "round"),
              ("gardener", "royal"), ("knight", "rusty old"), ("ferryman", "silent"), ("unicorn", "shy")],
}
FEMALE = {"queen", "witch", "goose", "swan", "fairy"}
MALE = {"king", "wizard", "postman", "fisherman", "stag", "ferryman", "woodcutter"}


def invented_name(rng):
    """A name that is on no list."""
    first, second, last = lexicon.SYLLABLES
    name = rng.choice(first) + rng.choice(second) + rng.choice(last)
    return name.capitalize()


def hero(rng, world, taken, pronoun=None):
    """A character that leads a story. `taken` are the names and kinds that are in it already."""
    pronoun = pronoun or rng.choice(["he", "she"])
    if world == "human":
        kind = {"he": "boy", "she": "girl"}[pronoun]
        home, hand, look = "house", "hand", "little"
        names = lexicon.GIRLS if pronoun == "she" else lexicon.BOYS
    elif world == "animal":
        kind = rng.choice([k for k in lexicon.ANIMALS if k not in taken])
        home, hand, looks = lexicon.ANIMALS[kind]
        look, names = rng.choice(looks.split()), lexicon.PETS
    else:
        rows = {k: v for k, v in lexicon.FAIRY.items() if k not in taken and v[0] in ("", "it", pronoun)}
        kind = rng.choice(sorted(rows))
        fixed, home, hand, looks = rows[kind]
        pronoun = fixed or pronoun
        look = rng.choice(looks.split())
        names = lexicon.MAGIC if rng.random() < 0.7 else (lexicon.GIRLS if pronoun == "she" else lexicon.BOYS)
    wrong = {"he": lexicon.ONLY_SHE, "she": lexicon.ONLY_HE, "it": set()}[pronoun] if world != "human" else set()
    name = rng.choice([n for n in names if n not in taken and n not in wrong])
    if rng.random() < 0.06:
        name = invented_name(rng)
    return Person(name, kind, pronoun, home, hand, look)


def relative(rng, of):
    """Someone of the family of a character; the maker of a robot."""
    if of.kind == "robot":
        return Relative(of, "maker", rng.choice(["he", "she"]), "Maker", False)
    kind, pronoun, voc = rng.choice(RELATIVES)
    by_name = rng.random() < 0.4 and kind not in ("aunt", "uncle")
    return Relative(of, kind, pronoun, voc, by_name)


def helper(rng, world, taken):
    """A grown-up who is not of the family."""
    kind, look = rng.choice([row for row in HELPERS[world] if row[0] not in taken])
    pronoun = "she" if kind in FEMALE else "he" if kind in MALE else rng.choice(["he", "she"])
    hand = "hand" if world != "animal" else "wing" if kind in ("owl", "heron", "goose", "crow", "raven", "swan") else "paw"
    if world == "human" and rng.random() < 0.5:
        name = {"he": "Mr. ", "she": "Mrs. "}[pronoun] + rng.choice(lexicon.SURNAMES)
        person = Person(name, kind, pronoun, "house", hand, look)
    else:
        person = Person(f"the {kind}", kind, pronoun, "house", hand, look)
    return person


def helper_intro(person):
    """`an old baker`, or `Mrs. Hill, the old baker`."""
    if person.name.startswith("the "):
        return f"a {person.look} {person.kind}"
    return f"{person.name}, the {person.look} {person.kind},"


def thing(rng, tag, taken=()):
    """A thing with one of the tags."""
    tags = set(tag.split())
    noun = rng.choice([n for n, row in lexicon.THINGS.items() if tags & set(row[1].split()) and n not in taken])
    adjectives, all_tags = lexicon.THINGS[noun]
    return Thing(noun, rng.choice(adjectives), all_tags.split())


def food(rng, tag):
    """Food with one of the tags."""
    noun = rng.choice([n for n, row in lexicon.FOODS.items() if tag in row[1].split()])
    return Food(noun, lexicon.FOODS[noun][0])


def creature(rng, only=None):
    """A small animal without a name."""
    kind = rng.choice(only.split()) if only else rng.choice(sorted(lexicon.CREATURES))
    looks, voice, home = lexicon.CREATURES[kind]
    return Creature(kind, rng.choice(looks.split()), voice, home)
