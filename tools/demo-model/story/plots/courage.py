"""Fear, and what helps against it."""

from ..beats import ending, feel, opening


def dark(s):
    """Afraid of the dark; what makes the noise is harmless."""
    s.cast(trait="shy dreamy gentle careful quiet kind curious", friend=False)
    s.thing("o", "light soft")
    s.word("noise", "a scratching sound/scratch, scratch", "a soft tapping/tap, tap, tap", "a rustling sound/rustle, rustle", "a strange squeak/squeak, squeak", "a low creaking/creak, creak", "a gentle bumping/bump, bump")
    s.word("cause", "a branch that touched the window/the branch", "a little mouse with a crumb of bread/the mouse", "a moth that danced against the glass/the moth", "the wind that played with the curtain/the wind", "a kitten that wanted to come in/the kitten", "an old door that was not quite shut/the door")
    opening(s, now=False)
    s.say("But there was one thing that [h] did not like at all: the dark.", "There was only one problem. [^h] was afraid of the dark.", "By day, [h] was not afraid of anything. But at night, it was another matter.")
    s.say("Every evening, when {the light went out|the sun went down}, [h.he] {pulled the blanket over [h.his] head|hid under the blanket|could not sleep}.", "{Shadows looked like monsters.|The chair looked like a giant.|In the dark, everything looked different.}")
    s.para()
    s.say("One night, [h] heard [noise]. [^noise.2], it went. [^noise.2].", "One night, there was [noise]. <h/scared: {What was that|Who is there}?> [^noise.2], it went again.")
    feel(s, "h", "scared", 0.8)
    s.say("<h/quiet: {Perhaps it is a monster|It must be a ghost}.>", "[^h] wanted to call for [m], but no sound came out of [h.his] mouth.", "<h/loud: [m.voc]! There is something in here!>")
    s.para()
    if s.rng.random() < 0.5:
        s.say("[^m] came in {with a candle|with soft steps} and sat down on the bed. <m/kind: {Things are only scary as long as we do not know what they are|The dark is only the day with its eyes closed}.>",
              "[^m] had heard it, too. <m/kind: {Come, we will look at it together|Let us find out what it is}.>")
        s.say("[^m] gave [h.him] [o.a]. [^h] held it tightly and took one step, and then another.", "[^h] took [m.his] [m.hand] and {went to the window|got up}.")
    else:
        s.say("Then [h] thought of what [m] had once said: \"{Being brave means doing it although you are afraid|The best way to make a monster small is to look at it}.\"", "[^h] counted to {three|ten}. <h/firm: I {want to know what it is|will just look, very quickly}.>")
        s.say("[^h] took [h.his] [o.full], put one foot on the floor, and then the other.", "With shaking knees, [h] {got up|climbed out of bed} and took [h.his] [o.n] along.")
    s.say("And what was it? It was only [cause]!", "There it was: [cause]. {Nothing else.|That was all.}", "[^h] looked. And then [h.he] had to laugh, because it was only [cause].")
    s.say("<h/happy: {So it was only you|And I was afraid of that}!>", "[^h] {laughed|giggled} with relief. <h/happy: That is no monster at all!>", "<h/surprised: Is that all?>")
    ending(s, "From that night on, [h] was not so afraid any more. When [h.he] heard a noise, [h.he] got up and {looked|said good evening to it}.", "[^h] went back to bed and looked into the dark. It was {soft|quiet} and full of small sounds, and {each of them had a name|none of them was a monster}.",
           "After that, [h] slept {like a stone|very well}. And when the sound came again, [h.he] only smiled.",
           moral=("What we know can no longer frighten us.", "And [h] knew that {[h.he] was braver than [h.he] had thought|being brave begins with one small step}."))


