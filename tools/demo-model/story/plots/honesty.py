"""Promises, small lies, and what is right."""

from ..beats import ending, feel, opening


def small_lie(s):
    """A small lie grows, and is owned up to."""
    s.cast(trait="playful impatient lively dreamy forgetful")
    s.food("e", "sweet")
    s.word("blame", "the cat", "the dog", "the wind", "the parrot", "a mouse") if s.world == "human" else s.word("blame", "the magpie", "the wind", "the raven", "a stranger", "the jackdaw")
    opening(s)
    s.say("[^day], [m] had made [e.some] {for the guests|for the feast}. <m/firm: {Do not eat any before supper|Nobody touches [e.them] until tonight}.>", "[^day], [e.some] stood on the table. [^m] had made [e.them] for {a sick neighbour|the party}." if s.known["e"].it == "they" else "[^day], a fresh [e.n] stood on the table. [^m] had made it for {a sick neighbour|the party}." if s.known["e"].some.startswith("a ") else "[^day], a bowl of [e.n] stood on the table. [^m] had made it for {a sick neighbour|the party}.")
    s.say("But [e] smelled so good! [^h] {took just a tiny bite|only wanted to try a tiny bite}. Then another. {And another.|} {Suddenly, half of it was gone.|Soon there was hardly anything left.}" if s.known["e"].it == "it" else "But [e] smelled so good! [^h] {took just one|only wanted to try one}. Then another. {And another.|} Soon there were hardly any left.")
    s.para()
    s.say("[^m] came in. <m/surprised: Who {ate [e]|did that}?> [^h] {turned red|felt hot}. <h: {It was [blame]|I saw [blame] do it}.>", "<m/surprised: {What happened to [e]|Where did [e] go}?> <h/quiet: {That was [blame]|It was not me. It was [blame]}.>")
    s.say("[^m] {frowned|looked at [h.him] for a long time}. <m: I see.>", "So {everybody was angry with|they all scolded} [blame]." if s.known["blame"].parts[0] not in ("the wind", "a stranger", "a mouse") else "[^m] shook [m.his] head and said no more.")
    s.say("[^h] should have been glad. But [h.his] stomach hurt, and not from the [e.n].", "But [h] could not {play|laugh}. The lie sat in [h.his] throat like a stone.", "All afternoon, [h] felt bad. {Even playing with [f] was no fun.|The lie grew heavier and heavier.}")
    s.maybe(0.6, "<f/curious: What is the matter with you?> [^h] told [f.him] everything. <f/kind: {You will only feel better when you tell the truth|I would go and say it}.>")
    s.para()
    s.say("In the evening, [h] {could not stand it any more|went to [m]}. <h/sorry: {It was me|I was the one}. I ate [e], and I lied to you.>", "At bedtime, [h] began to cry. <h/sorry: I have to tell you something. {It was not [blame]|I told a lie}. It was me.>")
    s.say("[^m] {sat down|took [h.him] in [m.his] arms}. <m/kind: {I knew it. There were crumbs on your chin|I was waiting for you to tell me}.>", "<m/kind: {Thank you for telling me the truth|That was not easy for you}. {I am not angry any more|Come here}.>")
    s.say("The next day, [h] helped to make [e.some] again, {and this time [h.he] ate only what was on [h.his] own plate|and carried [e.them] to the guests [h.himself]}.", "To make up for it, [h] {washed all the dishes|helped in the kitchen the whole next day}.")
    ending(s, "That night, [h] slept {well|deeply}, for [h.his] heart was light again.", "And [h.his] stomach did not hurt any more.", "And from then on, when [h] had done something wrong, [h.he] said so at once.",
           moral=("A lie may be small, but it weighs a lot.", "The truth is hard to say, but it is easier to carry."))


