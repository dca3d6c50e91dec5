"""Animals in need, and animals that help."""

from ..beats import ending, feel, opening
from ..cast import Person


def hurt_animal(s):
    """A hurt animal is found, nursed and set free."""
    s.cast(trait="kind gentle curious quiet helpful", friend=False)
    s.place()
    s.creature("c", "bird hedgehog squirrel owl fawn mouse seagull rabbit" if s.world == "human" else "bird duckling seagull")
    c = s.known["c"]
    s.word("hurt", "wing/a broken wing", "leg/a hurt leg") if c.kind in ("bird", "owl", "seagull", "duckling") else s.word("hurt", "leg/a hurt leg", "paw/a thorn in its paw" if c.kind != "fawn" else "leg/a hurt leg")
    s.word("food", "worms and seeds", "bread crumbs", "little seeds", "soaked corn") if c.kind in ("bird", "duckling", "seagull", "owl") else s.word("food", "nuts and berries", "fresh leaves", "bits of apple", "warm milk")
    opening(s)
    s.say("[^day], [h] was {walking|playing} [p.at] when [h.he] heard a {tiny|faint|small} sound. Something was lying [p.spot].", "[^day], [h] found [c.a]. It lay [p.spot] and {did not move|looked up with big eyes}.", "[^day], [h] went [p.to]. {[^p.spot], something moved.|There, [p.spot], something moved.}")
    if s.known["c"].look in s.paragraphs[-1][-1]:
        s.say("[^c] had [hurt.2].", "Its [hurt] was hurt.")
    else:
        s.say("It was [c.a] with [hurt.2].", "It was [c.a], and its [hurt] was hurt.")
    s.say("<h/kind: {You poor little thing|Do not be afraid}. {I will help you|I will not hurt you}.>", "[^h] {knelt down|came closer, very slowly}. <h/quiet: {Shh|There, there}. I will {take care of you|help you}.>")
    s.say("Carefully, [h.he] {wrapped it in a scarf|took it in both [h.hands]|laid it in a basket} and carried it home.", "[^h.he] made a soft bed of {moss|leaves|wool} and carried it home.")
    s.para()
    s.say("[^m] looked at the [hurt]. <m/kind: {It needs rest, warmth and food|We will bandage it. Then it needs time}.>", "Together with [m], [h.he] {put on a tiny bandage|washed the [hurt]}. <m/kind: {Now we must be patient|It may take a while}.>")
    s.say("Every day, [h] brought it [food] {and talked to it|and fresh water}. {At first, it was afraid. Then it ate from [h.his] [h.hand].|At night, [h] got up to see if it was warm enough.}", "[^h] gave it [food]. {The first day, it ate nothing. The second day, it ate a little.|Day by day, it grew stronger.} {Soon it came when [h] called.|}")
    s.say("{After two weeks|After some time}, the [hurt] was well again. [^c] {hopped around the room|looked out of the window all day}.", "And one morning, [c] {stood up|moved its [hurt]} as if nothing had ever been wrong with it.")
    s.para()
    s.say("<m/kind: {It is time to let it go|It belongs outside}.> [^h] {swallowed|had known it all along}. {It was not easy.|}", "[^h] wanted to keep it so much. But [h.he] saw how it looked at the sky. <h/sad: You want to go home, don't you?>")
    s.say("[^h] {carried it|took it} back [p.to] and {opened [h.his] [h.hands]|set it down}. [^c] looked back once, and {then it was gone|off it went}.", "So they went [p.to]. <h/kind: {Go on|Good luck}, little friend.> For a moment it stayed. Then it {was gone|went, without looking back}.")
    feel(s, "h", "sad", 0.4)
    ending(s, "But a few days later, {something tapped at the window|there was a sound outside}. It was [c]! And from then on, it came to visit {every morning|every spring}.", "In spring, [h] saw [c] again, and it was not alone. {Three little ones were with it.|}", "[^h] was sad and happy at the same time. But when [h.he] heard it in the distance, [h.he] knew that it was well.",
           moral=("Whoever loves something must also be able to let it go.", "A small kindness can mean the whole world to somebody."))