def thunder(s):
    """A storm; someone is afraid and someone else, too; they comfort each other."""
    s.cast(trait="shy gentle careful playful cheerful")
    s.food("e", "warm")
    s.thing("o", "soft toy")
    s.season, s.weather = "summer", "hot"
    opening(s, now=False)
    s.say("[^day], big black clouds came {over the hills|up in the sky}. The air was {still and heavy|strangely quiet}.", "It had been hot all day. In the evening, {dark clouds gathered|the sky turned black}.")
    s.say("Then it {flashed|rumbled}, far away at first, then {closer|nearer}. {Boom!|Crash!}", "A flash of lightning lit up the room. And then, boom! came the thunder.")
    s.say("[^h] {crept under the table|hid under the bed|pulled a blanket over [h.his] head}. <h/scared: {I do not like it|Make it stop}!>", "[^h] {covered [h.his] ears|held [h.his] [o.full] very tightly}.")
    feel(s, "h", "scared", 0.5)
    s.para()
    who = s.rng.choice("mf")
    s.known["x"] = s.known[who]
    if who == "f":
        s.say("Then there was a knock at the door. Outside stood [f], wet from head to toe. <f/scared: May I come in? I am {afraid of the thunder|all alone at home}.>",
              "Beside [h.him] sat [f], and [f.he] was shaking, too.")
        s.say("When [h] saw how [f] was shaking, [h.he] forgot [h.his] own fear. <h/kind: {Come here. You can hold my [o.n]|Sit with me. We will be brave together}.>")
    else:
        s.say("[^m] came and sat down beside [h.him]. <m/kind: {Do you know what thunder is? It is only the clouds, bumping together|The storm is loud, but it cannot come in here|Come, let us count together}.>",
              "<m/kind: {You are safe here|I am here}.> [^m] put an arm around [h.him].")
    s.say("They counted the seconds between the flash and the thunder. {One, two, three.|} {Then one, two, three, four, five.|} Each time it was a little longer. <x/kind: You see, it is going away.>",
          "They sang a song, and whenever the thunder came, they sang louder. {Soon they were laughing.|It sounded almost like a drum.}",
          "They made up a story about {a giant who was moving his furniture|a giant who was rolling barrels across the sky}. At every boom, they laughed a little more.")
    s.maybe(0.6, "Then there {was|was a bowl of} [e.n], hot and good." if "noodles" not in s.known["e"].n and "dumplings" not in s.known["e"].n else "Then they ate hot [e.n] together.", "They wrapped themselves in a big blanket and {listened to the rain|drank warm milk}.")
    s.say("At last, the rain grew softer, and then it stopped. {The stars came out.|The air smelled fresh and sweet.|Somewhere a bird began to sing.}", "After a while, the storm moved on. {Only a few drops fell from the roof.|Behind the hills stood a rainbow.}")
    ending(s, "<h/happy: {That was not so bad|I was hardly afraid at all}!>", "And when the next storm came, [h] {sat down by the window and counted|began to sing}.", "That night, [h] slept well, and the last drops {tapped on|ran down} the window like tiny feet.",
           moral=("A storm is only half as loud when one is not alone.", "[^h] had learned that {fear grows smaller when it is shared|even the loudest storm goes away}."))


