"""Magic, wishes and tall tales."""

from ..beats import ending, feel, opening
from ..cast import Person


def three_wishes(s):
    """Wishes are granted, and do not turn out as planned."""
    s.cast(trait="impatient curious dreamy lively playful", friend=True)
    s.word("giver", "a golden fish/the fish/in the stream", "a tiny fairy/the fairy/under a leaf", "an old frog with a crown/the frog/by the well", "a blue bird/the bird/in a thorn bush", "a little star/the star/in the grass", "a grey stone with a face/the stone/by the path")
    s.word("w1", "to be as tall as a tree/could not get through the door any more/to be small again", "that everything [h.he] touched turned into cake/could not even hold a cup of water/that everything was as before", "to be able to fly/flew so high that [h.he] could not find the way down/to stand on the ground again", "that it was always night, so that nobody had to go to bed/bumped into everything in the dark/that the sun came back", "a hundred toys/could not move in [h.his] room any more/that there was room again", "that nobody could see [h.him]/was bumped into by everyone/to be seen again")
    opening(s)
    s.say("[^day], [h] found [giver] [giver.3]. It was in trouble, and [h.he] helped it. \"{As a thank-you|For that}, you may make three wishes,\" said [giver.2].", "[^day], [h] met [giver] [giver.3]. \"You have a kind face,\" said [giver.2]. \"I will grant you three wishes. {Think well|Choose wisely}!\"")
    wish, trouble, undo = (s.render(part) for part in s.known["w1"].parts)
    s.say(f"[^h] did not think for long. First, [h.he] wished {wish}.", f"<h/happy: That is easy!> And [h.he] wished {wish}.")
    s.say("{Pling!|There was a soft sound like a bell.} And it came true. {How wonderful it was!|[^h] laughed and clapped.} But not for long: [h] " + trouble + ".")
    s.say("[^f] {came by|saw it} and {shook [f.his] head|could not stop laughing}. <f/worried: {What have you done|How will you live like that}?> <h/sad: I did not think of that.>", "<h/sad: {That is not what I wanted|I did not think of that}!>")
    s.para()
    s.say("So [h.he] {needed|used} the second wish, and wished " + undo + ". {Pling!|} And all was as before. {Now there was only one wish left.|}")
    s.say("[^h] {sat down|thought} for a long time. {Gold? A castle? A pony?|This time, [h.he] did not want to make a mistake.} Then [h.he] looked at [f], {who had lost [f.his] favourite hat|who had a cold|who was always a little hungry|who was sad that day}.", "\"And your last wish?\" asked [giver.2]. [^h] looked around. [^h.he] saw {the sun on the grass|the open door of [h.his] home}, and [f], who was waiting. {[^h.he] had everything.|}")
    s.say("<h/firm: {I wish that my friend is happy|I wish for a good day for everyone}.>", "<h/kind: {I wish that you have a wish of your own, too|I do not need it. Give it to [f]}.>")
    s.say("[^giver.2] {smiled|shone brightly}. \"{That was the best wish of all|Nobody has ever said that before}.\" {And it was gone.|}", "\"Now you have learned how to wish,\" said [giver.2], and {was gone|disappeared in a shower of sparks}.")
    ending(s, "And do you know what? From that day on, everything that [h] really needed came all by itself.", "That evening, [h] sat with [f] and {watched the sun go down|shared an apple}. There was nothing left to wish for.", "[^h] never saw [giver.2] again. But [h.he] still says good day to {every fish, every bird and every stone|everyone [h.he] meets}, just to be sure.",
           moral=("Be careful what you wish for.", "The best wishes are those for others."))


