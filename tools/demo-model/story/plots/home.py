"""At home: family, chores, bedtime, moving."""

from ..beats import ending, feel, opening
from ..cast import Relative


def new_baby(s):
    """A baby comes, and the older one feels left out."""
    s.cast(trait="lively stubborn playful shy gentle", friend=False)
    s.thing("o", "soft toy")
    s.word("sib", "brother/he/him/his", "sister/she/her/her")
    opening(s)
    s.say("[^day], [h] got a little [sib]. Everybody was {happy|excited}. {Everybody but [h].|}", "[^day], there was a baby in the [h.home]: a little [sib].")
    s.say("\"How sweet!\" everyone said. \"{Such little [h.feet]|Such tiny ears}!\" Nobody {looked at [h]|asked [h] to play} any more.", "The baby cried. The baby slept. The baby cried again. And nobody had time for [h].")
    s.say("<h/angry: {[^sib.2] cannot even play|The baby only cries and sleeps}!>", "<h/sad: {Nobody loves me any more|I wish that everything was as it was before}.>")
    s.say("[^h] {hid in the wardrobe|went outside and sat down under a tree}. {Maybe nobody would even notice.|}", "[^h] took [h.his] [o.full] and {hid under the bed|crept into a corner}.")
    s.para()
    s.say("After a while, {someone sat down beside [h.him]|the door opened}. It was [m]. <m/kind: {I have missed you|There you are}. {When you were born, you cried even louder|Love does not get smaller when one shares it. It grows}.>", "[^m] found [h.him] there. <m/kind: {Do you know what a heart does when someone new comes? It grows|You will always be my first little one}.>")
    s.say("Just then, the baby began to cry again. {Nobody could calm it.|They rocked it. They sang. Nothing helped.} [^h] went to look. [^h.he] {made a funny face|held out [h.his] [o.n]|hummed a little song}.", "That evening, the baby cried and cried. [^h] {tiptoed to the cradle|leaned over the cradle} and {put [h.his] [o.n] beside it|stuck out [h.his] tongue|began to sing softly}.")
    s.say("And the baby {stopped crying|was quiet at once}. It looked at [h] with big eyes, and then it {smiled|laughed} for the very first time.", "And what happened? The baby {looked at [h.him]} and {smiled}.")
    s.say("<m/surprised: {Only you can do that|It has never smiled at me like that}!>", "<h/happy: {[^sib.2] likes me|Did you see that? That was for me}!>")
    feel(s, "h", "proud", 0.6)
    ending(s, "From then on, when the baby cried, everyone called [h].", "<h/quiet: {When you are bigger, I will show you everything|Just wait until you can walk}.>", "And [h] {gave the baby [h.his] [o.full], for ever|told the baby a story every night, and [sib.2] listened until [sib.2] fell asleep}.",
           moral=("There is always room for one more in a heart.", "Being the big one is not so bad after all."))


def bedtime(s):
    """Someone who does not want to sleep."""
    s.cast(trait="lively playful curious stubborn", friend=False)
    s.thing("o", "soft toy light")
    opening(s, now=False)
    s.say("Every evening, it was the same. {\"Time for bed!\" said [m].|[^m] turned down the blanket.} <h/firm: {I am not tired|Not yet}!>", "[^h] did not like to go to bed. {There was so much to do!|What if something happened while [h.he] was asleep?}")
    s.say("First [h.he] was thirsty. Then [h.he] {had to look for [h.his] [o.n]|heard a noise}. Then [h.he] wanted {one more story|one more kiss}.", "[^h] {jumped on the bed|hid behind the curtain} and {sang at the top of [h.his] voice|laughed}.")
    s.say("One night, [h.he] said, \"{I will stay awake until morning|I want to see what the night does}.\" [^m] {smiled|thought for a moment}. <m/kind: {All right|Good}.>", "<h/curious: What happens at night when I am asleep?> <m/kind: {Come, we will look|Let us find out together}.>")
    s.para()
    s.say("They {sat down by the window|went outside, wrapped in a blanket}. {The moon was big and round.|The stars came out, one by one.} <m/quiet: {Look, the flowers have closed|Listen, the birds are quiet}.>", "Together they looked out. <m/quiet: {The sun has gone to bed|Even the wind lies down to sleep}.>")
    s.say("The {cat|dog} curled up by the stove. The hens {sat side by side with their eyes closed|had put their heads under their wings}. {Even the old tree seemed to nod.|}" if s.world == "human" else "The bees were asleep in their hive. The birds had put their heads under their wings. {Even the old tree seemed to nod.|}", "One after another, the lights went out {in the valley|on the hill}. {An owl flew by without a sound.|Far away, a dog barked once.}")
    s.say("<h/sleepy: {Are they all asleep|Does everyone sleep}?> <m/quiet: {Everyone. So that they are strong for tomorrow|Yes. Sleep is where dreams live}.>", "<h/sleepy: I am still not tired.> And then [h.he] yawned.")
    s.say("{[^h.his] eyes grew heavy.|[^h] leaned [h.his] head against [m].} {The stars twinkled.|The night smelled of grass.}", "[^h] held [h.his] [o.full] in [h.his] arm and {blinked|looked at the moon}. The moon got {softer and softer}.")
    ending(s, "[^m] carried [h.him] to bed. [^h] did not notice it any more, for [h.he] was fast asleep.", "The next morning, [h] asked, \"What happened then?\" <m/happy: {Then the sun came up|You missed nothing at all}.>", "And the moon looked in through the window and {kept watch|smiled}, all night long.",
           moral=("Good night.", "Sleep well, little [h.kind]."))


