"""Beats that many plots share: how a story opens, how a day begins, the way, feelings, and how it ends."""

from . import lexicon, places
from .text import capital


def day_phrase(s):
    """`one sunny morning`, as the story's day is."""
    weather, season, time = s.weather, s.season, s.time
    return s.rng.choice([
        "one day", "one day", f"one {weather} {time}", f"one {weather} {time}", f"one {time}" if time != "day" else "one day",
        f"one {time} in {season}", f"on a {weather} {season} {time}", f"early one {weather} {time}" if time == "morning" else "one fine day",
        f"one {weather} {season} {time}", f"one {season} {time}", f"late one {time}" if time == "afternoon" else "one day",
    ])


def opening(s, now=True):
    """Who lived where, and what they were like; or, where the plot goes on with that day, what the day was like."""
    h = s.known["h"]
    s.word("set", s.setting)
    s.word("hobby", s.hobby[0])
    if now and s.rng.random() < 0.18:
        return at_once(s)
    s.word("day", day_phrase(s))
    weather_words(s)
    options = [
        "Once upon a time{,|} there was a [h.trait] [h.look] [h.kind] {named|called} [h].",
        "Once upon a time, there was a [h.look] [h.kind] {named|called} [h] who lived [set].",
        "Once upon a time, a [h.trait] [h.kind] {named|called} [h] lived [set].",
        "Once upon a time, [set], there lived a [h.look] [h.kind]. [^h.his] name was [h].",
        "Once there was a [h.look] [h.kind] {named|called} [h]. [^h.he] lived [set].",
        "There was once a [h.trait] [h.kind] {named|called} [h] who loved [hobby].",
        "Long ago, [set], there lived a [h.trait] [h.kind] {named|called} [h].",
        "[^set], there lived a [h.look] [h.kind] {named|called} [h].",
        "[^set] lived a [h.trait] [h.look] [h.kind]. Everyone called [h.him] [h].",
        "[^h] was a [h.trait] [h.look] [h.kind]. [^h.he] lived [set].",
        "[^h] was a [h.look] [h.kind] who lived [set].",
        "[^h] lived [set]. [^h.he] was a [h.trait] [h.look] [h.kind].",
        "A [h.trait] [h.look] [h.kind] {named|called} [h] lived [set].",
        "This is the story of [h], a [h.trait] [h.kind] who lived [set].",
        "Many years ago, [set], there was a [h.look] [h.kind] {named|called} [h].",
        "There was a [h.look] [h.kind] {named|called} [h]. [^h.he] was very [h.trait].",
        "Not so long ago, there lived a [h.look] [h.kind] [set]. [^h.his] name was [h].",
        "Far, far away, there lived a [h.look] [h.kind] {named|called} [h].",
        "[^h] was a very [h.trait] [h.kind]{, and everyone knew it|}.",
        "The {little|young} [h.kind] was called [h]. [^h.he] lived [set].",
        "There once was a {little|young|small} [h.kind] whose name was [h].",
        "Once upon a time, there was a [h.kind] {named|called} [h]{ who lived [set]|}.",
        "There was once a {little|young|small} [h.kind] who lived [set]. [^h.his] name was [h].",
        "A {little|young|small} [h.kind] {named|called} [h] lived [set].",
        "Once upon a time, a {little|young|small} [h.kind] lived [set]. [^h.he] was called [h], and [h.he] loved [hobby].",
        "[^h] the [h.kind] lived [set]." if s.world != "human" else "[^h] lived [set]{ with [h.his] family|}.",
        "{The village knew|Everybody knew} [h], the [h.trait] [h.kind]." if s.world == "human" else "Everybody in the {forest|valley|land} knew [h], the [h.trait] [h.kind].",
    ]
    if s.friend:
        options += [
            "[^h] and [f] were {best|good} friends. They lived [set].",
            "Once upon a time, there were two friends{ who lived [set]|}. Their names were [h] and [f].",
            "[^h] the [h.kind] and [f] the [f.kind] were {best|the best of} friends." if s.world != "human" else
            "[^h] and [f] lived [set]. They did almost everything together.",
            "Once upon a time, a [h.kind] named [h] and a [f.kind] named [f] lived [set].",
        ]
    alone = 27  # So many do not name the friend.
    chosen = s.rng.randrange(len(options))
    s.facts["met"] = chosen >= alone
    if s.facts["met"]:
        s.facts["friend known"] = True
    s.say(options[chosen])
    if s.facts["met"]:
        s.near = []
        s.last = None
        s.maybe(0.5, "They {played|laughed|went out} together {every day|whenever they could}.", "Where one was, the other was never far away.",
                "They shared their {toys|secrets} and their {snacks|dreams}.", "They had known each other for as long as they could remember.",
                "[^h] was [h.trait], and [f] was [f.trait], and that was just right.")
    elif s.rng.random() < 0.55:
        shown = s.paragraphs[-1][-1]
        if h.trait in shown:
            s.say(*lexicon.TRAITS[h.trait])
        else:
            s.say(f"[^h.he] was very {h.trait}. " + s.rng.choice(lexicon.TRAITS[h.trait]),
                  f"Everybody knew that [h] was {h.trait}. " + s.rng.choice(lexicon.TRAITS[h.trait]))
    s.facts["hobby"] = any("loved " + s.hobby[0] in sentence for sentence in s.paragraphs[-1])
    if not s.facts["hobby"] and s.rng.random() < 0.4:
        s.say("[^h] loved [hobby].", "More than anything{ else|}, [h] loved [hobby].", "Most of all, [h] liked [hobby].",
              "[^h] {always found time|liked} [hobby]." if s.rng.random() < 0.5 else "[^h] loved [hobby].")
        s.facts["hobby"] = True
    s.maybe(0.2, *LOOKS[s.world])
    if s.rng.random() < 0.6:
        s.para()