def stuck(s):
    """An animal is stuck; a clever idea sets it free."""
    s.cast(trait="clever brave helpful curious kind")
    s.place()
    s.creature()
    s.word("trap", "in a deep hole/filled the hole with leaves and sand until it could climb out", "in a thorny bush/bent the branches aside, one by one", "between two rocks/rubbed butter on the rocks until it could slip out", "in an old net/bit by bit untied the knots", "on a tiny island in the middle of the stream/laid a long board across the water", "in an empty pot/turned the pot around and poured in a little oil", "behind a fence/dug a small tunnel under the fence")
    opening(s)
    s.say("[^day], [h] and [f] heard somebody crying [p.at].", "[^day], [h] was on the way [p.to] with [f]. Suddenly, [h.he] stopped. <h/curious: Do you hear that?>")
    s.say("It was [c.a]. It was stuck [trap] and could not get out.", "[^c.a] was stuck [trap]. It [c.voice] {sadly|in fear}.")
    s.say("<f/worried: {We must get help|Poor thing}! {It is too far away|We cannot reach it}.>", "[^f] pulled {with all [f.his] might|carefully}. It did not help. <f/sad: {It does not work|I am not strong enough}.>")
    s.say("[^h] {sat down and thought|looked at it from all sides}. <h/think: {Pulling does not help|There must be a way}.>", "<h/firm: {Wait|Let me think}. {Being strong is no use here|We must be clever}.>")
    s.para()
    s.say("Then [h] {jumped up|had an idea}. <h/happy: {I know what to do|I have it}!> Together they [trap.2].", "And then [h.he] knew it. It was quite simple! They [trap.2].")
    s.say("{It took a long time.|It was hard work.|The sun was already going down.}  But at last, [c] was free!", "Slowly, very slowly, it worked. {One more bit, and another bit.|} And [c] was free!")
    s.say("[^c] {shook itself|looked at them with shining eyes} and [c.voice], as if it wanted to say thank you.", "[^c] {jumped around them for joy|rubbed against [h.his] legs}. Then it {disappeared|was gone}.")
    s.maybe(0.8, "A few days later, [h] could not find the way home in the fog. Suddenly, [c] was there. It went ahead, step by step, and showed [h.him] the way.", "The next morning, there lay {a heap of nuts|three red berries|a shiny stone} in front of the door. Who could have put it there?", "From then on, [c] often sat [p.spot] when they came, {and waited for them|as if it had waited for them}.")
    ending(s, "<f/happy: {You have a good head|That was a great idea}.> <h/happy: {And you have good [f.hands]|We did it together}.>", "On the way home, the two friends {felt ten feet tall|sang a song}.", "And if you ever see [c.a] there, it might be the very same one.",
           moral=("Being clever often helps more than being strong.", "Nobody is too small to say thank you."))