def learn_skill(s):
    """Something cannot be done, is practised, and is done."""
    s.cast(trait="impatient stubborn shy lively cheerful clever curious")
    s.place(tag="grass water sand")
    skills = {
        "human": ["swim/swimming/swam/went under and swallowed water/the water carried [h.him]", "ride a bicycle/riding/rode/fell off into the grass/the wheels turned and turned",
                  "whistle/whistling/whistled/only made a wet puff of air/a clear, bright sound came out", "skate/skating/skated/sat down hard on the ice/the skates slid over the ice",
                  "juggle/juggling/juggled/dropped all three balls/three balls flew in a circle", "jump rope/jumping/jumped/got caught in the rope/the rope sang through the air",
                  "walk on stilts/walking on stilts/walked/landed on the ground/one stilt moved, and then the other", "tie a bow/tying bows/tied it/ended up with a knot/two neat loops sat on the shoe",
                  "play the flute/playing the flute/played/made a sound like a sad duck/a soft, sweet tune came out"],
        "animal": ["swim/swimming/swam/went under and swallowed water/the water carried [h.him]", "jump over the stream/jumping/jumped/landed right in the middle of the water/[h.he] flew through the air",
                   "whistle/whistling/whistled/only made a wet puff of air/a clear, bright sound came out", "climb the tall pine/climbing/climbed/slid back down to the ground/one branch came after another",
                   "dance/dancing/danced/tripped over [h.his] own feet/[h.his] feet knew the steps by themselves", "balance on a log/balancing/balanced/fell off with a plop/the log stayed still",
                   "roll like a ball/rolling/rolled/bumped into a bush/the world turned round and round"],
        "fairy": ["fly/flying/flew/fell into a bush/the wind carried [h.him]", "make a little light by magic/making light/did it/only made some smoke/a small blue flame danced in the air",
                  "sing the old song/singing/sang/croaked like a frog/every note was right", "ride on a cloud/riding on clouds/rode/slid off into a haystack/the cloud held [h.him] softly",
                  "juggle/juggling/juggled/dropped all three apples/three apples flew in a circle", "whistle like a bird/whistling/whistled/only made a puff of air/a clear, bright sound came out"],
    }[s.world]
    s.word("k", *[option for option in skills if option.split("/")[0] != "ride on a cloud" or s.known["h"].kind in ("fairy", "dragon", "elf")
                  ] if s.known["h"].kind in ("fairy", "dragon", "witch", "wizard", "elf") else [o for o in skills if not o.startswith(("fly", "make a little", "ride on"))])
    opening(s)
    s.say("There was one thing that [h] could not do: [h.he] could not [k].", "All [h.his] friends could [k]. Only [h] could not.", "More than anything, [h] wanted to learn how to [k].")
    s.say("[^day], [h.he] went [p.to] to {try it|practise}.", "[^day], [h.he] said, \"{Today I will learn it|Today is the day}!\"")
    s.para()
    def result(part):
        return s.render(s.known["k"].parts[part])
    s.word("fail", result(3))
    s.word("win", result(4))
    s.say("[^h.he] tried it once. [^h.he] [fail]. [^h.he] tried again, and again [h.he] [fail].", "The first time, [h.he] [fail]. The second time was {no better|even worse}.", "[^h.he] took a deep breath and tried. But [h.he] [fail].")
    s.maybe(0.5, "Someone {laughed|giggled}. [^h] {blushed|pretended not to hear}.", "It looked so easy when others did it!")
    s.say("<h/sad: {I will never learn it|I cannot do it}!>", "<h/angry: {It is too hard|This is stupid}! I give up!>")
    who = s.rng.choice("mfw")
    s.known["x"] = s.known[who]
    s.para()
    s.say(("[^wintro] had watched [h.him]. " if who == "w" else "[^x] had seen it. ") + "<x/kind: {I fell a hundred times before I could do it|Nobody can do it the first time|Every master was once a beginner}.>",
          ("[^wintro] sat down next to [h.him]. " if who == "w" else "[^x] sat down next to [h.him]. ") + "<x/kind: {You could not walk once, and look at you now|Try it slowly, one small step at a time|Do not think of falling, think of flying}.>")
    s.say("[^x] showed [h.him] {a little trick|how to do it}: {first slowly, then faster|not so fast, and with a deep breath|do not look down, look ahead}.", "[^h] {sighed|wiped [h.his] eyes|listened}. <x/firm: {Again|Try once more}. {I will stay right here|I am beside you}.>")
    s.say("So [h] {went on|practised}. {Every day, a little bit.|On Monday it did not work. On Tuesday it almost did.|In the morning and in the evening, in sun and in rain.}", "[^h] tried again. And again. {Ten times. Twenty times.|}")
    s.say("And {then|one day|suddenly}, it {worked|happened}: [win]!", "And then, all at once, [win]. [^h] {held [h.his] breath|could not believe it}.")
    s.say("<h/happy: {I can do it|Look, look! I can do it|I did it}!>", "<x/happy: {You are doing it|I knew you could do it}!>")
    feel(s, "h", "proud", 0.6)
    ending(s, "A week later, a small [f.kind] said to [h], \"I will never learn to [k].\" [^h] {smiled|sat down}. <h/kind: Come, I will show you a little trick.>", "That evening, [h] {hurt all over|was tired and sore}, but [h.he] had never been so {happy|proud}.",
           "Now nobody could stop [h.him]. {From morning till night, [h.he] did nothing else.|[^h.he] did it all the way home.}",
           moral=("[^h] had learned more than that: {one only fails when one stops trying|every \"I cannot\" is only an \"I cannot yet\"}.", "Nobody is born a master."))


