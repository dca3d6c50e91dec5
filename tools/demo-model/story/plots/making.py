"""Making and mending: cooking, building, repairing, inventing."""

from ..beats import ending, feel, opening


def cooking(s):
    """Cooking together, with something going wrong."""
    s.cast(trait="helpful impatient curious cheerful lively forgetful")
    s.food("e", "cook")
    s.word("slip", "a whole bag of flour fell on the floor/flour/white from head to toe", "an egg rolled off the table and broke/egg/sticky all over", "the milk tipped over/milk/wet up to the elbows",
           "salt went in instead of sugar/salt/puzzled", "the spoon flew across the kitchen/the batter/covered with spots", "the butter slid off the table/the butter/slippery all over")
    opening(s)
    s.say("[^day], [m] said, \"Let us make [e.some] {together|today|for supper}.\"",
          "[^day], {guests were coming|it was too cold to play outside}, and [m] wanted to make [e.some]. <h/happy: {May I help|Can I help you}?>",
          "[^day], [h] was hungry. <h/happy: Can we make [e.some]?> <m/kind: {Of course|What a good idea}. {Wash your [h.hands] first|But you must help me}.>")
    s.say("{They put on their aprons.|[^h] put on an apron that was much too big.} [^m] {read out|knew} the recipe, and [h] {fetched the big bowl|found the spoons|got everything ready}.", "[^h] {climbed on a stool|rolled up [h.his] sleeves}. {First they measured, then they stirred.|[^m] measured, and [h] stirred.}")
    s.para()
    s.say("[^h] stirred {faster and faster|with all [h.his] might}. And then it happened: [slip]!", "{Everything went well at first.|It went very well.} But then [h] {was not careful|wanted to do everything at once}, and [slip].", "<m/kind: {Slowly|Careful}!> But it was too late. [^slip]!")
    s.say("For a moment, it was very quiet. [^h] was [slip.3]. <h/sorry: {Oh dear. I am sorry|I did not mean to do that}.>", "[^h] looked at [m] with big eyes. <h/sorry: {Is everything spoiled now|Are you angry with me}?>")
    s.say("But [m] {began to laugh|only smiled}. <m/kind: {That happens to the best cooks|When I was little, I once did the very same thing|There is no cooking without a mess}.>", "[^m] looked at [h], and then [m.he] laughed until [m.he] had to sit down.")
    s.say("Together they {cleaned up|wiped the floor} and began again. {This time, [h] was very careful.|This time it went slowly and well.}", "They {wiped everything clean|swept the floor}, and then they tried it once more, {slowly this time|step by step}.")
    s.para()
    s.say("Soon {a wonderful smell|the best smell in the world} filled the {kitchen|whole house}.", "Then they had to wait. That was the hardest part. {[^h] looked every minute.|It smelled better and better.}")
    s.say("{At last|Finally}, [e] [e.was] {ready|done}. [^h] took the first bite. <h/happy: {This is the best I have ever eaten|We are the best cooks in the world}!>", "At last they sat down at the table. [^e] [e.was] not perfect, but [e.it] tasted {wonderful|delicious}.")
    s.maybe(0.5, "[^h] took some to [w], {who lived nearby|who was very happy about it}.", "There was even enough for [f]. <f/happy: Oh! Can you teach me how to make it?>")
    ending(s, "<h/happy: {What shall we make tomorrow|May I cook again tomorrow}?>", "There was {flour in [h.his] hair|a spot on [h.his] nose} for the rest of the day, but nobody told [h.him].", "In the evening, [h] wrote the recipe down, with a drawing. At the bottom it said: \"Stir slowly!\"",
           moral=("A little mess is not so bad when one laughs about it.", "Things taste best when one has made them together."))