def cry_wolf(s):
    """Someone plays a trick too often."""
    s.cast(trait="playful lively cheerful", friend=False)
    s.place(tag="grass water wind")
    s.word("alarm", "Fire! The barn is burning/fire", "Help! I am falling into the water/water", "A wolf! A wolf is coming/wolf", "Bees! A thousand bees/bees", "Help! I am stuck/hole")
    if s.world == "animal":
        s.word("alarm", "Help! I am falling into the water/water", "The fox! The fox is coming/fox" if s.known["h"].kind != "fox" else "The wolf! The wolf is coming/wolf", "Bees! A thousand bees/bees", "Help! I am stuck/hole")
    opening(s)
    s.say("[^h] loved to play tricks. {The best trick was to shout as loudly as [h.he] could.|}", "[^h] was bored. {Nothing ever happened.|All day long, nothing happened.} So [h.he] thought of a trick.")
    s.say("[^day], [p.at], [h.he] shouted, \"[alarm]!\" Everyone came running. {They had dropped everything.|They were out of breath.} But there was {nothing|no danger at all}. [^h] {laughed until [h.he] cried|held [h.his] belly with laughter}.", "[^day], [h.he] ran [p.to] and shouted, \"[alarm]!\" {All the neighbours|Everybody} came to help. <h/happy: I was only joking!>")
    s.say("<w/angry: {That is not funny|One day nobody will believe you}.>", "They {shook their heads|were not amused} and went back to work.")
    s.say("The next day, [h] did it again. And again they came running, and again [h] laughed.", "Two days later, [h.he] played the same trick again. {It worked once more.|Fewer came this time.}")
    s.para()
    s.say("But then, one {evening|afternoon}, it really happened. {This time it was no joke.|} <h/scared: [alarm]! {Help|Please help me}!>")
    s.say("Everyone heard it. \"{It is only [h] again|[h] is playing tricks again},\" they said, and nobody came.", "\"{We will not fall for that again|Not this time},\" said the others, and they went on with their work.")
    feel(s, "h", "scared", 0.8)
    s.say("Only [wintro] {listened|stopped}. That voice sounded different. [^w] {ran|went to look}, and came just in time.", "[^h] shouted until [h.he] had no voice left. At last, [w] came to look. <w/surprised: It is true this time!>")
    s.say("[^w] {pulled [h.him] out of danger|helped [h.him]}, and {everything ended well|nobody was hurt}. {But [h] was still shaking.|}", "{In the end, everything was all right.|With a lot of luck, nobody was hurt.} But {it had been very close|[h] would never forget it}.")
    s.say("<h/sorry: Why did the others not come?> <w/kind: {Because you called so often when you did not need them|If you lie often, even the truth sounds like a lie}.>", "<h/sorry: {I will never do it again|I understand now}.>")
    ending(s, "From that day on, [h] only called for help when [h.he] really needed it.", "[^h] said sorry to everybody, one by one. It took {a long time|some weeks} until they trusted [h.him] again, but they did.", "[^h] still plays tricks today, but only {funny ones|such as make everyone laugh}.",
           moral=("One who often lies is not believed, even when telling the truth.", "Trust is quickly broken and only slowly mended."))


def promise(s):
    """A promise that is hard to keep, and is kept."""
    s.cast(trait="kind helpful careful lively playful forgetful")
    s.place()
    s.word("duty", "water the flowers every day/the flowers would dry up", "feed the hens in the evening/the hens would be hungry", "visit old [w] on Saturday/[w] would wait in vain", "bring back the book/there would be no story that night", "look after the baby bird/the little bird would be hungry", "light the lamp by the path/nobody would find the way")
    opening(s)
    s.word("do", *[s.render(s.known["duty"].parts[0])])
    s.word("else", *[s.render(s.known["duty"].parts[1])])
    s.say("[^day], [f] had to go away {for a week|for some days}. <f/worried: Will you [do] for me? {It is important.|}> <h/firm: I promise.>", "\"I promise that I will [do],\" [h] had said to [f]. And a promise is a promise.")
    s.say("At first, it was easy. {[^h] did it and went out to play.|}", "For some days, everything went well.")
    s.para()
    s.word("fun", "a fair with a big wheel/the fair", "a puppet show/the puppet show", "a great feast with music/the feast", "a boat race/the boat race", "a circus/the circus", "a dance with lanterns/the dance")
    s.say("But then there was [fun] [p.at]. {All [h.his] friends went.|Everyone wanted to go.} <h/think: {Just this once|It will not matter if I forget it today}.>", "Then, one day, there was [fun] [p.at]. {\"Come with us!\" the others called.|} [^h] wanted to go so much!")
    s.say("[^h] {was already at the door|had already put on [h.his] shoes}." if s.world == "human" else "[^h] was already on [h.his] way.", "[^h] {took ten steps|ran down the path}. Then [h.he] stopped.")
    s.say("If [h.he] did not keep [h.his] word, [else]. {And what would [f] say?|}", "Then [h.he] thought of the promise. If [h.he] went now, [else].")
    s.say("[^h] {sighed|looked after the others}. <h/firm: {A promise is a promise|I gave my word}.> And [h.he] turned around.", "It was hard. But [h] {turned back|let the others go}.")
    s.say("[^h.he] did what [h.he] had promised, {slowly and well|carefully}. {From far away came music and laughter.|The sun went down.}", "While the others {laughed and played|had fun}, [h] did [h.his] duty. {It took a long time.|It was very quiet.}")
    s.para()
    s.say("When [f] came back, {everything was as it should be|all was well}. <f/happy: {You kept your word|I knew that I could count on you}!>", "The next day, [f] came home. [^f.he] looked around and smiled. <f/thanks: {You did it every single day|You are a true friend}.>")
    s.say("[^f] had heard about [fun.2], too. <f/kind: You stayed here because of me. {Come, there is still one more day. We will go together|Look what I brought you}!>", "And then [f] took [h] by the [h.hand]. <f/happy: {The fun is not over yet|It goes on until tonight}. Come, we will go together!>")
    ending(s, "And it was twice as {nice|much fun} as it would have been alone.", "And from then on, everyone knew: when [h] promises something, it is done.", "[^h] was glad. A kept promise {is a warm feeling|feels better than any fair}.",
           moral=("A promise is small to give and big to keep.", "One can always play later, but one's word is given only once."))


