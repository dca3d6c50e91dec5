"""Friends: how they meet, share, quarrel and make up."""

from ..beats import aside, ending, feel, opening


def new_friend(s):
    """A newcomer is alone; someone takes the first step."""
    s.cast(trait="shy kind curious cheerful gentle quiet lively", friend=False)
    s.place()
    s.thing("o", "toy")
    s.food("e", "raw")
    s.facts["friend known"] = True
    opening(s)
    s.say("[^day], a new [f.kind] {came|moved} {to live nearby|into the house next door}. {[^f.his] name was [f].|Nobody knew anything about [f.him].}" if s.world == "human" else
          "[^day], a [f.look] [f.kind] came to live nearby. {[^f.his] name was [f].|[^f.his] name was [f], and nobody knew where [f.he] came from.}",
          "[^h] had no one to play with. [^day], [h.he] saw a [f.look] [f.kind] {sitting|standing} all alone [p.at].",
          "[^day], [h] {went|came} [p.to] and saw someone new. It was a [f.look] [f.kind] {named|called} [f].")
    s.say("[^f] {sat|stood} [p.spot] and {looked at the ground|watched the others play|did not say a word}.", "All day, [f] {sat|stayed} [p.spot], all alone.", "[^f] looked {sad|lonely|a little lost}.")
    s.para()
    if s.known["h"].trait in ("shy", "quiet"):
        s.say("[^h] wanted to say hello, but [h.he] was too shy. {[^h.his] feet would not move.|What if [f] did not like [h.him]?|}", "[^h] hid [p.spot2]. [^h.he] did not know what to say. {Three times [h.he] opened [h.his] mouth, and three times nothing came out.|}")
        s.say("{Then|At last} [h.he] {remembered|thought of} what [m] {always said|used to say}: \"{Every friend was once a stranger|One small word can open a big door|A smile is the shortest way to a friend}.\"",
              "<h/think: {Perhaps [f.he] is shy, too|Somebody has to be the first}.>")
    else:
        s.say("<h/think: {Nobody should be alone on such a day|[^f.he] must feel lonely|I know how that feels}.>", "[^h] knew how it feels to be alone.", "[^h] did not think twice and went over.")
    s.say("So [h] {went over|walked over|took a deep breath and went over}. <h/happy: Hello! {I am [h]|My name is [h]}. {What is your name|Do you want to play with me|Would you like to play}?>",
          "[^h] {held out|offered} {[h.his] [o.full]|[e.some]}. <h/kind: {Would you like to play with me|Do you want to share with me}?>")
    s.say("[^f] looked up. {Slowly, a smile spread over [f.his] face.|[^f.his] eyes {lit up|grew big}.} <f/happy: {I am [f]. Yes, please|I would love to|Yes, I would like that very much}!>",
          "<f/quiet: {I am [f]|My name is [f]}. {I do not know anyone here|I was afraid that nobody would like me}.> <h/kind: {Now you know me|I like you already|Well, I do}!>")
    s.para()
    s.say("They {played|laughed and played} with [h.his] [o.n] until {the sun went down|it got dark|they were out of breath}.", "[^h] showed [f.him] everything: {the best hiding place|the tree with the hole|the place where the berries grow}, which was [p.spot3], and {the place with the echo|the shortcut|the best spot to watch the sunset}.",
          "They shared [e.n] and told each other stories. [^f] knew a joke that made [h] laugh until [h.his] belly hurt.", "They {raced|ran} from one end of {[p]|the path} to the other, and {nobody cared who won|both of them won once}.")
    s.maybe(0.5, "It turned out that [f] could {whistle with two fingers|walk on [f.his] hands|tell funny stories|draw wonderful pictures}, and {taught [h] how to do it|[h] wanted to learn it, too}." if s.world == "human" else
            "It turned out that [f] knew the {funniest|best} stories.", "<f/happy: {I thought I would never find a friend here|This is the best day since I came here}!>")
    ending(s, "From {that day on|then on}, [h] and [f] were {friends|the best of friends}.", "<h/happy: Will you come again tomorrow?> <f/happy: {Of course|I will be here}!> And so it was, the next day and the day after that.",
           "When [h] went home, [h.he] was not alone any more, and neither was [f].",
           moral=("One kind word had been enough.", "Sometimes all it takes is {one word|a smile|a small hello}.", "And [h] thought that {a stranger is only a friend one has not met yet|saying hello had not been hard at all}."))