LOOKS = {
    "human": ["[^h.he] had {brown curls|straight black hair|curly red hair|short fair hair} and {freckles on [h.his] nose|a gap between [h.his] front teeth|very bright eyes|dimples when [h.he] smiled}.",
              "[^h.he] {nearly always|always} wore {a red cap|yellow boots|a green jacket|a blue jumper|odd socks|a hat that was too big}.",
              "[^h.he] was {five|six|seven|eight|nine} years old{ and rather small|}.",
              "[^h.he] had {two older brothers|a big sister|no brothers or sisters|four cousins}."],
    "animal": ["[^h.his] {ears were too big|tail was too short|nose was always cold|eyes were as bright as buttons}, and {everyone liked [h.him]|[h.he] did not mind}.",
               "[^h.he] was {smaller|bigger|rounder|quicker} than {most|all the others}, but {that did not matter|[h.he] did not mind}.",
               "[^h.he] {nearly always|always} wore {a little red scarf|a blue waistcoat|a straw hat|a green cap}."],
    "fairy": ["[^h.he] {nearly always|always} wore {a cloak of leaves|a silver belt|a crooked hat|a green coat|golden shoes}.",
              "[^h.he] had {the kindest eyes in the land|a voice like a bell|a laugh that one could hear for miles}.",
              "Not many in the land had a heart as {good|warm|light} as [h.his] own."],
}