def broken(s):
    """Something dear breaks and is mended."""
    s.cast(trait="careful clever lively dreamy playful")
    s.thing("o", "breaks")
    s.known["x"] = s.known[s.rng.choice("mmf")]
    opening(s)
    s.say("[^x] had [o.a] that [x.he] loved {very much|dearly}. {It was very old.|It had come from far away.|Nobody was allowed to touch it.}", "On the shelf stood [o.a]. It belonged to [x], and {it was very old|[x.he] was proud of it}.")
    s.say("[^day], [h] was {dancing around|playing ball in the house|chasing a fly}. {Crash!|Bump!} [^o] fell and broke{ into two pieces|}.", "[^day], [h] only wanted to {look at it|dust it|hold it for a moment}. But it slipped out of [h.his] [h.hands], and crack! It was broken.")
    feel(s, "h", "sorry")
    s.say("<h/worried: {What have I done|Oh no}! [^x.he] will be so sad!>", "[^h] {picked up the pieces|looked at the pieces}. [^h.his] [h.hands] trembled.")
    s.para()
    s.say("[^h] could have hidden the pieces. But {[h.he] did not want to lie|that would not have been right}. So [h.he] {went to [x]|took a deep breath and went to [x]}.", "At first, [h] {wanted to hide it under the bed|thought of running away}. Then [h.he] {gathered all [h.his] courage|took the pieces} and went to [x].")
    s.say("<h/sorry: I have broken your [o.n]. {It was an accident|I am so sorry|I did not mean to}.>")
    s.say("[^x] was {quiet for a moment|sad}. Then [x.he] {nodded|took [h.his] [h.hand]}. <x/kind: {Thank you for telling me|It is good that you told me yourself}. {Come, let us see if we can mend it|Perhaps it can be mended}.>", "[^x] {sighed|looked at the pieces}. <x/kind: {It is only a thing|Things can be mended}. {You are more important|Come, we will try it}.>")
    s.word("fixer", "glue", "a fine thread and some glue", "a tiny screw", "a drop of glue and a lot of patience", "a bit of wire and some glue")
    s.say("They sat down at the table with [fixer]. [^h] held the pieces, and [x] {put them together|worked very carefully}. {It took all afternoon.|Piece by piece, it came together.}", "With [fixer], they put it together again, piece by piece. {[^h] held [h.his] breath.|It was like a puzzle.}",
          "They took it to [w]. <w/kind: {Hm, that is not so bad|I have seen worse}. Give me [fixer].> And [w] {began to work|showed them how to do it}.")
    s.say("In the evening, [o] {stood|lay} on the table again, whole. {Only a thin line could be seen.|One could hardly see the crack.}", "At last it was done. {It looked almost like new.|There was a small crack, like a little river.}")
    ending(s, "<x/kind: {I like it even better now|Now it has a story}.>", "And whenever [x] looked at the little crack, [x.he] thought of {that afternoon|how brave [h] had been}, and smiled.", "From then on, [h] played {outside|more carefully}, and [o] {stood|stayed} safely in its place.",
           moral=("Almost everything can be mended, if one is honest.", "Telling the truth had been hard, but afterwards [h.his] heart was light."))


def inventor(s):
    """A clever machine for a lazy job that goes too well."""
    s.cast(trait="clever curious dreamy impatient")
    s.word("job", "water the flowers/watered the whole house/the flowers", "pick apples/threw apples in all directions/the apples", "butter bread/buttered the walls/the bread", "sweep the floor/swept up the cat's dinner and all the socks/the floor", "wash the dishes/made bubbles up to the ceiling/the dishes", "stir the soup/sent soup up to the ceiling/the soup")
    opening(s)
    s.say("Every day, [h] had to [job], and [h.he] {did not like it at all|found it very boring}. <h/think: {There must be an easier way|A machine should do that}.>", "[^h] loved to {build things|invent things}. [^day], [m] asked [h.him] to [job]. <h/happy: {I will build a machine for that|I have an idea}!>")
    s.say("[^h.he] {collected|looked for} {old wheels|string}, {a bucket|a broken umbrella|three springs} and {a bicycle bell|a wooden spoon|a rusty clock}. Then [h.he] {hammered and screwed|worked} {all night|for two days}.", "From {an old clock|a wheelbarrow}, {a long rope|some springs} and {two spoons|a kettle}, [h.he] built a machine. {It was taller than [h.he] was.|It looked very strange.}")
    s.say("[^f] came to look. <f/curious: What {is that|does it do}?> <h/proud: {Wait and see|It does all my work for me}!>", "<f/worried: Are you sure that it works?> <h/proud: {Of course|Just watch}!>")
    s.para()
    s.say("[^h] pulled the {lever|string}. {The machine puffed. It hissed. It shook.|Clack, clack, clack, went the machine.} And it began to [job]!", "[^h.he] turned the {key|wheel}. {With a loud clatter|With a puff of smoke}, the machine began to move. It worked!")
    s.say("But then it went faster and faster. It [job.2]! <f/loud: {Stop it|Make it stop}!> <h/scared: {I forgot to build a stop button|I do not know how}!>", "But it did not stop. It [job.2]. {[^h] pulled the lever. The lever broke off.|}")
    s.say("[^f] {threw a blanket over it|pulled out the rope}, and [h] {jumped on the wheel|held on to the wheel with all [h.his] might}. {At last|With one last puff}, it stood still.", "They ran {around|after it} until [h] {could pull out the spring|cut the string}. The machine {sighed|said \"pling\"} and stood still.")
    s.para()
    s.say("They looked around. {What a mess!|Everything was upside down.} Then they looked at each other and {burst out laughing|had to laugh}.", "It took {three hours|the whole afternoon} to clean up. <f/happy: {Next time, build a machine that cleans up|That was the funniest thing I ever saw}!>")
    s.say("<m/kind: {A good idea needs two more things: patience and a stop button|You are a real inventor. But every inventor cleans up after work}.>", "[^m] {shook [m.his] head|laughed}. <m/kind: Perhaps you should begin with something smaller.>")
    ending(s, "The next machine that [h] built was very small. It could only ring a bell. But it had a big red button on it that said \"Stop\".", "The next day, [h] did it by hand. {It took only ten minutes.|It was not so bad after all.} But in [h.his] head, a new machine was already turning its wheels.", "[^h] made a new drawing at once. This time, the stop button was the first thing that [h.he] drew.",
           moral=("Every inventor has to {begin somewhere|learn from mistakes}.",))