def share_toy(s):
    """Someone does not want to share, and finds that it is more fun to."""
    s.cast(trait="stubborn impatient lively playful careful")
    s.place()
    s.thing("o", "toy")
    opening(s)
    s.say("[^day], [h] got [o.a] from [m]. {It was brand new.|It was the most beautiful [o.n] in the world.|}", "[^h] had [o.a]. {Nobody else had one like it.|[^h.he] was very proud of it.}")
    s.say("[^h.he] took it [p.to].", "[^h.he] went [p.to] to play with it.")
    aside(s, 0.3)
    s.say("[^f] {came by|was there, too}. <f/curious: {What a nice [o.n]! May I play with it|May I try it|Can I have a turn}?>", "<f/happy: {That looks like fun|Oh, how lovely}! May I have a turn?>")
    s.say("<h/angry: No! {It is mine|You will break it|I want to play with it all by myself}!>", "[^h] {held it tightly|hid it behind [h.his] back}. <h/angry: {No, it is mine|No, you cannot}.>")
    s.say("[^f] {turned around|went away} without a word.", "[^f] {looked sad|hung [f.his] head} and {went away|sat down [p.spot]}.", "<f/sad: {I only wanted to try it|All right, then}.> And [f.he] went {away|off to play alone}.")
    s.para()
    s.say("So [h] played alone. {At first it was fun.|} But {after a while|soon} it was {boring|not so much fun any more}. {There was nobody to laugh with.|Nobody {cheered|said \"well done\"}.|}",
          "[^h] played with [o] all alone. {Once, twice, three times.|} Then [h.he] stopped. Something was missing.")
    s.say("[^h.he] {looked over at|thought of} [f]. {[^f] was making a little house of sticks, all alone.|[^f] looked as lonely as [h] felt.|}", "<h/think: {A toy for one is only half a toy|It is no fun alone}.>")
    feel(s, "h", "sorry", 0.5)
    s.say("[^h] went over to [f]. <h/sorry: {I am sorry|I was not nice}. {Do you still want to play|Shall we play together}?>",
          "[^h] took [o] and held it out to [f]. <h/sorry: {I was wrong|I am sorry}. You can have {a turn|the first turn}.>")
    s.say("[^f] {looked up|smiled}. <f/happy: {Really? Thank you|I would love to}!>", "<f/happy: {That is all right|Let us play together}!>")
    s.para()
    s.say("They took turns. {First [f], then [h], then [f] again.|} And {[f] knew a new game that [h] had never thought of|soon they had made up a whole new game}.", "Together they {made up a new game|had twice as much fun}. {They laughed so much that a bird flew up in fright.|}",
          "It was {the best game ever|much more fun with two}. They laughed {until the sun went down|so loudly that everyone turned to look}.")
    ending(s, "When [h] went home that evening, [o] was a little {dusty|dirty}, but [h.he] did not mind.", "From then on, whenever [h] got something new, [f] was the first to try it.", "The next day, [f] brought {a toy of [f.his] own|something, too}. <f/happy: Today we share mine!>",
           moral=("[^h] had learned that {sharing makes every toy bigger|a shared toy is twice the fun}.", "A toy can be shared, and the fun only grows."))