def big_small(s):
    """The small one saves the big one."""
    s.world = "animal"
    s.cast(trait="kind cheerful brave helpful", friend=False)
    s.word("big", "lion", "bear", "elephant", "bull", "stag", "wolf")
    if s.known["h"].kind == s.known["big"].parts[0]:
        s.word("big", "moose")
    s.put("b", Person(f"the {s.known['big'].parts[0]}", s.known["big"].parts[0], "he", "den", "paw", "big"))
    s.word("small", "mouse", "ant", "bee", "beetle", "wren", "ladybird")
    s.place(tag="trees grass water")
    opening(s)
    s.say("[^day], [h] went [p.to]. There [h.he] met a huge [big], and the [big] was {asleep|in a bad mood}.", "Not far away lived a huge [big]. Everyone was afraid of him, only [h] was not.")
    s.say("<b/angry: {Who dares to wake me|What do you want here, little one}?> <h/kind: {Excuse me, I only wanted to say hello|Good morning. I did not mean to disturb you}.>", "<b/loud: {Out of my way, little one|What could you ever do for me}!> <h/kind: {One never knows|Maybe I can help you one day}.>")
    s.say("The [big] {laughed so loudly that the leaves shook|laughed and laughed}. <b/happy: {You? Help me? That is funny|A little thing like you}!>", "<b/happy: {You are brave for such a little one|How funny you are}! {Go on, then|Run along}.>")
    s.para()
    s.word("fix", "bit through the ropes, one after another/was caught in a net", "pulled at the thorn until it came out/had a big thorn in his foot", "showed him the way through the fog/had lost his way in the fog", "crept into the crack and pushed out the little stone/had one leg stuck between two rocks")
    s.say("Some days later, [h] heard a terrible {roar|cry}. [^h.he] {ran to see|followed the sound}. The [big] [fix.2]!", "But one day, the [big] [fix.2]. {He roared so loudly that all the others ran away.|Nobody dared to go near him.} Only [h] came.")
    s.say("<b/sad: {It is no use. Nobody can help me|I am so big and so strong, and now it is no good at all}.>", "<b/sad: You are too small to help me.> <h/firm: {Hold still|Just wait and see}.>")
    s.say("And [h] [fix]. {It took a long time.|It was hard work for such a little one.} Then it was done, and the [big] was {saved}.")
    s.say("<b/sorry: {I laughed at you, and you have saved me|I was wrong about you}.> <h/kind: {I told you so|Never mind}!>", "The [big] bowed his great head. <b/thanks: {I will never again say that someone is too small|You have the biggest heart of all}.>")
    ending(s, "From then on, one could often see them together: {the big one and the small one|the huge [big], and next to him little [h]}.", "And whoever laughed at [h] after that had to deal with the [big].", "Since then, the [big] greets even the [small] politely when it passes by.",
           moral=("Nobody is too small to help.", "Even the strongest needs a friend."))


def egg(s):
    """A strange egg is found."""
    s.cast(trait="curious kind gentle careful dreamy", friend=True)
    s.place()
    s.word("hatch", "duckling/swim", "goose/waddle", "turtle/crawl", "peacock/strut", "owl/fly", "swan/swim") if s.world != "fairy" else s.word("hatch", "dragon/fly", "griffin/fly", "phoenix/fly", "swan/swim")
    opening(s)
    s.say("[^day], [h] found an egg [p.spot]. It was {big and blue|white with green dots|speckled|as smooth as a stone}, and there was no nest far and wide.", "[^day], [p.at], [h] stumbled over something round. It was an egg! {It was still warm.|It was very big.}")
    s.say("<h/curious: {Whose egg is that|Who could have lost you}?> [^h.he] {waited|asked everyone}. But nobody {came|knew anything}.", "<f/curious: What is in it?> <h/curious: {I do not know. We must keep it warm|Let us wait and see}.>")
    s.say("So [h] took it home, wrapped it in a {scarf|blanket} and {put it near the stove|kept it warm day and night}.", "[^h] made a nest of {straw|wool} and sat beside it, {day and night|for three whole days}.")
    s.say("[^f] {came every day|brought a warm blanket}. <f: {Nothing will ever come out of it|Maybe it is only a stone}.> <h/firm: {We must be patient|Just wait}.>", "<m/kind: {Good things take time|Patience is the best warmth}.>")
    s.para()
    s.say("Then, one {night|morning}, it happened. {Crack!|Tick, tick, crack!} The egg got a crack, then a hole, and out came a tiny beak." if s.known["hatch"].parts[0] not in ("turtle", "dragon", "griffin") else "Then, one {night|morning}, it happened. {Crack!|Tick, tick, crack!} The egg got a crack, then a hole, and out came a tiny nose.")
    s.say("It was a baby [hatch]! It looked at [h] and {blinked|made a tiny sound}.", "Out of the shell crept a little [hatch], wet and {wobbly|hungry}. <h/happy: {Hello, little one|Welcome}!>")
    s.say("From then on, it followed [h] {everywhere|wherever [h.he] went}. It thought that [h] was its mother! [^h] {fed it and kept it warm|showed it how to eat}. Only one thing [h.he] could not teach it: how to [hatch.2] like the others.", "[^h] took good care of it. It grew and grew. {Soon the box was too small.|Soon it was as big as a cat.}")
    s.para()
    s.say("One day, they were [p.at] together when {a big [hatch]|another [hatch], a big one,} came by. The little one {lifted its head|stood still}. {They looked at each other for a long time.|}", "In autumn, the others of its kind came by. The little [hatch] looked after them {with big eyes|and called}.")
    s.say("<h/sad: {You must go with them|They can teach you what I cannot}.> {It laid its head on [h.his] shoulder once more.|} Then it went.", "[^h] {understood|had a lump in [h.his] throat}. <h/kind: {Go|There is your family}.>")
    ending(s, "And the next spring? Something knocked at the door. There stood the [hatch], {big and beautiful|and behind it, five little ones}.", "[^h] kept a piece of the shell. {It lies on the window sill to this day.|And whenever [h.he] looked at it, [h.he] smiled.}", "Every year, on the same day, it comes back and brings [h] a feather." if s.known["hatch"].parts[0] not in ("turtle", "dragon") else "Every year, on the same day, it comes back to say hello.",
           moral=("Love means to keep someone warm, and later, to let them go.",))