def race(s):
    """A race, in which something matters more than winning."""
    s.cast(trait="lively impatient kind helpful brave playful")
    s.place(tag="grass water wind trees")
    s.thing("o", "small music worn")
    opening(s)
    s.say("Every year, there was a great race {from the old bridge to the big oak|around the village|to the mill and back}.", "[^day], there was to be a race. {The prize was [o.a].|The winner would get [o.a].}")
    prize = s.known["o"].full in s.paragraphs[-1][-1]
    s.say("[^h] had {practised for weeks|got up early every day to practise}. <h/firm: This time I will win!>", "[^h] wanted to win {more than anything|so much}. [^h.he] {ran every morning|could think of nothing else}.")
    s.para()
    s.say("{Everyone came|They all lined up}. <w/loud: Ready, steady, go!> And off they ran!", "\"Ready, steady, go!\" And they were off. {Dust flew up.|The crowd cheered.|}")
    s.say("[^h] was {fast|quick as the wind}. {Soon [h.he] was ahead of all the others.|One after another fell behind.} Only [f] was still {beside|right behind} [h.him].", "At first, [f] was ahead. Then [h] caught up. Now they ran side by side.")
    s.say("Then, {suddenly|just before the end}, [f] {stumbled over a root|slipped in the mud|tripped on a stone} and fell. <f/sad: {Ouch|Oh}! My {foot|leg}!>", "But behind [h.him] there was a cry. [^f] had {fallen|tripped over a root} and could not get up.")
    s.say("[^h] could see the {finish|goal}. {Only a few more steps!|It was so near!} [^h.he] looked ahead. [^h.he] looked back.", "[^h] slowed down. {If [h.he] ran on, [h.he] would win.|The goal was so close.}")
    s.say("Then [h] turned around. <h/kind: {Are you hurt|Can you stand}? {Lean on me.|}> [^h.he] {helped [f.him] up|took [f] by the arm}.", "<h/think: {There will be another race|A prize is not as important as a friend}.> And [h.he] ran back to [f].")
    s.maybe(0.6, "The others ran past them, one by one.", "<f/surprised: But now you will lose!> <h/kind: {Never mind|That does not matter}.>")
    s.para()
    s.say("Slowly, arm in arm, they {walked|went} to the goal. They were the very last. {And yet everyone stood up and clapped.|But the cheering was louder than for the winner.}", "Together they crossed the line, last of all. {For a moment it was quiet. Then everybody cheered.|The crowd cheered as if they had won.}")
    if prize:
        s.say("<w/kind: {The prize goes to the one who ran with the heart|Today, the biggest winner came last}.> And [w] gave [h.him] [o].", "The winner came over and looked at [o]. Then the winner put it in [h.his] [h.hands]. \"You have earned it,\" said the winner.")
    else:
        s.say("<w/kind: {You ran with your heart|Today, the biggest winner came last}.>", "<f/thanks: {You gave up the race for me|I will never forget that}.>")
    ending(s, "[^f] was well again in a week. And the next year? They {ran side by side and crossed the line together|both won}.", "{That evening|Later}, [h] thought about the race. [^h.he] had lost, and it felt like winning.", "<h/happy: Next year we will run {together|as a team}!> <f/happy: {Agreed|Yes, let us do that}!>",
           moral=("One can win a race and lose a friend, or the other way round.", "Not everyone who comes last has lost."))