def quarrel(s):
    """Two friends fall out over a small thing and make up."""
    s.cast(trait="stubborn impatient lively clever")
    s.place()
    s.friend = True
    s.thing("o", "made toy tool")
    s.word("work", "a tree house/the tree house", "a raft/the raft", "a snow castle/the castle" if s.season == "winter" else "a little bridge/the bridge", "a big kite/the kite", "a tower of stones/the tower",
           "a hut of branches/the hut", "a dam in the stream/the dam", "a little wagon/the wagon")
    opening(s)
    if not s.facts["met"]:
        s.facts["friend known"] = True
        s.say("[^h.his] best friend was {a [f.kind] named [f]|[f]}.", "[^h.he] had a good friend {named|called} [f].")
    s.para()
    s.say("[^day], they wanted to build [work] together.", "[^day], the two of them began to build [work].", "[^day], [h] and [f] had an idea. They would build [work]!")
    s.say("<h/firm: It must {be high|be big|be strong}!> <f/firm: No, it must be {small|pretty|round}!>", "[^h] wanted to do it one way, and [f] wanted to do it another way.", "[^h] wanted to begin at once. [^f] wanted to make a plan first.")
    s.say("<h/angry: {You never listen to me|You always want to be right}!> <f/angry: {And you are bossy|And you never ask me}!>", "They {argued|quarrelled} louder and louder. {Neither of them listened.|Even the birds flew away.|}")
    s.say("<f/angry: Then {do it alone|build it yourself}!> [^f] {ran home|turned and went}.", "In the end, each went home alone, and [work.2] was left half done.")
    s.para()
    s.say("At home, [h] was {still angry|very angry at first}. But {soon|after a while} [h.he] {felt sad|was only sad}. {It was so quiet without [f].|}", "The next day, [h] tried to go on alone. {It did not work.|One needs four [h.hands] to build such a thing.} {And it was no fun.|}")
    s.say("[^m] {saw it|sat down beside [h.him]}. <m/kind: What is more important, [work.2] or your friend?> <h/sad: My friend, of course.>",
          "<m/kind: {The one who says sorry first is the stronger one|It takes two to quarrel, but only one to make peace}.>", "[^h] could not even remember how the quarrel had begun.")
    s.say("So [h] {set out|went} to see [f]. Halfway there, [h.he] met [f], who was on the way to see [h]!", "[^h] went to [f.his] [f.home] and knocked. {[^f] opened at once, as if [f.he] had been waiting.|}", "Just then, there was a knock at the door. It was [f].")
    s.say("<h/sorry: I am sorry.> <f/sorry: {I am sorry, too|No, I am sorry}.> {Then both of them had to laugh.|They hugged each other.|}", "Both said it at the same time: \"I am sorry!\" {Then they laughed.|}")
    s.para()
    s.say("They finished [work.2] together. {It was a little crooked, but it was theirs.|[^h] thought of one thing, and [f] thought of another, and both were good.|}", "This time they listened to each other. {First they did one thing [h.his] way, then one thing [f.his] way.|} And [work.2] turned out {better than either of them had dreamed|wonderful}.")
    ending(s, "In the evening, they sat beside it and {watched the sun go down|shared an apple}.", "<f/happy: {It is good that we had two ideas|It is the best one ever}.> <h/happy: {And it is ours|Because we made it together}!>", "They never quarrelled again, {or at least not for very long|at least not about that}.",
           moral=("A good friend is worth more than being right.", "[^h] knew now that {two heads are better than one|saying sorry is not so hard}."))


def team(s):
    """Something is too heavy for one; together they can."""
    s.cast(trait="helpful stubborn cheerful clever lively")
    s.place()
    s.word("load", "a fallen tree/the tree", "a big stone/the stone", "an old cart/the cart", "a heavy log/the log", "a huge pumpkin/the pumpkin", "a giant turnip/the turnip")
    s.word("others", "the postman/the postman's little dog", "the baker/the baker's little son", "the goat/the hen", "the miller/the miller's cat") if s.world == "human" else s.word("others", "a hare/a tiny ant", "a goat/a little hen", "a donkey/a small beetle", "an ox/a tiny wren")
    opening(s)
    s.say("[^day], [h] wanted to {go|cross over} [p.to], but [load] {lay across|blocked} the path." if s.known["load"].parts[0].split()[-1] not in ("pumpkin", "turnip") else "[^day], [h] found [load] growing near the path.",
          "[^day], [h] came upon [load] right in the middle of the way.")
    if s.known["load"].parts[0].split()[-1] in ("pumpkin", "turnip"):
        s.say("<h/happy: That would be {food for everyone|soup for the whole village}! I must {get|take} it home.>")
    else:
        s.say("<h/firm: {It must go away|Somebody could fall over it}. {I can do that alone|I will move it}.>", "Nobody could get past. <h/firm: I will {move it|push it away}.>")
    s.say("[^h] pushed. [^h.he] pulled. [^h.he] {puffed and panted|turned red in the face}. But [load.2] did not move.", "[^h.he] pushed with all [h.his] might, but [load.2] {stayed where it was|did not move an inch}.")
    s.para()
    s.say("Then [f] came {along|by}. <f/kind: {Shall I help you|Do you need help}?>", "[^f] {saw it|watched for a while}. <f/kind: {Let me help|Two are stronger than one}.>")
    if s.known["h"].trait == "stubborn":
        s.say("<h/angry: No, {thank you|I can do it alone}.> But after the tenth try, [h.he] was too tired to say no. <h/sorry: Well, perhaps {a little help would be good|you could push, too}.>")
    s.say("They pushed together. [^load.2] {shook a little|moved the width of a finger}, {and then it stopped|but no more}.", "Together they {pushed and pulled|tried it}. {It was better, but not enough.|Still it did not move.}")
    s.say("So they called [others]. And then they even called [others.2].", "Then [others] came to help, and after that, [others.2].", "They called for help, and along came [others] and, last of all, [others.2].")
    s.say("<h/happy: {All together now|On three}! One, two, three!> And with a {loud crack|rumble|creak}, [load.2] {moved|began to move}!", "<f/loud: One, two, three, {push|pull}!> They {pushed|pulled} as one, and [load.2] {moved at last|gave way}.")
    s.say("They {cheered|laughed} and {fell down in a heap|clapped}.", "<f/happy: {We did it|Hooray}!>")
    s.maybe(0.6, "And do you know who had helped the most? {Nobody could say.|It was the smallest one of all, because without that last little push it would not have worked.}")
    ending(s, "Afterwards, they {sat in the shade and shared some apples|had a picnic on the very same spot}.", "<h/happy: Next time, I will ask {first|right away}.>", "Then they all went [p.to] together, and nobody was {too big or too small|left behind}.",
           moral=("What one cannot do alone, many can do together.", "Even the smallest {help counts|friend can make the difference}."))