def fallen_star(s):
    """A star falls down and wants to go home."""
    s.cast(trait="kind dreamy curious gentle brave", friend=True)
    s.place(tag="grass trees water wind")
    s.put("t", Person("the little star", "star", "it", "sky", "ray", "little"))
    opening(s, now=False)
    s.say("One night, [h] saw a light fall from the sky. It fell {right behind the house|into the valley|beyond the trees}.", "One night, something bright {fell past the window|flew across the sky} and landed {with a soft thud|without a sound}.")
    s.say("[^h] {ran out|went to look}. There, [p.spot], lay a little star. It was {no bigger than an apple|as big as a plate}, and it {shone only faintly|was crying}.", "[^h.he] followed the light [p.to]. A little star lay there, [p.spot], and {trembled|looked very lost}.")
    s.say("<t/sad: {I fell out of the sky|I danced too wildly, and then I fell}. {Now I cannot get home|I want to go home}.>")
    s.say("<h/kind: {Do not cry|Do not be sad}. I will help you.> [^h] {put it in a lantern|wrapped it in a scarf|carried it home}, and {the whole room was bright|it warmed [h.his] [h.hands]}.", "[^h] took it carefully in [h.his] [h.hands]. It was {warm like bread|light as a feather}. <h/kind: We will find a way.>")
    s.para()
    s.say("The next night, they tried it. [^h] {climbed the highest tree|stood on the roof}, but the sky was {too far away|still far away}. <t/sad: It is no use.>", "First they {built a tower of boxes, but it fell over|tied the star to a kite, but the string broke}. Then [h] {threw the star as high as [h.he] could|climbed the highest hill}. It was not high enough.")
    s.say("They asked [w]. <w/quiet: {Stars do not rise by force. They rise when they shine|A star rises when it is happy}.>", "[^f] looked at the little star. <f/curious: {Perhaps it is too sad to fly|It is so dim. Maybe it must shine again}.>")
    s.say("So they {sang for it|told it funny stories}. [^f] {danced|stood on [f.his] head}, and [h] {made faces|told the one about the goose}. The little star {giggled|began to laugh}. And the more it laughed, the brighter it grew!", "So they told it how beautiful the sky is, and that {its place up there was empty|the others were waiting for it}. {They sang all the songs they knew.|} And slowly, it began to shine, {brighter and brighter|like a lamp}.")
    s.say("Then it {lifted off|began to float}, {a hand's breadth, then a foot, then up over the trees|higher and higher}. <t/happy: {Thank you! I will never forget you|Look up every night. I will wave to you}!>", "And then, softly, it rose. <t/thanks: {Now I remember how it works|Goodbye, my friends}!> Up and up it went, until it was back in its place.")
    feel(s, "h", "happy", 0.4)
    ending(s, "Every night since then, [h] has looked up. And there is one star that twinkles {twice|a little more than the others}.", "On clear nights, one star winks. Most people do not see it. But [h] does.", "When [h] is sad, the room is sometimes a little brighter than it should be. Then [h.he] knows who is {looking in|thinking of [h.him]}.",
           moral=("Laughter can lift even a star.",))