def stray(s):
    """A stray animal finds a home."""
    s.world = "human"
    s.cast(trait="kind gentle shy quiet stubborn", friend=False)
    s.place(tag="grass people water trees")
    s.creature("c", "kitten puppy")
    s.word("pet", "Lucky", "Shadow", "Pepper", "Button", "Rags", "Patch", "Sunny", "Ginger", "Cloud", "Hobo", "Nutmeg", "Freckles")
    opening(s)
    s.say("[^day], it was raining {hard|cats and dogs}. [^p.spot] sat [c.a], {wet to the skin|all alone}." if s.known["p"].spot[0] != "i" else "[^day], it was raining hard. Near the path sat [c.a], wet to the skin.", "[^day], [h] saw [c.a] [p.at]. {It was thin and dirty.|It had no collar.} It looked at [h.him] and [c.voice].")
    s.say("<h/kind: {Whose are you|Where is your home}?> [^c] {only shivered|came a step closer}.", "[^h] held out [h.his] hand. [^c] sniffed at it and {licked it|came closer}.")
    s.say("[^h] {took it home|carried it home under [h.his] coat}. <h/happy: May I keep it?>", "[^h] went home, and [c] {followed [h.him]|trotted after [h.him]}. <h/happy: Can it stay with us?>")
    s.say("<m/firm: {An animal is not a toy. It needs food and care every day|First we must find out whether someone is missing it}.>", "<m/worried: Who will feed it and clean up after it?> <h/firm: I will! I promise.>")
    s.para()
    s.say("So they {hung up notes all over town|asked everyone in the street}. {A week went by. Nobody came.|Days went by, and nobody was missing it.}", "For two weeks, they looked for the owner. Meanwhile, [h] {brushed it|fed it} every morning and {every evening|taught it small tricks}.")
    s.say("It {rained, and [h] went out with it all the same|was cold, and [h] got up early all the same}. {[^m] saw it and said nothing, but [m.he] smiled.|}" if s.known["c"].kind == "puppy" else "[^h] {cleaned its box|filled its bowl} every single day without being told. {[^m] saw it and smiled.|}")
    s.say("At the end, [m] {put a little red collar on the table|came home with a small basket}. <m/kind: You have kept your promise. It may stay.>", "Then [m] said, \"I think it has found its home.\"")
    s.say("[^h] {hugged [m]|shouted for joy}. <h/happy: {Its name is [pet]|I will call it [pet]}!>", "They called it [pet], {because that name suited it}.")
    ending(s, "And [pet]? It never sat alone in the rain again.", "That night, [pet] lay at the foot of the bed and {sighed happily|slept with one eye open, just to be sure that it was not a dream}.", "From then on, [h] always had someone who was {happy|glad} when [h.he] came home.",
           moral=("A home is where somebody is waiting.", "It takes a big heart to care for a small life."))