def slow_wins(s):
    """The quick one boasts, the slow one keeps going."""
    s.world = "animal"
    s.cast(trait="lively impatient", friend=False)
    s.known["t"] = s.known["f"]
    s.facts["friend known"] = True
    s.place(tag="water trees grass")
    s.word("slow", "turtle", "snail", "mole", "toad", "hedgehog")
    opening(s)
    s.say("[^h] was very fast, and [h.he] told everyone about it. <h/proud: {Nobody is as fast as I am|I am the fastest of all}!>", "There was nobody faster than [h], and [h.he] never got tired of saying so.")
    s.say("[^day], [h] met an old [slow] on the path. <h/happy: How slow you are!>", "[^day], [h] laughed at an old [slow]. <h/happy: {A leaf falls faster than you walk|By the time you get home, it will be winter}!>")
    s.say("\"I get where I want to go,\" said the [slow]. \"{Shall we have a race|Shall we see who is first} at the end of the path?\"", "The [slow] only smiled. \"Then let us have a race {to the end of the path|to the old oak}.\"")
    s.para()
    s.say("[^h] {ran off like the wind|was out of sight in no time}. {Halfway there, [h.he] looked back. The [slow] was only a dot.|The [slow] took one step, and then another.}", "They began. [^h] {shot away|flew along the path}. The [slow] {crept|went} step by step.")
    s.say("<h/happy: {I have all the time in the world|I can take a little rest}.> [^h.he] lay down [p.spot] and {fell asleep|closed [h.his] eyes}.", "Halfway there, [h] saw {some ripe berries|a butterfly}. <h/happy: I have plenty of time.> And [h.he] forgot all about the race.")
    s.say("The [slow] went on, step by step. {It did not stop to rest. It did not stop to look.|Past the stones, past the ferns, past [h] it went.} Step by step by step.")
    s.para()
    s.say("When [h] {woke up|remembered the race}, the sun was {low|going down}. [^h.he] ran as [h.he] had never run before. But at the goal sat the [slow], {drinking tea|resting in the shade|looking at the sunset}.", "Suddenly [h] heard cheering. [^h.he] jumped up and ran. Too late! The [slow] had just crossed the line.")
    s.say("<h/surprised: {How did you do that|How can that be}?> \"{I only took one step after the other|I did not stop},\" said the [slow].", "\"{Good evening|There you are},\" said the [slow] in a friendly voice. [^h] {blushed|did not know what to say}.")
    s.maybe(0.6, "<h/sorry: I am sorry that I laughed at you.>", "<h/sorry: You won, and you won fairly.>")
    ending(s, "From then on, [h] never {laughed at|made fun of} anyone again for being slow.", "After that, the two of them often went for walks together. And [h] found out how much one sees when one goes slowly.", "Since that day, [h] boasted a little less and {finished what [h.he] began|listened a little more}.",
           moral=("Slow and steady wins the race.", "It is not enough to be fast. One must also keep going."))