def surprise_party(s):
    """Everyone seems to have forgotten a birthday."""
    s.cast(trait="cheerful kind gentle shy playful")
    s.place(tag="grass flowers trees")
    s.food("e", "cake")
    s.thing("o", "dear music toy")
    opening(s)
    s.say("[^day], [h] woke up {very early|with a smile}. It was [h.his] birthday!", "It was [h.his] birthday. [^h.he] had {waited for it all year|counted the days}.")
    feel(s, "h", "excited", 0.5)
    s.say("But at breakfast, [m] {said nothing about it|only said good morning}. {Not a word about birthdays.|}", "[^h.he] ran {into the kitchen|to [m]}. But [m] {was busy and hardly looked up.|only said, \"Good morning. Did you sleep well?\"}")
    s.say("Then [h] met [f]. <h/happy: Do you know what day it is?> <f: {I have no time today|I must go, I am in a hurry}!> And [f.he] ran off.", "[^h] went to [f]. <f: I cannot play today. {I have so much to do|I am very busy}.> And [f.he] closed the door.")
    s.maybe(0.5, "Even [w] just {waved and hurried by|said hello and went on}.")
    feel(s, "h", "sad")
    s.say("<h/think: {They have all forgotten me|Nobody remembers my birthday}.>", "Had everybody forgotten?")
    s.para()
    s.say("[^h] {went for a walk|wandered about} all alone. In the {evening|afternoon}, [h.he] came [p.to].", "In the afternoon, [m] said, \"Could you fetch my basket? It is [p.at].\" {[^h] sighed and went.|So [h] went, slowly.}")
    s.say("It was strangely quiet there. {Was that a giggle?|Something moved [p.spot].|}", "Nobody was there. {Or was there?|But [p.spot], something giggled.}")
    s.say("Suddenly, everyone jumped up! \"Surprise!\" they {shouted|cried}. \"Happy birthday, [h]!\"", "\"Happy birthday, [h]!\" {Everybody|All [h.his] friends} came out from their hiding places.")
    s.say("There were {paper lanterns|colourful ribbons|garlands of flowers} {in the trees|everywhere}, and on a table stood a [e.n] with candles.", "There was music, there was lemonade, and there was {the biggest|the most beautiful} [e.n] that [h] had ever seen.")
    s.say("<f/happy: {We were so busy because we had to get everything ready|I almost told you}!>", "<f/happy: Now you know why I had no time!>", "<m/kind: How could we ever forget you?>")
    s.say("[^f] gave [h.him] [o.a]. {It was just what [h.he] had wished for.|[^f] had {made|chosen} it [f.himself].}", "And there was a present, too: [o.a]!")
    feel(s, "h", "happy", 0.7)
    ending(s, "They {danced|sang and danced} until the {stars came out|moon was high}.", "When [h] blew out the candles, [h.he] {had nothing left to wish for|made a wish, but [h.he] did not tell anyone what it was}.", "It was the best birthday that [h] had ever had.",
           moral=("And [h] knew that {true friends do not forget|[h.he] was not forgotten at all}.",))