def secret(s):
    """A secret is told on and causes trouble."""
    s.cast(trait="lively cheerful playful kind")
    s.place()
    s.word("sec", "was afraid of the dark", "could not swim", "still slept with a toy rabbit", "wrote poems", "had never been to the sea", "could not whistle")
    opening(s)
    if not s.facts["met"]:
        s.facts["friend known"] = True
        s.say("[^h.his] best friend was [f].")
    s.say("[^day], [f] {whispered something in [h.his] ear|told [h.him] a secret}: [f.he] [sec]. <f/quiet: {Do not tell anyone|It is our secret}.> <h/firm: {I will be silent as a fish|My lips are sealed}.>", "[^day], the two sat [p.spot]. <f/quiet: I will tell you a secret. But you must {keep it|not tell anyone}.> And [f.he] told [h] that [f.he] [sec].")
    s.say("But a secret wants to get out. The next day, [h] met the others [p.at], and before [h.he] knew it, [h.he] had said it out loud.")
    s.say("They {giggled|laughed}. And just then, [f] came around the corner. {[^f.he] had heard everything.|}", "Soon everybody knew it. {When [f] came, they giggled.|}")
    s.say("[^f] looked at [h] with {big, sad eyes|tears in [f.his] eyes} and {ran away|went home without a word}.", "<f/sad: You promised!> And [f.he] ran away.")
    feel(s, "h", "sorry")
    s.para()
    s.say("[^h] {told [m] about it|did not eat any supper}. <m/kind: {A secret is like an egg: if you drop it, you cannot make it whole again. But you can say sorry|Words cannot be caught again. But you can make it good}.>", "That night, [h] could not sleep. <h/think: How can I make it good again?>")
    s.say("The next day, [h] went [p.to] and {climbed on a bench|stood in front of all the others}. <h/firm: {Yesterday I did something mean|I told a secret that was not mine}. {And now I will tell you one of my own: I am afraid of spiders|I am sorry for it, and I want you all to know}.>", "The next morning, [h] went to [f]. <h/sorry: {I broke my promise. I am so sorry|I hurt you, and I am sorry}. {To make it fair, I will tell you a secret of mine|You can be angry with me as long as you like}.>")
    s.say("[^f] {was silent for a while|thought about it}. Then {a smile stole over [f.his] face|[f.he] nodded}. <f/kind: {All right|I forgive you}. But {never do it again|next time, bite your tongue}.>", "<f/quiet: {That was brave of you|It takes courage to say that}.> And [f.he] held out [f.his] [f.hand].")
    s.maybe(0.6, "And it turned out that nobody thought badly of [f] at all.")
    ending(s, "Since then, [h] has been told many secrets. And [h.he] has kept every one of them.", "The two of them {built a small box|buried a box [p.spot2]} for their secrets, and only they know where it is.", "And what was the secret of [h]? That I cannot tell you, of course.",
           moral=("A secret is safe only in a quiet heart.", "Trust is a thing that one must not drop."))