def dragon_friend(s):
    """Everyone fears a monster who is only lonely."""
    if s.world == "animal":
        s.world = "fairy"
    s.cast(trait="curious brave kind shy clever", friend=False)
    s.food("e", "sweet")
    kind = s.rng.choice([k for k in ("dragon", "giant", "troll", "sea monster", "bear", "ghost") if k != s.known["h"].kind])
    where = {"dragon": "in a cave on the mountain", "giant": "behind the big forest", "troll": "under the old bridge", "sea monster": "in the deep lake", "bear": "in the dark woods", "ghost": "in the old tower"}[kind]
    s.put("d", Person(f"the {kind}", kind, s.rng.choice(["he", "she"]), "cave", "hand", "big"))
    s.word("lair", where)
    s.word("why", "a toothache/pulled the bad tooth with a long string/roared because [d.his] tooth hurt", "a splinter in [d.his] foot/pulled out the splinter/roared because [d.his] foot hurt", "no friends/stayed and talked until evening/cried because [d.he] was alone", "nobody to sing with/sang with [d.him] until the stones rang/howled because [d.he] knew no songs", "a bad cold/brought [d.him] hot tea with honey/sneezed so loudly that it sounded like thunder")
    opening(s)
    s.say("[^lair] lived a terrible [d.kind]. At least, that was what everyone said. {At night, one could hear strange sounds.|Nobody had ever dared to go there.}", "Everyone was afraid of the [d.kind] that lived [lair]. \"Never go there,\" said [m].")
    s.say("[^day], [h] lost [h.his] way. {Suddenly, [h.he] stood right in front of it.|} Then something {moved|growled}. It was the [d.kind]!", "[^day], [h] heard a sound. It did not sound wild. It sounded {sad|like crying}. <h/curious: {Somebody is in trouble|I must go and see}.>")
    feel(s, "h", "scared", 0.6)
    s.say("The [d.kind] was {huge|as big as a house}. But {there were tears in [d.his] eyes|[d.he] looked more sad than wild}. <h/scared: {Please do not eat me|I did not want to disturb you}.>", "[^h] wanted to run. But then [h.he] saw a tear, {as big as an apple|as big as a cup}, roll down the [d.kind]'s cheek. <h/kind: Why are you crying?>")
    if "eat me" in s.paragraphs[-1][-1]:
        s.say("<d/surprised: Eat you? {I only eat [e.n]|I would never do that}.> {And the [d.kind] sighed so deeply that the leaves flew up.|}")
    else:
        s.say("<d/sad: {You are the first one who does not run away|Nobody has ever talked to me before}.>")
    s.para()
    s.word("what", s.render(s.known["why"].parts[0]))
    mine = s.render(s.known["why"].parts[0]).replace(f"{s.known['d'].his} ", "my ")
    s.word("fix", s.render(s.known["why"].parts[1]))
    s.word("real", s.render(s.known["why"].parts[2]))
    s.say("Then it all came out: the [d.kind] had [what], and {nobody had ever helped [d.him]|that was all}.", f"<d/sad: {{It is because I have {mine}|I have {mine}}}.>")
    s.say("<h/kind: {That can be helped|Let me see}.> And [h] [fix].", "[^h] {rolled up [h.his] sleeves|did not think twice} and [fix].")
    s.say("The [d.kind] {smiled|laughed for joy}, and the whole {mountain|valley} shook a little. <d/thanks: How good that feels!>", "<d/happy: {That has never happened to me before|You are the bravest [h.kind] in the world}!>")
    s.para()
    s.say("The next day, [h] {took the [d.kind] home|brought the [d.kind] along}. Everyone {screamed and hid|ran away}. <h/firm: {Wait|Come out}! [^d.he] only [real]!>", "When [h] told the others about it, nobody wanted to believe [h.him]. So [h.he] invited the [d.kind] to {tea|the feast}. {The ground shook.|Everyone held their breath.} And the [d.kind] said politely, \"Good evening. I have brought [e.n].\"")
    s.say("One after another, they came closer. {The youngest was the first to laugh.|A small child gave the [d.kind] a flower.}", "Soon the children were {sliding down [d.his] back|sitting on [d.his] shoulders}." if kind not in ("ghost",) else "Soon the children were playing hide-and-seek with [d.him].")
    ending(s, "Since then, the [d.kind] has {lit the stove in winter|carried the heavy stones|watched over the village at night}, and nobody is afraid any more." if kind != "dragon" else "Since then, the dragon has lit all the stoves in winter, and nobody is afraid any more.", "And every Sunday, they all eat [e.n] together, {a small plate for [h] and a very large one for the [d.kind]|and the [d.kind] gets the biggest portion}.", "And at night, when there is a strange sound, they say, \"Sleep well, [d.kind].\"",
           moral=("Some monsters only need a friend.", "One should never believe everything that people say."))