def stage(s):
    """Stage fright before a show."""
    s.cast(trait="shy quiet dreamy gentle careful")
    s.word("act", "sing a song/song", "tell a poem/poem", "play the flute/tune", "dance/dance", "show a magic trick/trick", "play the drum/piece")
    opening(s)
    s.say("[^day], there was to be a {big|great} {show|feast} in the {village square|town hall}, and [h] was to [act]." if s.world == "human" else "[^day], there was to be a {big|great} {feast|party} {under the old oak|by the lake}, and [h] was to [act].")
    s.say("At home, [h] could do it {perfectly|without a mistake}. But in front of all those {eyes}?", "[^h] had practised {for weeks|every day}. But {the closer the day came, the smaller [h.he] felt|now [h.his] knees were weak}.")
    feel(s, "h", "scared", 0.6)
    s.say("<h/scared: {What if I forget everything|What if they all laugh}?>", "<h/scared: {I cannot do it|I want to go home}.>")
    s.para()
    s.say("[^f] {took [h.his] [h.hand]|stood beside [h.him]}. <f/kind: {Just look at me, and do it only for me|I will sit in the first row|Whoever is nervous does it well, because it is important to them}.>", "[^m] {whispered in [h.his] ear|gave [h.him] a hug}. <m/kind: {Close your eyes and think that you are at home|Take three deep breaths|Even the birds had to sing for the first time once}.>")
    s.say("Then it was time. [^h] {stepped out|went to the front}. It {was very quiet|grew still}. {So many eyes!|[^h.his] mouth was dry.|}", "[^h.his] name was called. With weak knees, [h] {went up|stepped forward}.")
    s.say("At first, [h.his] [h.hands] trembled. {Then [h.he] saw [f] in the first row, smiling.|Then [h.he] took three deep breaths.|Then [h.he] closed [h.his] eyes.} And it went {better and better|by itself}.",
          "[^h.he] began {very softly|too fast}. Then [h.he] made a mistake. {Nobody laughed.|[^f] nodded to [h.him].} So [h.he] simply went on, and suddenly it was {easy|fun}.")
    s.say("When the [act.2] was over, it was quiet for a moment. Then everybody {clapped|cheered}!", "And then it was over, and the clapping {would not end|was like rain on a roof}.")
    s.say("<f/happy: {You were wonderful|That was the best [act.2] of all}!>", "<h/happy: {Did you hear that? They liked it|I did it}!>")
    feel(s, "h", "proud", 0.5)
    ending(s, "<h/happy: When may I do it again?>", "That night, [h] could hardly sleep, but this time it was from joy.", "From then on, [h] was still a bit nervous each time. But [h.he] knew now that {it goes away|it is part of the fun}.",
           moral=("Courage does not mean having no fear.", "And all because [h.he] had dared to take one step."))


def stand_up(s):
    """Someone is teased; someone else speaks up."""
    s.cast(trait="quiet kind gentle brave shy", friend=False)
    s.place()
    s.facts["friend known"] = True
    s.thing("o", "worn")
    opening(s)
    s.say("[^day], [h] saw some {big boys|older children} [p.at]. They were laughing at a [f.look] [f.kind] {named|called} [f]." if s.world == "human" else "[^day], [h] saw two {crows|magpies|weasels} [p.at]. They were laughing at a [f.look] [f.kind] {named|called} [f].")
    s.say("\"What a funny [o.n]!\" they {shouted|jeered}. \"{Who made that, your grandmother|Did you find it in the rubbish}?\"", "\"Look at that [o.full]!\" they said. \"It is so ugly!\" One of them {pulled it away|threw it [p.spot]}.")
    s.say("[^f] {did not say anything|had tears in [f.his] eyes}.", "<f/sad: Please {stop|leave me alone}.> But they only laughed more.")
    s.para()
    s.say("[^h] {stood still|stopped}. [^h.his] heart beat {in [h.his] throat|fast}. {They were bigger than [h.he] was.|What if they laughed at [h.him], too?}", "[^h] wanted to {run away|look the other way}. But {[h.his] feet stayed where they were|it would not have been right}.")
    s.say("Then [h] {stepped between them|went over}. <h/firm: {Stop that|That is enough}! {It is not funny|I like it}.>", "<h/firm: {Leave [f.him] alone|Give it back}! {That is mean|It does not belong to you}.>")
    s.say("They stared at [h.him]. Nobody had ever said that to them. {One of them looked at the ground.|For a moment nobody said anything.} Then they {went away|turned and left}.", "\"We were only joking,\" said one of them, and looked at the ground. {Soon they were gone.|Then they went away.}")
    s.say("[^h] {picked up|brushed the dust off} [o] and gave it back to [f]. <h/kind: {I think it is beautiful|It suits you}.>", "[^h.his] knees were still shaking. <h/kind: Are you all right?>")
    s.say("<f/thanks: {Thank you. My grandmother really did make it|Nobody ever stood up for me before|You were so brave}.>", "<f/surprised: Were you not afraid?> <h/quiet: {Very much|Yes. But you were all alone}.>")
    s.para()
    s.say("From then on, the two went [p.to] together.", "They {sat down [p.spot2]|went for a walk} and talked {until the evening|for a long time}, and that was how they became friends.")
    ending(s, "A few days later, one of the others came by. \"I am sorry,\" he said. \"{Can I play with you|May I sit with you}?\" [^h] looked at [f]. <f/kind: {Yes, sit down|All right}.>", "The next day, [h] wore a very funny hat. <h/happy: Now there are two of us!>", "And {nobody|not one of them} ever laughed at the [o.n] again.",
           moral=("One voice is enough to {make a difference|stop something bad}.", "Brave is not the one who is big, but the one who does what is right."))