def chores(s):
    """A chore that becomes a game."""
    s.cast(trait="lively playful dreamy stubborn cheerful")
    s.word("job", "tidy up the room/The room was a mess./the room", "sweep the yard/There were leaves everywhere./the yard", "wash the dishes/The dishes were piled up to the ceiling./the kitchen", "stack the wood/A whole cartload of wood lay there./the wood", "pull the weeds/The weeds were up to the knees./the garden", "peel the potatoes/It was a whole sack of potatoes./the potatoes", "fold the washing/The basket was as high as a tower./the washing")
    opening(s)
    s.say("[^day], [m] said, \"Please [job] {before you go out|today}.\" [job.2]", "[^day], [h] wanted to go out and play with [f]. <m/firm: First you must [job].> [job.2]")
    s.say("<h/sad: {That will take for ever|I will be old before I am done}.>", "[^h] {groaned|sighed}. <h/angry: I do not feel like it!>")
    s.say("[^h.he] {did a little|picked up one thing} and {looked out of the window|sat down again}. {It was so boring!|An hour went by, and nothing was done.}", "[^h] began, very slowly. {One thing. A pause. Another thing. A long pause.|}")
    s.para()
    s.say("Then [f] {came by|looked in at the door}. <f/curious: {Are you not done yet|What are you doing}?> <h/sad: I have to [job].> <f/happy: {Then let us make a game of it|Pirates do that in no time}!>", "<f/happy: {I will help you|Let us pretend that we are robots}! Ready, steady, go!>")
    s.say("They {counted|sang} as they worked. {Whoever dropped something had to crow like a rooster.|[^h] was the captain, and [f] was the crew.|Each piece was a treasure that had to be saved from the dragon.}", "They pretended that {the floor was the sea|a giant was coming to visit}. {\"Faster!\" they cried. \"He is already at the bridge!\"|They worked like the wind.}")
    s.say("They laughed so much that they {did not notice how the time went by|almost forgot that it was work}. And suddenly, {everything was done|there was nothing left to do}.", "And before they knew it, it was done. <h/surprised: Done already? What a pity!>")
    s.say("[^m] came in and {could not believe [m.his] eyes|looked around}. <m/surprised: {Who did that|How did you do that so fast}?> <h/happy: A crew of pirates!>", "<m/happy: {It has never looked so good|You two are wonderful}!>")
    ending(s, "The next day, [h] asked, \"{Is there anything else to do|Can I do it again}?\"", "And there was still time to play. They played until dark, but [h] thought that {the work had been the best game of all|nothing had been as funny as the work}.", "<h/happy: Tomorrow we will go to your house, [f].>",
           moral=("Work is half as long when one laughs.", "Almost anything can be a game."))