def bees(s):
    """Afraid of a creature, until one knows it."""
    s.cast(trait="careful curious shy quiet", friend=False)
    s.place(tag="flowers grass trees fruit")
    s.word("b", "bees/bee/without them there would be no apples/a spoonful of honey", "spiders/spider/without them there would be flies everywhere/a web full of dew", "bats/bat/without them the nights would be full of gnats/a dance in the evening sky", "toads/toad/without them the snails would eat all the lettuce/a song by the pond", "owls/owl/without them there would be too many mice in the corn/a soft grey feather")
    if s.world == "animal" and s.known["h"].kind in ("mouse", "hamster", "frog", "duckling", "chipmunk"):
        s.word("b", "bees/bee/without them there would be no apples/a spoonful of honey", "bats/bat/without them the nights would be full of gnats/a dance in the evening sky")
    opening(s)
    s.say("[^h] did not like [b]. {When [h.he] saw one, [h.he] ran away.|They were ugly, [h.he] thought, and dangerous, too.}", "If there was one thing that [h] was afraid of, it was [b].")
    s.say("[^day], [h.he] was [p.at] when a [b.2] came {close|right up to [h.him]}. <h/scared: Help! {A [b.2]|Go away}!>", "[^day], there was a [b.2] {on [h.his] window sill|right beside the path}. [^h] {screamed|jumped back}.")
    s.say("[^wintro] {heard it|was nearby}. <w/kind: {It is more afraid of you than you are of it|Stay calm. It does not want to hurt you}.>")
    s.say("<h/curious: What are they good for, anyway?> <w/kind: {A lot|You would be surprised}. You see, [b.3].>", "<h/angry: I wish there were no [b] at all!> <w/kind: {Do not say that|Careful what you wish for}. You see, [b.3].>")
    s.para()
    s.say("[^w] {took [h.him] by the [h.hand]|showed [h.him] where they lived}. {They sat down and kept very still.|<w/quiet: Shh. Just watch.>} And [h] watched. {How busy they were!|How gently they moved!}", "The next day, [w] came to get [h.him]. They {hid [p.spot]|sat very still} and watched for a whole hour.")
    s.say("The longer [h] looked, the less afraid [h.he] was. {They were really quite beautiful.|Each of them knew just what to do.}", "<h/surprised: {I never knew that|How clever they are}!>")
    s.say("In the end, [w] showed [h.him] something: [b.4]. {[^h] had never seen anything so lovely.|}" if "spoonful" not in s.known["b"].parts[3] else "In the end, [w] gave [h.him] [b.4]. <h/happy: And they made this? It is so sweet!>", "[^h] laughed. <h/happy: {They are not so bad after all|I think I like them}.>")
    ending(s, "From then on, [h] said good morning to every [b.2] that [h.he] met.", "And when somebody shouted, \"Help, a [b.2]!\" then [h] said, \"{Stay calm|Do not be afraid}. You see, [b.3].\"", "[^h] planted flowers and left a wild corner {in the garden|near the house}, {so that they had a home|just for them}." if s.world != "animal" else "And [h] told everyone about it, so that nobody would chase them away any more.",
           moral=("One is often afraid of what one does not know.",))


PLOTS = [(hurt_animal, "human animal fairy", 4), (stuck, "human animal fairy", 3), (big_small, "animal", 2), (egg, "human animal fairy", 3), (stray, "human", 3), (bees, "human animal fairy", 3)]