def dare_no(s):
    """A foolish dare is turned down."""
    s.cast(trait="careful clever brave playful quiet")
    s.place(tag="water wind trees")
    s.word("dare", "climb to the top of the old dead tree/the tree was rotten/a branch broke off", "jump from the high rock/the water was shallow/a stone came loose", "walk across the thin ice/the ice was thin/the ice cracked" if s.season == "winter" else "cross the river on the slippery stones/the stones were wet/a stone turned over", "go into the deep cave without a light/it was pitch dark/some rocks fell down")
    opening(s)
    s.say("[^day], [h] and [f] were playing [p.at]. <f/happy: I have an idea! Let us [dare]!>", "[^day], [f] said, \"I dare you to [dare]!\"")
    s.say("[^h] looked. [^dare.2]. <h/worried: {I do not want to|That is too dangerous}.>", "[^h] thought about it. [^dare.2]. <h/firm: No, I {would rather not|do not want to}.>")
    s.say("<f/happy: {You are a scaredy-cat|You are just afraid}!>", "<f/angry: {Come on! Do not be so boring|Everybody else would do it}!>")
    feel(s, "h", "worried", 0.4)
    s.say("[^h] {swallowed|took a deep breath}. <h/firm: {I am not afraid to say no|You can call me what you like, I will not do it|It is stupid to get hurt for nothing}.>", "It was not easy, but [h] {shook [h.his] head|stayed firm}. <h/firm: {And you should not do it, either|Let us find something better}.>")
    s.para()
    s.say("Just then, [dare.3] with a loud crack. Both of them {jumped back|stared}. {Nobody had even touched it.|}", "In that moment, there was a loud noise, and [dare.3]. They {looked at each other|turned pale}.")
    s.say("<f/scared: {That could have been me}.>", "[^f] {said nothing for a long time|turned white}. <f/sorry: {You were right|I am glad that you said no}.>")
    s.say("<h/kind: {Come, I know a better game|Let us build a dam instead|I will race you home}!>", "<h/happy: {We can have fun without breaking our necks|Let us play hide-and-seek instead}!>")
    s.say("And that is what they did. {They laughed until the evening.|It was a wonderful afternoon.}", "They played until the sun went down.")
    ending(s, "On the way home, [f] said, \"It was braver to say no.\" [^h] {smiled|only grinned}.", "And [f] never dared anyone to do {such a thing|anything like that} again.", "They told [m] about it. <m/kind: {I am proud of both of you|That was a wise no}.>",
           moral=("Sometimes the bravest word is a small one: no.", "A true friend does not need a foolish dare."))


PLOTS = [(dark, "human animal fairy", 3), (thunder, "human animal fairy", 2), (learn_skill, "human animal fairy", 4), (race, "human animal fairy", 3),
         (slow_wins, "animal", 2), (stage, "human animal fairy", 3), (stand_up, "human animal fairy", 2), (dare_no, "human animal", 2)]