def grandparents(s):
    """A visit, an old photograph or box, and a story from before."""
    s.cast(trait="curious dreamy quiet kind gentle", friend=False)
    h = s.known["h"]
    kind, pronoun, voc = s.rng.choice([("grandmother", "she", "Grandma"), ("grandfather", "he", "Grandpa")])
    if h.kind == "robot":
        s.known["h"].kind = "gnome"
    s.put("g", Relative(h, kind, pronoun, voc, s.rng.random() < 0.5))
    s.thing("o", "dear music small")
    s.food("e", "sweet")
    opening(s)
    s.say("[^day], [h] went to visit [g]. {There was always [e.n].|It smelled of [e.n].}", "In the holidays, [h] stayed with [g]. {In the evening, they sat by the fire.|There was [e.n] every day.}" if s.world == "human" else "[^day], [h] went to see [g], who lived {behind the hill|on the other side of the stream}.")
    s.say("{It was raining.|One afternoon, [h] was bored.} [^h.he] {climbed up to the attic|opened an old chest|looked into a drawer}. There [h.he] found [o.a], {covered with dust|wrapped in paper}.", "On the highest shelf stood a small box. <h/curious: What is in it?> [^g] took it down. In the box lay [o.a].")
    s.say("<h/curious: {Whose is it|Where does it come from}?> [^g] {sat down|took it in [g.his] [g.hand]} and {was silent for a while|smiled}. <g/quiet: {That is a long story|I had almost forgotten it}.>", "[^g] {put on [g.his] glasses|blew the dust away}. <g/happy: {My old [o.n]! I thought it was lost|When I was as small as you, it was my greatest treasure}!>")
    s.para()
    s.say("And [g] told [h.him] about {the time when [g.he] was little|the old days}: how [g.he] had {walked to school through deep snow|slept in the hay|swum in the river at night}, and how {a good friend|[g.his] own mother} had given [g.him] [o]." if s.world == "human" else "And [g] told [h.him] about the old days: how the winters were so cold that {the stars cracked|even the river slept}, and how a good friend had given [g.him] [o].")
    s.say("<h/surprised: {You were little once|You did that}?> [^g] laughed. <g/happy: {Smaller than you, and much naughtier|Nobody is born old}!>", "[^h] tried to imagine it: [g], as small as a {chair|bush}, {with scraped knees|with mud on the nose}. <h/happy: {Tell me more|Go on}!>")
    s.say("They talked until {it was dark|the fire had burned down}. {Outside, the rain had stopped.|The clock ticked.} Then [g] laid [o] in [h.his] [h.hands]. <g/kind: {Now it is yours. Take good care of it|It needs someone who loves stories}.>", "In the end, [g] said, \"I want you to have it.\" And [g.he] put [o] in [h.his] [h.hands].")
    feel(s, "h", "happy", 0.4)
    ending(s, "[^h] kept it all [h.his] life. And many, many years later, a little one asked, \"{Whose is it|Where does it come from}?\" Then [h] {sat down|smiled}. \"That is a long story.\"", "When [h] went home, [h.he] was carrying a treasure. But the greatest treasure was the story.", "Since then, [h] asks for a story on every visit. And there is always one more.",
           moral=("Old things have long stories, if one listens.",))


def sick_day(s):
    """Someone is ill, and the others bring comfort."""
    s.cast(trait="cheerful lively kind gentle helpful")
    s.food("e", "warm")
    s.thing("o", "soft toy small paper")
    sick, other = s.rng.choice([("h", "f"), ("f", "h")])
    s.known["a"], s.known["b"] = s.known[sick], s.known[other]
    opening(s)
    s.say("[^day], [a] did not come out to play. [^a.he] was {ill|sick} in bed, with {a red nose and a hot head|a cough and a sore throat}.", "[^day], [a] woke up and {everything hurt|had a fever}. [^a.he] had to stay in bed." if s.world == "human" else "[^day], [a] woke up with a cold. [^a.he] had to stay in bed.")
    s.say("[^b] {waited outside|wanted to play}, but nobody came. {Without [a], everything was boring.|} Then [b.he] {heard what was wrong|knocked at the window}. <b/kind: {Poor you|Get well soon}!>", "[^b] was worried. <b/think: {How can I cheer [a.him] up|What helps against a cold}?>")
    s.say("[^b] {ran home|thought hard}. [^b.he] brought [e.n], {nice and warm|still hot}, and {a pillow|a blanket}." if s.known["e"].n not in ("noodles", "dumplings") else "[^b] ran home and came back with hot [e.n] and a blanket.", "[^b] brought [o.a] and {a bunch of flowers|a drawing}. <b/kind: So that you are not alone.>")
    s.para()
    s.say("Because [b] was not allowed to come in, [b.he] {stood outside the window|sat down under the window} and {made shadow animals|told a long story|played a whole puppet show}. [^a] laughed until [a.he] had to cough.", "[^b] sat down next to the bed and {read a story|told a story about a dragon with a cold}. {\"Achoo!\" went the dragon, and a whole forest was gone.|[^a] listened with shining eyes.}")
    s.say("[^b] came again the next day, and the day after that. {Each time, [b.he] brought something small: a feather, a stone, a joke.|}", "Every day, [b] told [a.him] what was going on outside: {which flowers were open|who had fallen into the pond}, {and what the clouds looked like|and who had won the race}.")
    s.say("And slowly, [a] got better. {The fever went away.|The nose was no longer red.} <a/happy: {I think it was the stories that made me well|You are the best medicine}!>", "After a week, [a] could get up again. <a/thanks: {Without you it would have been so long|You came every day}!>")
    s.say("They ran out into the sun and {played until evening|turned round and round}.", "On the first day outside, they {sat in the sun|went very slowly}, and everything smelled {new|of spring}.")
    ending(s, "And two days later? <b: Achoo!> Now [b] lay in bed. But someone was already knocking at the window: it was [a], with {a bowl of soup|a story}.", "And [a] never forgot it. When somebody was ill after that, [a] was always the first to {knock|bring soup}.", "[^o] still stands beside the bed, for next time." if any(s.known["o"].full in x for x in s.paragraphs[-2]) else "Being well again is wonderful, but being cared for is even better.",
           moral=("A good friend is the best medicine.",))