def greedy(s):
    """Wanting too much, and ending up with less."""
    s.cast(trait="impatient stubborn lively clever", friend=True)
    s.place(tag="fruit trees grass")
    s.food("e", "raw")
    opening(s)
    s.say("[^day], [h] and [f] found {a whole heap of|more than enough} [e.n] [p.at].", "[^day], [h] and [f] went [p.to] and found [e.n], {more than they could carry|enough for everyone}." if s.known["e"].it == "they" else "[^day], [h] and [f] found a basket full of [e.n] [p.at].")
    s.say("<f/happy: {Let us share|Half for you and half for me}!> But [h] wanted {to have it all|more}. <h/angry: {I saw them first|They are all mine}!>" if s.known["e"].it == "they" else "<f/happy: Let us share!> But [h] wanted to have it all. <h/angry: I saw it first!>")
    s.say("[^h.he] {filled [h.his] bag to the top|took as much as [h.he] could carry}. The bag {grew so heavy that [h.he] could hardly lift it|was as big as [h.he] was}. [^f] took only {a little|what [f.he] could eat}.", "[^h] filled both pockets and a big bag. {[^f] shook [f.his] head and went home.|[^f] took just a handful.}")
    s.para()
    s.say("On the way home, the bag was {heavier with every step|terribly heavy}. [^h] {puffed and sweated|had to stop again and again}. But [h.he] did not want to leave anything behind.", "[^h] {dragged|pulled} the bag over {sticks and stones|hill and dale}. {[^h.he] did not see the little hole in it.|}")
    s.say("Then, {on the little bridge|halfway home}, the bag tore. Everything {rolled into the water|fell into the mud}. {Splash, splash, splash!|All of it was gone.}", "And when [h.he] got home and opened the bag, it was empty! There had been a hole in it, and everything had fallen out on the way.")
    s.say("[^h] sat down and {cried|looked at the empty bag}. <h/sad: {Now I have nothing at all|All that work for nothing}.>")
    s.para()
    s.say("Then [f] came. [^f.he] {sat down next to [h.him]|saw the empty bag}. <f/kind: {Here, take half of mine|I still have some. Let us share}.>", "There was a knock at the door. It was [f], with a small bowl. <f/kind: {I have enough for two|Let us share}.>")
    s.say("[^h] was ashamed. <h/sorry: {But I gave you nothing|Why are you so kind to me}?> <f/kind: {Because we are friends|It tastes better with two}.>", "<h/sorry: I was greedy. I am sorry.> <f/kind: {Eat, before I eat it all myself|Never mind}!>")
    s.say("They ate together, {and it was just enough|and both of them had enough}.", "It was not much, but {nothing had ever tasted so good|it was enough}.")
    ending(s, "The next day, they went [p.to] again. This time, [h] took a small basket, and {gave the first handful to [f]|half of it was for [f]}.", "And whenever [h] found something good after that, [h.he] first thought of [f].", "[^h] mended the hole in the bag. But [h.he] never filled it to the top again.",
           moral=("One who wants everything often ends up with nothing.", "Enough is as good as a feast."))


def borrowed(s):
    """Taking without asking."""
    s.cast(trait="impatient playful curious lively")
    s.thing("o", "tool dear toy")
    s.place()
    s.known["x"] = s.known[s.rng.choice("mwf")]
    opening(s)
    s.say("[^x] had [o.a], and [h] {thought it was wonderful|wanted to try it so much}.", "[^h] often looked at the [o.full] that belonged to [x]. <h/think: {If only I could have it for one hour|Just once I would like to try it}.>")
    s.say("[^day], [x] was {not there|away}, and [o] {lay on the table|lay in the sun|stood by the door}. [^h] looked to the left. [^h.he] looked to the right. <h/think: {I will only borrow it|I will bring it right back}.>", "[^day], nobody was {around|looking}. [^h] took [o] {without asking|just for a little while}.")
    s.say("[^h.he] took it [p.to] and played with it {all day|for a long time}. {But it was not as much fun as [h.he] had thought.|At every noise, [h.he] jumped.}", "[^h.he] ran [p.to] with it. {How nice it was!|} But then, when [h.he] was not looking, it {fell into a puddle|got a big scratch|rolled down a slope and was gone}.")
    gone = "gone" in s.paragraphs[-1][-1]
    s.para()
    s.say("When [h] came back, [x] was {looking everywhere|walking up and down}. <x/sad: Have you seen my [o.n]? {I cannot find it anywhere|I need it so much}.>")
    s.say("[^h] felt {hot and cold|very small}. {[^h.he] could say no.|It would be easy to say nothing.}", "[^h] hid [h.his] [h.hands] behind [h.his] back.")
    s.say("<h/sorry: I took it. {I wanted to bring it back|I should have asked you first}" + (". And now it is lost.>" if gone else ".>"), "Then [h.he] {told [x] everything|took a deep breath}. <h/sorry: {I took it without asking|It was me}" + (", and I lost it.>" if gone else ".>"))
    s.say("<x/firm: {If you had asked, I would have said yes|You only had to ask me}.>", "[^x] was {quiet|disappointed}. <x: I would have lent it to you, you know.>")
    if gone:
        s.say("Together they went back and searched until {it was almost dark|the moon came out}. And there it was, [p.spot]!", "[^h] went back and looked [p.spot] and [p.spot2]. At last, [h.he] found it [p.spot3].")
    else:
        s.say("[^h] {cleaned it until it shone|rubbed it dry with a soft cloth} and gave it back.", "To make up for it, [h] helped [x] {the whole next day|in the garden all week}.")
    ending(s, "The next time, [h] asked. And [x] said, \"{Of course|Yes, take it}.\" It was {as easy as that|so easy}.", "After that, [h] always asked first. And most of the time, the answer was yes.", "<x/kind: Come, we will use it together.> And so they did.",
           moral=("Asking costs nothing.", "What one takes in secret never gives real joy."))


PLOTS = [(small_lie, "human animal fairy", 3), (cry_wolf, "human animal", 3), (promise, "human animal fairy", 3), (secret, "human animal fairy", 2),
         (greedy, "human animal fairy", 3), (borrowed, "human animal fairy", 3)]