def lost_color(s):
    """Colours or sounds vanish from the land, and come back."""
    s.cast(trait="cheerful brave dreamy curious", friend=True)
    s.word("v", "colours/everything was grey/painted", "songs/no bird sang any more/sang", "stars/the nights were black/glittered", "smiles/nobody laughed any more/smiled", "stories/nobody could remember a single tale/told")
    s.word("thief", "a grey witch/the witch/she/her", "a lonely cloud/the cloud/it/it", "an old magpie/the magpie/she/her", "a sad giant/the giant/he/him", "the north wind/the wind/he/him")
    opening(s, now=False)
    s.say("One morning, something was wrong. All the [v] were gone! [^v.2].", "[^day], people woke up, and [v.2]. Someone had stolen the [v]!" if s.world != "animal" else "[^day], everyone woke up, and [v.2]. Someone had stolen the [v]!")
    s.say("Everybody {was sad|hung their heads}. <h/firm: {I will go and look for them|Somebody must bring them back}.> <f/firm: {I am coming with you|Not without me}!>", "<h/firm: {We must find out where they are|Crying does not help. We must look for them}.> And [h] and [f] set out.")
    s.say("They {went over seven hills|walked for three days}. They asked {the river, the stones and the trees|everyone they met}. \"{North|Up there, where the fog is},\" {said an old pine|whispered the reeds}. \"That is where [thief] lives.\"", "They {followed a trail of tiny sparks|went where nobody had ever gone}. At last they came to {a tower without a door|a cave full of echoes|a hill of black glass}. There lived [thief].")
    s.para()
    s.say("And there they were, all the [v], {locked in a big glass jar|in a thousand little boxes}! Beside them sat [thief.2] and {cried|stared into the air}.", "[^thief.2] sat in the middle of all the [v] and {did not look happy at all|was crying}.")
    s.say("<h/curious: Why did you take them?> \"Because I {never had any of my own|was always alone},\" said [thief.2]. \"{I thought that they would make me happy. But they do not|But alone I have no joy in them}.\"", "[^h] was going to be angry. But then [h.he] saw how sad [thief.2] was. <h/kind: You are lonely, I think.>")
    s.say("<f/kind: {Such things only work when they are shared|If you let them go, they will belong to you, too}.> {[^thief.2] thought for a long time.|}", "<h/kind: {Come with us. Then you will have them every day, and us as well|Give them back, and then come to visit us whenever you like}.>")
    s.say("Slowly, [thief.2] opened {the lid|the boxes}. {Whoosh!|} Out they flew, {over hills and valleys|in a great shining swarm}, back to where they belonged.", "Then [thief.2] {nodded|sighed} and let them go. It was like {a firework|a spring morning|a great river of light}.")
    ending(s, "When [h] and [f] came home, everything was as before. No, it was more beautiful than before, because now {everyone noticed it|they knew how it is without}.", "And [thief.2]? On Sundays, [thief.3] comes to tea.", "There was a great feast, and at the head of the table sat [thief.2], who smiled for the very first time.",
           moral=("What is shared belongs to everyone.",))


def shadow(s):
    """A reflection, echo or shadow becomes a playmate, or is found out."""
    s.cast(trait="curious playful dreamy shy", friend=False)
    s.place(tag="wind trees water grass")
    s.word("e", *["echo/called \"hello\"/\"Hello,\" came a voice from the rocks", "shadow/jumped up and down/And someone on the ground did just the same"],
           *(["reflection/bent over the water/And someone looked up at [h.him] out of the water"] if "water" in s.known["p"].tags else []))
    opening(s)
    s.say("[^day], [h] was all alone [p.at]. {[^h.he] was bored.|Nobody had time to play.} [^h.he] " + s.known["e"].parts[1] + ". " + s.render(s.known["e"].parts[2]) + "!")
    s.say("<h/surprised: {Who are you|Is anyone there}?> But there was {nobody to be seen|no real answer}.", "[^h] {jumped back|stood still}. <h/curious: {Is somebody there|Who is that}?>")
    kind = s.known["e"].parts[0]
    if kind == "echo":
        s.say("<h/angry: Go away!> \"Go away!\" cried the voice.", "<h/angry: Stop that!> \"Stop that!\" called the voice.")
        s.say("[^h] ran home and told [m] about it. <m/kind: {Go back and say something nice|Try it with a friendly word}.>")
        s.para()
        s.say("So [h] went back. <h/loud: I like you!> And from the rocks it came: \"I like you!\"", "The next day, [h] stood there again. <h/loud: Be my friend!> \"Be my friend!\" answered the voice, {loud and clear|again and again}.")
        ending(s, "[^h] laughed, and the {mountain|whole valley} laughed with [h.him].", "From then on, [h] only called out nice things. One never knows who is calling back.", moral=("The world gives back what one calls into it.",))
    else:
        s.say(f"When [h] waved, the other one waved. When [h] danced, it danced, too. <h/happy: You are my {kind}!>",
              f"[^h] nodded, and it nodded. [^h] made a face, and it made the same face. <h/happy: I know you! You are my {kind}!>")
        s.say("They played together {all day|for hours}. {It was a very quiet friend, but a good one.|[^h] made a rabbit, a bird and a dragon.}")
        s.para()
        s.say("But then {a big cloud came|the sun went down}, and it was gone. <h/sad: {Where are you|Come back}!>", "Towards evening, it grew {paler and paler|long and thin}, and then it disappeared. <h/sad: Now I am alone again.>")
        s.say("<m/kind: {It is not gone. It is only sleeping, like the sun|It always comes back with the light}.>", "[^f] had {watched|come by}. <f/kind: I am still here, and I can even talk!>")
        ending(s, "The next morning, when the sun came up, it was there again. <h/happy: {Good morning|There you are}!>", "And so [h] had two friends: one for the light, and one who {talked back|stayed in the dark, too}.", moral=("Nobody is ever quite alone.",))