def moving(s):
    """Moving to a new home and taking the old one along in the heart."""
    s.cast(trait="shy quiet dreamy stubborn curious", friend=True)
    s.thing("o", "dear toy")
    opening(s)
    s.say("[^day], [m] said, \"We are going to move. {Far away, to the other side of the mountains|To a new place, far from here}.\"", "[^day], there were boxes everywhere. They were going to move away.")
    s.say("<h/angry: {I do not want to|I am staying here}!> [^h] thought of {the old tree|[h.his] room|the creaking stairs}, and of [f].", "[^h] did not want to go. {Here was everything that [h.he] knew.|Here was [f].}")
    feel(s, "h", "sad", 0.5)
    s.say("On the last day, [h] and [f] sat {under the old tree|on the fence}. Neither of them {said much|knew what to say}. Then [f] gave [h.him] [o.a]. <f/sad: {So that you do not forget me|When you look at it, think of me}.>", "[^f] came to say goodbye. <f/quiet: {I will write to you|You will always be my friend}.> And [f.he] put [o.a] in [h.his] [h.hand].")
    s.para()
    s.say("The new [h.home] was {big and empty|strange}. It smelled {of paint|different}. The first night, [h] {could not sleep|held [o] in [h.his] arm and cried a little}.", "In the new place, everything was wrong: {the light, the smells, the sounds|the bed stood on the wrong side}. [^h] {did not unpack|put only [o] on the window sill}.")
    s.say("The next morning, [h] went out, {only to the corner|just for a look}. There was {a pond with ducks|a tree that was perfect for climbing|a cat on a wall}. {[^h.he] had not had that at home.|That was not so bad.}", "<m/kind: {Give it time|A home is not there all at once. It grows}.> So [h] went out to look around. {Behind the house, there was a little stream.|There was a crooked tree, just like the old one.}")
    s.say("And on the wall sat someone who {looked at [h.him] with curious eyes|waved}. \"{Are you new here|Hello, are you the one who moved in}? Come, I will show you everything.\"", "Then someone called, \"{Can you climb|Do you want to play}?\" [^h] {swallowed|looked around}. There was nobody else. <h/quiet: Yes.>")
    s.para()
    s.say("That evening, [h] wrote a letter to [f]. It was four pages long. \"{You must come and see it|There is a tree here that you would like},\" it said." if s.world == "human" else "That evening, [h] told [o] all about it, as if [f] were there.", "In the evening, [h] hung up a picture of [f] and put [o] beside it. Now the room looked {a little like home|much better}.")
    ending(s, "In the summer, [f] came to visit. And [h] showed [f.him] everything, as if [h.he] had always lived there.", "A friend far away is still a friend. And one can have two homes: one under the feet, and one in the heart.", "And one day, [h] noticed that [h.he] had said \"home\" without thinking.",
           moral=("What one loves, one takes along.",))


PLOTS = [(new_baby, "human animal", 3), (bedtime, "human animal fairy", 3), (chores, "human animal", 3), (grandparents, "human animal fairy", 3), (sick_day, "human animal fairy", 3), (moving, "human animal", 2)]