def at_once(s):
    """An opening that begins with the day itself."""
    s.time = "morning"
    weather_words(s)
    s.word("season", s.season)
    s.word("day", "that day", "that very day", "that morning", "later that morning")
    s.facts["hobby"] = s.facts["met"] = False
    s.say("It was a [wx] morning{ in [season]|}. {[^sky]|} [^h], a [h.trait] [h.look] [h.kind], {woke up early|looked out of the window|was in a very good mood|was wide awake}.",
          "One [wx] morning{ in [season]|}, a [h.look] [h.kind] {named|called} [h] {woke up with a smile|opened [h.his] eyes|jumped out of bed}. {[^sky]|}",
          "One day, a [h.trait] [h.kind] {named|called} [h] {woke up very early|got up before everyone else}. {[^sky]|}",
          "One morning, [h] woke up and {stretched|yawned}. [^h.he] was a [h.trait] [h.look] [h.kind], and [h.he] lived [set].",
          "\"Wake up, [h]!\" It was a [wx] morning, and [h], a [h.trait] [h.look] [h.kind], {rubbed [h.his] eyes|pulled the blanket over [h.his] head}.",
          "The sun came up over the {hills|trees|roofs}. {[^sky]|} [^h], a [h.look] [h.kind], had been awake for a long time.",
          "One day, [h] {looked out of the window|sat at the breakfast table}. {[^sky]|} [^h.he] was a [h.trait] [h.look] [h.kind] who loved [hobby].")
    s.facts["hobby"] = "loved " + s.hobby[0] in s.paragraphs[-1][-1]


def weather_words(s):
    """Words for the weather, for `morning` and asides."""
    s.word("wx", s.weather)
    s.word("tm", s.time if s.time != "day" else "day")
    sky = {
        "sunny": ["the sky was blue.", "the sun shone brightly.", "not a cloud was in the sky."],
        "windy": ["the wind blew through the trees.", "the wind pushed the clouds across the sky."],
        "rainy": ["the rain had just stopped.", "drops of rain hung on every leaf.", "the ground was still wet."],
        "mild": ["the air smelled of spring.", "the birds were singing."],
        "hot": ["the air was warm and still.", "it was so hot that even the birds were quiet."],
        "warm": ["the air was soft and warm.", "the bees were busy."],
        "foggy": ["the fog lay over the fields.", "everything looked grey and soft."],
        "golden": ["the leaves were red and gold.", "the light was soft and golden."],
        "cold": ["one could see one's breath in the air.", "the air was clear and cold."],
        "snowy": ["everything was white.", "the snow crunched underfoot."],
        "frosty": ["the grass sparkled with frost.", "there was ice on the puddles."],
        "clear": ["the sky was clear and blue.", "one could see very far."],
    }[s.weather]
    s.word("sky", *sky)


def aside(s, chance=0.4):
    """A look around."""
    p = s.known.get("p")
    options = ["[^sky]", "[^sky]"]
    if p is not None:
        options += [p.sight, p.sight2, p.sight]
    s.maybe(chance, *options)


def way(s, chance=0.5, who="h"):
    """A piece of the way."""
    a, b = s.rng.sample(places.WAY, 2)
    s.maybe(chance, f"[^{who}.s] {{walked|went|ran|hurried}} {a} and {b}.", f"The way led {a} and {b}.", f"[^{who}.s] {{walked|went|ran}} {a}.",
            f"First [{who}.he] {{went|walked}} {a}, then {b}.", f"[^{who}.s] {{walked and walked|went on and on}}, {a} and {b}.")


def way_both(s, chance=0.5):
    """A piece of the way, together."""
    a, b = s.rng.sample(places.WAY, 2)
    s.maybe(chance, f"They {{walked|went|ran}} {a} and {b}.", f"Together they {{walked|went}} {a}.", f"Side by side they {{went|walked}} {a} and {b}.",
            f"They went {a}, {{talking and laughing|singing all the way|without a word}}.")