def tiny_door(s):
    """A little door, and what is behind it."""
    s.cast(trait="curious brave quiet careful", friend=True)
    s.place(tag="trees grass flowers")
    s.word("folk", "mice in blue coats/mouse", "people no bigger than thumbs/little man", "talking snails/snail", "beetles with tiny hats/beetle", "frogs with silver spoons/frog", "moths that wore lace/moth")
    s.word("need", "their clock had stopped, and nobody could reach the hands/turned the hands of the clock with one finger/clock", "a nut had rolled in front of their kitchen door/pushed the nut away with one finger/nut", "their little mill no longer turned/blew softly, and the mill began to turn/mill", "the lamp that lit their street had gone out/lit the lamp with a tiny twig/lamp", "rain dripped on their ballroom/laid a big leaf on the roof/roof")
    opening(s)
    s.say("[^day], [h] found a tiny door [p.at]. It was {in the trunk of a tree|between two roots|in an old wall}, {no higher than a hand|green, with a golden knob}.", "[^day], [p.spot], [h] saw something that had not been there before: a tiny door {with a tiny lamp beside it|with a brass knocker}.")
    s.say("[^h] {knelt down|lay down on [h.his] belly} and knocked with the tip of a twig. {Tick, tick.|} The door opened.", "<h/curious: {Who lives here|Is anybody at home}?> Very softly, [h.he] knocked. Then the door opened a crack.")
    s.say("Behind it was a whole town, with streets and stairs and lamps, and in it lived [folk]! <h/surprised: {How beautiful|I must be dreaming}!>", "[^h] looked inside. {Little lights were burning everywhere.|There were tables, and chairs, and even a piano.} And there were [folk].")
    s.say("\"At last!\" cried a tiny voice. \"We need someone big!\" It was an old [folk.2]. And then [h] heard that [need].", "But they all looked worried. \"We have a problem,\" said an old [folk.2]. It turned out that [need].")
    s.para()
    s.say("<h/happy: {That is easy for me|If it is nothing more than that}!> [^h.he] {reached in|held [h.his] breath} and [need.2].", "[^h] {thought for a moment|smiled}. Then [h.he] very gently [need.2].")
    s.say("There was a tiny cheer, like {rain on leaves|a hundred little bells}. \"{You have saved us|Long live the giant}!\" they cried. {[^h] had never been called a giant before.|}", "They danced for joy and {threw their hats in the air|sang a song so fine that one had to hold one's breath to hear it}.")
    s.say("As a thank-you, [h] got {a cake as big as a pea|a lamp as big as a grain of rice|a tiny golden key}. {\"Come again,\" they said, \"but tell only one friend.\"|}", "They gave [h.him] {a thimble full of honey|a ring made of dew|a tiny book with a hundred pages}. Then the door closed.")
    s.para()
    s.say("[^h] ran to [f] and told [f.him] everything. <f/curious: Really? {I do not believe you|Show me}!> So they went back together. {But there was only bark.|At first, they saw nothing.} <h/quiet: You must knock {softly|three times}.>", "The next day, [h] took [f] along. {The door was there again.|They lay down in the grass.} <f/surprised: {It is true|There is a light inside}!>")
    ending(s, "Since then, they have gone there every week. And when something is too big or too heavy in there, two giants come to help.", "If you ever see a tiny door, knock very softly. You never know who needs you.", "And in the evening, when it is very quiet, one can see a small light [p.spot2].",
           moral=("For someone, everybody is a giant.",))


PLOTS = [(three_wishes, "human animal fairy", 3), (fallen_star, "human animal fairy", 3), (dragon_friend, "human fairy", 4), (lost_color, "human animal fairy", 3), (shadow, "human animal", 2), (tiny_door, "human fairy", 3)]