def treehouse(s):
    """Building something big with bits from everybody."""
    s.cast(trait="stubborn cheerful lively clever dreamy")
    s.place(tag="trees grass water")
    s.word("b", "a tree house/the tree house/slept in it", "a boat/the boat/sailed across the water in it", "a little stage/the stage/put on a play on it", "a swing for two/the swing/flew up to the leaves on it", "a playhouse/the playhouse/had tea in it", "a hut/the hut/spent the night in it", "a soapbox car/the car/rolled down the hill in it")
    opening(s)
    s.say("[^h] had a dream: [h.he] wanted to build [b], right there {by the old oak|near [h.his] [h.home]}.", "[^day], [h] {drew a plan|had an idea}. <h/happy: I will build [b]!>")
    s.say("But [h.he] had {no boards|only three nails and a hammer|no wood}. <h/sad: That is not enough.>", "But when [h.he] looked at what [h.he] had, there were only {two old boards|a rusty saw} and {a rope|some nails}.")
    s.say("[^f] {laughed|looked at the plan}. <f/happy: {Let us ask around|Everyone has something that they do not need}!>", "<f/firm: {Then we will ask the others|Let us see what we can find}.>")
    s.para()
    s.say("They went from door to door. [^w] gave them {an old door|some boards|a window without glass}. {Somebody else|A neighbour} had {nails|paint|rope}. And [m] {found a ladder|gave them a curtain|lent them the good saw}.", "[^wintro] had {some boards left over|a heap of old wood}. <w/kind: {Take what you need|I was young once, too}.>")
    s.say("Then the work began. They {sawed and hammered|measured and hammered} {from morning till night|for a whole week}. {[^h] hit [h.his] thumb twice.|Once, everything fell down, and they had to begin again.|}", "They worked hard. {[^f] held the boards, and [h] drove in the nails.|It was harder than they had thought.} {On the third day, it rained, and they almost gave up.|}")
    s.maybe(0.5, "<h/sad: It will never be finished.> <f/kind: {Look how much we have done already|One more board. And then one more}.>")
    s.say("But {at the end of the week|one evening}, it was done. [^b.2] was {green, red and blue|a bit crooked}, because {everyone had given a different colour|no two boards were the same}. <h/happy: It is {perfect|beautiful}!>", "At last, the final nail was in. They stepped back. {It was crooked, colourful and wonderful.|It was even better than on the plan.}")
    s.para()
    s.say("Everyone who had helped came to see it. {[^m] brought lemonade.|There was cake.|}", "<h/firm: {It belongs to all of us|Everyone who gave a board may come whenever they like}.>")
    ending(s, "That evening, [h] and [f] [b.3] for the first time.", "And on the first warm night, they [b.3] and {looked at the stars|told stories}.", "On a little sign they wrote: \"{Built by everyone|Everyone is welcome}\".",
           moral=("Many small gifts can make a big thing.", "A dream needs friends who help to build it."))