def gift(s):
    """Two friends each give up something for the other, or a gift is made by hand."""
    s.cast(trait="kind gentle clever helpful shy")
    s.thing("o", "made dear music")
    s.place()
    opening(s)
    s.known["x"] = s.known[s.rng.choice("mf")]
    s.say("Soon it would be the birthday of [x], and [h] wanted to give [x.him] something special.",
          "[^h] wanted to make [x] happy. [^x.his] birthday was only three days away.")
    s.say("In the shop window, [h.he] had seen [o.a]. But [h.he] had only {two|three} coins, and it cost {ten|twenty}.", "<h/think: {I have no money|My purse is empty}. What can I give?>", "But [h.his] purse was empty.")
    s.say("So [h] {went to work|looked for work}. [^h.he] {swept the path|carried water|watered the flowers} for [w], and {picked apples|chopped wood|fed the hens} the next day. {Coin by coin, the money grew.|}", "[^h.he] thought and thought. Then [h.he] had an idea. <h/happy: I will make something myself!>")
    made = "make something" in s.paragraphs[-1][-1]
    s.para()
    if made:
        s.say("[^h.he] went [p.to] and collected {shells|feathers|dry flowers|colourful leaves|smooth stones} and {thread|bits of bark|small twigs|grass}. Then [h.he] sat down and worked {until it was dark|all afternoon|for three days}.")
        s.say("{It was not easy.|The first one broke.|Twice [h.he] had to begin again.} But at last it was done: a {picture|little box|wreath|crown|necklace|frame} that nobody else in the world had.", "It became a {card|little boat|wreath|garland|bookmark}, and it was a bit crooked. <h/worried: I hope it is good enough.>")
        s.say("On the day, [h] held it out with {shaking [h.hands]|red cheeks}. <h/quiet: I made it {myself|for you}.>")
        s.say("[^x] looked at it for a long time. <x/happy: {This is the most beautiful present of all|Nobody ever made anything for me before. Thank you|I will keep it for ever}!>", "[^x] {hugged [h.him]|had tears of joy in [x.his] eyes}. <x/thanks: {You made this for me? It is wonderful|I have never had anything so lovely}!>")
        ending(s, "[^x] hung it up where everyone could see it.", "It had cost nothing, and it was worth more than anything in the shop.", "And it stayed with [x] for many, many years.", moral=("The best presents come from the heart.", "What is made with love is always good enough."))
    else:
        s.say("At last, [h] had enough. [^h.he] ran to the shop.", "On the last day, [h] counted the coins. It was just enough! [^h.he] ran all the way to the shop.")
        seen = any(s.known["o"].full in sentence for part in s.paragraphs for sentence in part)
        s.say("There [h.he] bought [o]." if seen else "There [h.he] bought [o.a], the prettiest of all.")
        s.say("On the birthday, [h] put [o] in [x.his] [x.hands].", "On the birthday, [h] hid [o] behind [h.his] back. <h/happy: Guess what I have for you!>")
        s.say("<x/surprised: {For me? How did you do that|Oh, how beautiful! Where did you get it}?>", "<x/happy: {It is lovely|I have always wanted one}!>")
        s.say("When [x] heard how hard [h] had worked for it, [x.he] {gave [h.him] the biggest hug|did not know what to say}.", "[^w] had told [x] the whole secret. <x/kind: You worked so hard for me. {That is the real present|Thank you, [h]}.>")
        ending(s, "[^x] {carried|kept} [o] with [x.him] {always|from then on}.", "And [h] was even happier than [x].", "That evening, [h] was tired, but it was a good kind of tired.", moral=("It is lovely to get a present, but it is even lovelier to give one.", "A present is worth as much as the love that is in it."))


PLOTS = [(new_friend, "human animal fairy", 4), (share_toy, "human animal", 4), (quarrel, "human animal fairy", 3), (team, "human animal", 3),
         (surprise_party, "human animal fairy", 3), (gift, "human animal fairy", 3)]