FEELINGS = {
    "sad": ["[^X] {felt|was} {very|so|} sad.", "A {big|small} tear rolled down [X.his] cheek.", "[^X] felt like crying.", "[^X.his] heart felt heavy.",
            "[^X] sat down and {cried|did not say a word}.", "Tears came to [X.his] eyes.", "[^X] had never been so sad."],
    "happy": ["[^X] was {very|so|} happy.", "[^X] {jumped|danced} for joy.", "[^X.his] heart {jumped|was full of joy}.", "[^X] smiled from ear to ear.",
              "[^X] felt as light as a feather.", "[^X] could not stop smiling.", "[^X] laughed out loud."],
    "scared": ["[^X] was {very|so|a little} scared.", "[^X.his] heart beat fast.", "[^X.his] knees {shook|trembled}.", "[^X] did not dare to move.",
               "[^X] felt cold with fear.", "A shiver ran down [X.his] back."],
    "angry": ["[^X] was {very|so|} angry.", "[^X.his] face turned red.", "[^X] stamped [X.his] foot.", "[^X] felt hot with anger."],
    "proud": ["[^X] was {very|so|} proud.", "[^X] felt two inches taller.", "[^X] held [X.his] head high.", "[^X] glowed with pride."],
    "worried": ["[^X] was {very|} worried.", "[^X] had a bad feeling.", "[^X] did not know what to do.", "[^X.his] stomach felt strange."],
    "sorry": ["[^X] felt {very|so|} sorry.", "[^X] felt bad inside.", "[^X] felt a lump in [X.his] throat.", "[^X] wished that it had never happened."],
    "lonely": ["[^X] felt {very|so|} lonely.", "[^X] wished for a friend.", "It was {very|much too} quiet all around [X.him]."],
    "excited": ["[^X] was {very|so|} excited.", "[^X] could hardly wait.", "[^X] hopped from one foot to the other.", "[^X] had butterflies in [X.his] stomach."],
    "tired": ["[^X] was {very|so|} tired.", "[^X.his] legs were heavy.", "[^X] yawned.", "[^X] could hardly keep [X.his] eyes open."],
    "surprised": ["[^X] was {very|} surprised.", "[^X] could not believe [X.his] eyes.", "[^X] stared.", "[^X] rubbed [X.his] eyes and looked again."],
    "calm": ["[^X] felt calm again.", "Slowly, [X] grew calm.", "A warm feeling spread inside [X.him].", "[^X] felt safe."],
}


def feel(s, who, feeling, chance=1.0):
    """What someone feels."""
    s.maybe(chance, *[t.replace("X", who) for t in FEELINGS[feeling]])


def ending(s, *own, moral=()):
    """How it ends: the plot's own last sentences, what was learned, and something from the beginning."""
    if s.rng.random() < 0.75:
        s.para()
    rng = s.rng
    last = s.render(rng.choice(own))
    # What lasts comes after what happened that evening.
    lasting = any(word in last for word in LASTING)
    coda = None
    if s.facts.get("hobby") and rng.random() < 0.6:
        coda = s.hobby[1]
    elif rng.random() < 0.25 and not lasting and not any(word in last for word in ("night", "evening", "bed", "sleep")):
        coda = rng.choice(EVENINGS)
    if coda and lasting:
        s.say(coda)
    s.paragraphs[-1].append(capital(last))
    if moral:
        s.maybe(0.5, *moral)
    if coda and not lasting:
        s.say(coda)
    elif rng.random() < 0.12:
        s.say("And if you go there today, you may still {see|meet} {them|[h]}.", "The end.", "And that is the end of the story.",
              "And that is how it was.", "And they all lived happily ever after." if s.world == "fairy" else "And so it has been ever since.")


# Words of sentences that are about a long time.
LASTING = ("From", "from then", "since", "Since", "After that", "after that", "year", "week", "next", "ever", "always", "days", "still", "often", "spring")

EVENINGS = [
    "That night, [h] slept {very well|deeply and well|like a stone} and dreamed of {tomorrow|it all|wonderful things}.",
    "That evening, [h] told [m] everything{, from beginning to end|}.", "That night, [h] went to bed with a smile.",
    "It had been {a long day|quite a day}, but {a good one|the very best kind}.", "And [h] knew that tomorrow would be a good day, too.",
    "When the moon came up, [h] was already fast asleep.", "That evening, the stars were very bright.", "Before [h] fell asleep, [h.he] smiled once more.",
]
