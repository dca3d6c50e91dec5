"""Who says it, and how: tags of quotations by mood."""

import re

# For each mood: verbs for statements, for questions, for exclamations; manners; and what one does while speaking.
# A manner goes behind `said X` or `X said`.
MOODS = {
    "": (["said", "said", "said", "said", "answered"], ["asked"], ["said", "cried", "called"], [""], []),
    "happy": (["said"], ["asked"], ["cried", "said", "laughed", "shouted", "called"],
              ["happily", "with a smile", "with a big smile", "with a grin", "cheerfully", "with shining eyes", "merrily"],
              ["smiled", "grinned", "beamed", "clapped [his] [hands]", "jumped up and down", "could not stop smiling"]),
    "sad": (["said", "sighed", "sobbed", "said"], ["asked"], ["cried", "wailed", "sobbed"],
            ["sadly", "in a small voice", "with a sigh", "with tears in [his] eyes", "quietly"],
            ["sighed", "sniffed", "looked at the ground", "wiped away a tear", "hung [his] head", "lowered [his] head"]),
    "kind": (["said"], ["asked"], ["said"],
             ["kindly", "gently", "softly", "warmly", "with a warm smile", "in a soft voice", "in a friendly voice"],
             ["smiled", "nodded", "smiled kindly", "gave a warm smile"]),
    "quiet": (["whispered", "said", "murmured", "whispered"], ["whispered", "asked"], ["whispered"],
              ["softly", "quietly", "in a low voice", "very quietly", "under [his] breath"],
              ["leaned closer", "came a little closer"]),
    "loud": (["called", "shouted"], ["called", "shouted"], ["shouted", "called", "cried", "yelled"],
             ["loudly", "as loudly as [he] could", "at the top of [his] voice", ""], ["waved", "jumped up"]),
    "scared": (["said", "whispered", "stammered"], ["asked", "whispered"], ["cried", "squeaked", "gasped"],
               ["in a shaky voice", "nervously", "in a trembling voice", "with wide eyes"],
               ["shivered", "gulped", "took a step back", "swallowed hard", "trembled"]),
    "worried": (["said"], ["asked"], ["cried", "said"],
                ["with a frown", "in a worried voice", "anxiously", "with a worried look"],
                ["frowned", "looked worried", "bit [his] lip", "shook [his] head"]),
    "proud": (["said", "announced"], ["asked"], ["said", "announced", "cried"],
              ["proudly", "with a proud smile", "full of pride", "with [his] head held high"],
              ["stood up very straight", "beamed with pride", "held [his] head high", "puffed out [his] chest"]),
    "sorry": (["said", "mumbled"], ["asked"], ["said"],
              ["softly", "with red cheeks", "in a small voice", "without looking up", "at last"],
              ["took a deep breath", "looked down at [his] feet", "swallowed hard", "lowered [his] eyes"]),
    "curious": (["said"], ["asked", "wondered", "asked"], ["said", "cried"],
                ["curiously", "full of wonder", "with big eyes", "with [his] head on one side"],
                ["tilted [his] head", "leaned forward", "looked closer", "blinked", "stopped and stared"]),
    "angry": (["said", "grumbled", "muttered"], ["asked", "demanded"], ["shouted", "cried", "snapped"],
              ["angrily", "crossly", "with a frown", "in a cross voice"],
              ["frowned", "stamped [his] foot", "crossed [his] arms", "scowled"]),
    "firm": (["said"], ["asked"], ["said"],
             ["firmly", "in a firm voice", "calmly", "after a moment"],
             ["nodded", "stood up", "took a deep breath", "made up [his] mind"]),
    "sleepy": (["said", "mumbled", "murmured"], ["asked", "mumbled"], ["said"],
               ["sleepily", "with a yawn", "in a sleepy voice"], ["yawned", "rubbed [his] eyes", "stretched"]),
    "surprised": (["said"], ["asked"], ["cried", "gasped", "exclaimed"],
                  ["in surprise", "with wide eyes", "in wonder", ""],
                  ["could not believe [his] eyes", "stared", "blinked in surprise", "opened [his] mouth wide"]),
    "thanks": (["said"], ["asked"], ["said", "cried"],
               ["gratefully", "with a bright smile", "from the bottom of [his] heart", "happily"],
               ["smiled from ear to ear", "bowed", "smiled"]),
    "think": (["thought"], ["wondered", "thought"], ["thought"], ["to [himself]", ""], []),
}

_BREAK = re.compile(r'(?<=[.!?])(?<!Mr\.)(?<!Mrs\.) (?=["A-Z])')


def quotation(story, who, mood, text):
    """`text` as `who` says it. The text is whole sentences."""
    rng = story.rng
    said, asked, cried, manners, acts = MOODS[mood]
    last = text[-1]
    if last not in ".!?":
        raise ValueError(f"a quotation must end as a sentence does: {text!r}")

    def fill(words):
        words = words.replace("[himself]", who.himself).replace("[his]", who.his).replace("[he]", who.he)
        return words.replace("[hands]", who.hands).replace("[hand]", who.hand)

    kind = rng.random()
    if acts and kind < 0.18 and story.last is not who and "thought" not in said:
        name = story.subject(who)
        return f'{name[0].upper() + name[1:]} {fill(rng.choice(acts))}. "{text}"'

    parts = _BREAK.split(text)
    head = parts[0]
    end = head[-1]
    verb = rng.choice({".": said, "?": asked, "!": cried}[end])
    manner = ""
    if verb in ("said", "asked", "cried", "thought", "answered", "called") and rng.random() < 0.42:
        manner = fill(rng.choice(manners))
    if manner:
        manner = " " + manner
    if kind < 0.30 and verb in ("said", "asked", "cried", "whispered", "called", "shouted", "thought", "announced"):
        name = story.subject(who)
        verb = rng.choice({".": said, "?": asked, "!": cried}[last]) if len(parts) > 1 else verb
        if verb not in ("laughed", "sighed", "sobbed"):
            return f'{name[0].upper() + name[1:]} {verb}{manner}, "{text}"'
    name = story.subject(who)
    if name in ("he", "she", "it", "they") or rng.random() < 0.3:
        tag = f"{name} {verb}"
    else:
        tag = f"{verb} {name}"
    if len(parts) == 1 or rng.random() < 0.35:
        body = text[:-1] + "," if text[-1] == "." else text
        if len(parts) > 1:
            verb2 = {".": said, "?": asked, "!": cried}[last]
            tag = tag.replace(verb, rng.choice(verb2), 1) if verb not in verb2 else tag
        return f'"{body}" {tag}{manner}.'
    body = head[:-1] + "," if end == "." else head
    return f'"{body}" {tag}{manner}. "{" ".join(parts[1:])}"'