def painting(s):
    """A picture goes wrong and becomes something better."""
    s.cast(trait="dreamy quiet careful impatient shy", friend=True)
    s.word("pic", "a horse/a dragon", "the sun/a big flower", "a house/a castle in the clouds", "a cat/a tiger in the grass", "the sea/a sky full of whales", "a tree/a giant with green hair", "a boat/a flying fish")
    s.word("spot", "a big blue blot", "a green splash", "a long red line", "a black drop of ink", "a yellow stain", "three brown dots")
    opening(s)
    s.say("[^day], [h] wanted to paint [pic] for [m]. It was to be the most beautiful picture in the world.", "[^day], there was a painting contest, and [h] wanted to paint [pic].")
    s.say("[^h.he] {worked all morning|painted very carefully}. {Every line had to be right.|[^h.he] did not even stop to eat.}", "[^h.he] {chose the best colours|sharpened [h.his] pencils} and began. It was going very well.")
    s.say("Then {a drop fell from the brush|someone bumped into the table|a gust of wind came in}, and there was [spot] in the middle of the picture.", "But then [h.his] [h.hand] slipped. Right in the middle was [spot].")
    s.say("<h/sad: {Now it is ruined|Everything is spoiled}!> [^h.he] wanted to {tear it up|throw it away}.", "[^h] {put down the brush|threw the brush into the corner}. <h/angry: It is ruined!>")
    s.para()
    s.say("[^f] {bent over the table|came to look}. <f/curious: {Wait|Stop}! {Turn it upside down|Look at it from here}. Do you see it?>", "<f/curious: {Hm|Wait}. That is not a blot. {That is an eye|That looks like a wing}.>")
    s.say("[^h] {wiped [h.his] eyes|tilted [h.his] head} and looked. {Slowly, [h.he] began to see it.|And indeed, there was something in it.}", "At first, [h] saw only the mistake. But the longer [h.he] looked, the more [h.he] saw.")
    s.say("[^h.he] took the brush again. A line here, a dot there. And [pic] became [pic.2]!", "[^h.he] {dipped the brush into the paint|took all the colours}. Soon, there was no mistake any more, but [pic.2].")
    s.say("<f/happy: {That is much better than before|I have never seen anything like it}!>", "[^m] looked at it for a long time. <m/happy: How wonderful!>")
    ending(s, "The picture got a frame and hung {over the fireplace|beside the door}. And everyone who came in {stopped in front of it|asked who had painted it}.", "From then on, [h] was not afraid of mistakes any more. {Sometimes [h.he] even made a blot on purpose.|}", "<h/happy: Thank you, blot!>",
           moral=("Some mistakes are only the beginning of a better idea.", "Sometimes one only has to look at things in another way."))


def music(s):
    """An instrument, a sound that nobody likes, and a use for it."""
    s.cast(trait="cheerful lively stubborn shy dreamy")
    s.thing("o", "music")
    s.place(tag="grass trees water people")
    opening(s)
    s.say("[^day], [h] got [o.a]. {[^h.he] made music with it from morning till night.|From then on, there was no more peace.}" if s.known["o"].n != "music box" else "[^day], [h] got [o.a]. It played one little tune, and [h] wound it up from morning till night.", "[^h] {found [o.a] in an old trunk|had got [o.a] as a present}. {It was love at first sound.|[^h.he] could not stop playing with it.}")
    s.say("But {the others did not like it|not everyone was happy about it}. <w/angry: {What a noise|I want to sleep}!>", "[^w] {closed the window|covered [w.his] ears}. <m/kind: Perhaps it would sound better outside.>")
    feel(s, "h", "sad", 0.7)
    s.say("So [h] {went away|took [o]} and {played where nobody could hear it|went [p.to]}.", "So [h.he] put [o] {in a drawer|under the bed}, and it was quiet again.")
    s.para()
    s.say("A few days later, {a thick fog came up|fog lay over everything}. One could not see one's own [h.hand]. And [f] had {gone [p.to]|not come home}." if s.known["h"].hand in ("hand", "paw") else "A few days later, a thick fog came up. One could not see anything. And [f] had not come home.",
          "Then, one evening, it {snowed so hard|got so dark} that nobody could see the path any more, and [f] was still {out there|somewhere outside}.")
    s.say("\"How will [f.he] find the way?\" everybody asked. They {called|shouted}, but their voices were {too soft|lost in the wind}.", "{Everyone was worried.|They called and called.} No answer came.")
    s.say("Then [h] {ran for [o]|had an idea}. <h/firm: {[^f.he] will hear this|I know what is louder than a voice}!>", "<h/happy: My [o.n]!> [^h] ran {as fast as [h.he] could|to get it}.")
    s.say("[^h.he] stood on {the hill|the roof|a big stone} and {made as much noise as [h.he] could|let it sound, again and again}. It rang out far over {the fields|the land}.", "And then it rang out through the {fog|night}: again and again, without a pause.")
    s.say("And far away, [f] heard it. {Step by step, [f.he] followed the sound.|<f/happy: That is [h]! I must go that way.>} {Soon [f.he] stood at the door.|At last [f.he] came out of the dark, tired but safe.}")
    s.para()
    s.say("<f/thanks: {Your [o.n] saved me|I would never have found the way without your [o.n]}.>", "[^w] {coughed|came closer}. <w/sorry: {I take it all back. That is the most beautiful sound in the world|I am sorry for what I said}.>")
    ending(s, "From that day on, nobody complained any more when [h] {played|made music}. {Well, almost nobody.|}", "And on {Sundays|summer evenings}, they all asked [h] to play for them.", "From then on, [o] had a place of honour beside the door.",
           moral=("What seems like noise today may be a gift tomorrow.",))


PLOTS = [(cooking, "human animal fairy", 4), (broken, "human animal fairy", 4), (inventor, "human fairy", 3), (treehouse, "human animal fairy", 3),
         (painting, "human animal fairy", 3), (music, "human animal fairy", 2)]
