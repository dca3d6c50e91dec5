"""Seasons, weather and growing things."""

from ..beats import aside, ending, opening


def seed(s):
    """A seed is planted and needs patience."""
    s.cast(trait="impatient curious lively dreamy stubborn")
    s.season, s.weather = "spring", s.rng.choice(["sunny", "mild", "rainy"])
    s.word("grow", "sunflower/as tall as the house/a sunflower as bright as the sun", "bean/up to the roof/a whole bowl of beans", "pumpkin/as big as a cart wheel/a fat orange pumpkin", "apple tree/taller every year/one red apple", "poppy/red as fire/a poppy like a flame", "strawberry/sweet as honey/the first red strawberry", "rose/pink like the morning sky/a rose that smelled of summer")
    opening(s)
    s.say("[^day], [w] gave [h] a {tiny|small} {brown|black} seed. <w/kind: {Plant it and take care of it|There is something big in it}.>", "[^day], [h] found a {tiny|small} seed in [h.his] pocket. <m/kind: {Put it in the earth and see what happens|Everything big was once that small}.>" if s.world == "human" else "[^day], [h] found a tiny seed on the path. <m/kind: {Put it in the earth and see what happens|Everything big was once that small}.>")
    s.say("[^h] dug a little hole, laid the seed in it and watered it. Then [h.he] sat down and waited.", "[^h] planted it {behind the house|in a pot} and gave it water. <h/happy: {Grow, little seed|Now grow}!>")
    s.say("{Nothing happened.|An hour went by.} Nothing. <h/angry: It is broken!>", "The next morning, [h.he] ran to look. There was nothing but brown earth. <h/sad: It is not growing!>")
    s.say("<m/kind: {You cannot see it, but under the earth it is working|Patience. Good things grow slowly}.>", "<w/kind: {If you dig it up to look, it will never grow|It needs sun, water and time. Mostly time}.>")
    s.para()
    s.say("So [h] waited. {Monday, Tuesday, Wednesday.|One day, two days, a week.} [^h.he] watered it every day and {sang to it|told it stories}.", "It was hard to wait. {[^f] said, \"Forget it and come and play.\"|} But [h] {came back every day|did not forget the water even once}.")
    s.say("And then, one morning, there was a tiny green tip! <h/happy: {Look! It is growing|It is there! It is there}!>", "After {ten days|two weeks}, something green looked out of the ground, {no bigger than a fingernail|thin as a thread}.")
    s.maybe(0.6, "Once, {a storm came|a hungry snail came}. [^h] {held an umbrella over it all night|built a little fence around it}.", "It grew a leaf, then two, then {four|six}.", "When it got cold one night, [h] covered it with {a blanket|straw}.")
    s.say("The [grow] grew and grew. By {summer|the end of summer}, it was [grow.2].", "{All summer long, it grew.|The weeks went by.} And at last there was [grow.3].")
    s.say("<f/surprised: {How did you do that|What is your secret}?> <h/proud: {A little water every day|I waited}.>", "Everyone came to {see it|admire it}. <h/proud: {It was so small once|I planted it}.>")
    ending(s, "In autumn, [h] {found new seeds|kept some seeds}. [^h.he] gave one to [f]. <h/kind: You must be patient.>", "And when [h] had to wait for something after that, [h.he] thought of the little seed.", "[^h] kept one seed for the next spring, in a little box, {like a treasure|with a label on it}.",
           moral=("Good things need time.", "Everything big was small once."))


def snow_day(s):
    """The first snow, and a snowman with a gift."""
    s.cast(trait="cheerful lively playful kind curious")
    s.season, s.weather, s.time = "winter", "snowy", "morning"
    s.thing("o", "wool")
    opening(s, now=False)
    s.say("[^day], [h] woke up, and everything was {white|quiet}. It had snowed!", "One winter morning, [h] looked out of the window. <h/happy: Snow! It has snowed!>")
    s.say("[^h] {ran outside|was out of the door in no time}. The snow {came up to [h.his] knees|crunched under [h.his] feet}. [^f] was already there. <f/happy: {Let us build a snowman|Let us build the biggest snowman in the world}!>", "[^h] called [f], and together they {rolled a big ball, then a smaller one, then a very small one|built a snowman}.")
    s.say("They gave him {a carrot|a pine cone} for a nose, {two black stones|two buttons} for eyes and {a smile of pebbles|a mouth of twigs}.", "He got {stones|nuts} for eyes and a long {carrot|twig} for a nose. <f/happy: He looks a little cold.>")
    s.say("[^h] {took off [h.his] [o.full]|gave him [h.his] own [o.n]}. <h/kind: {Here, so that you do not freeze|Now you look fine}.>" if s.known["o"].n in ("scarf", "hat") else "[^h] put [h.his] [o.full] on him. <h/kind: Now you look fine.>")
    s.para()
    kind = s.rng.random()
    if kind < 0.5:
        s.say("They {threw snowballs|slid down the hill on a sled} until {their noses were red|it got dark}. Then they drank {hot chocolate|warm milk with honey}.", "They made {angels in the snow|a slide} and {laughed until they had no breath left|had a snowball fight}.")
        s.say("But after a week, the sun came out, and the snowman grew {smaller and smaller|thinner every day}. <h/sad: {Please do not go|Don't melt}!>", "One day, it grew warm. {Drip, drip, went the roof.|} The snowman {got smaller|began to melt}.")
        s.say("<m/kind: {He is not gone. He is only turning into water, and then into clouds, and next winter he will come back|Everything comes back in its own time}.>", "<f/kind: {He will come back next winter|We will build him again}.>")
        s.say("At last, only the [o.n] {lay in a puddle|was left in the grass}. And beside it? The first snowdrop!", "Where he had stood, there was a little puddle. And in the middle of it grew the first flower of spring.")
        ending(s, "<h/happy: {That is his present for us|He left us a flower}!>", "The next winter, they built him again. And he smiled {just as before|the very same smile}.", moral=("Nothing is ever quite gone.",))
    else:
        s.say("That night, [h] could not sleep. [^h.he] looked out of the window. {Did the snowman just wave?|Had the snowman moved?} [^h.he] rubbed [h.his] eyes and looked again.", "At night, the moon shone on the snow. [^h] got up once more. And there, outside, the snowman {winked|lifted one arm}!")
        s.say("<h/surprised: {You are alive|You can move}!> \"Only tonight,\" said the snowman. \"Because you {gave me something warm|shared your [o.n] with me}. Come, I will show you something.\"")
        s.say("He took [h.him] by the [h.hand], and they {slid over the white fields|flew over the roofs}, {faster than the wind|past the sleeping houses}, up to {the top of the hill|where the northern lights were dancing}.", "Together they {slid down the longest hill|danced in the moonlight}, and the {stars|snowflakes} sparkled {all around them|like diamonds}.")
        s.say("When morning came, the snowman stood in his place again, as if nothing had happened. Only {his nose was a little crooked|he had lost a button}.", "Then [h] was in bed again. Had it been a dream? {But there was snow on [h.his] slippers.|But [h.his] hair was still wet.}")
        ending(s, "[^h] looked out. <h/quiet: Thank you.> And the snowman smiled, {just a little|so that only [h] could see it}.", "[^f] never quite believed it. But [h] knew what [h.he] knew.", moral=("Those who give something warm get something warm back.",))


def rainy_day(s):
    """A rainy day that becomes a good one."""
    s.cast(trait="cheerful impatient lively playful dreamy")
    s.season, s.weather = s.rng.choice(["spring", "autumn", "summer"]), "rainy"
    s.thing("o", "toy soft tool")
    opening(s)
    s.word("plan", "have a picnic/a picnic", "go to the beach/a trip to the beach", "fly a kite/an afternoon with the kite", "go fishing/a fishing trip", "climb the hill/a walk up the hill", "ride to the lake/a ride to the lake")
    s.say("[^h] and [f] had wanted to [plan]. But it rained. It {poured|rained and rained} and did not stop.", "It was to be the day of [plan.2]. But in the morning, the rain {drummed on the roof|ran down the windows}.")
    s.say("<h/angry: {Stupid rain|It is not fair}!> [^h.he] {pressed [h.his] nose against the window|kicked a cushion}.", "<h/sad: {Now everything is ruined|We cannot do anything at all}.>")
    s.say("[^f] {looked around the room|thought for a moment}. <f/happy: Then we will do it right here!>", "[^m] {came in with a big blanket|smiled}. <m/happy: {Then bring the outside in|I have an idea}!>")
    s.para()
    s.word("play", "They turned the table into a ship, the blanket into a sail, and the carpet into the wide sea. {\"Land ahoy!\" shouted [h].|The captain was called [h].}", "They hung blankets over the chairs, and it was a cave. Inside it was dark and cosy. {They told each other stories in whispers.|A bear lived in there, and the bear was [f].}", "They spread a cloth on the floor and put all the cushions around it. {[^m] brought bread and apples.|Even the toys were invited.}", "They put on old clothes from the trunk and played theatre. {[^h] was the king, and [f] was the dragon.|[^m] had to laugh until tears came.}", "They built a whole town out of boxes, with towers and bridges. {[^o] was the mayor.|In the middle stood [o].}")
    s.say(s.known["play"].parts[0])
    s.say("They {forgot the rain|did not even hear the rain any more}. {Hours went by.|}", "It was {wild and funny|the best game in a long time}.")
    s.say("<f/happy: Look! It has stopped raining!> {And over the hills stood a rainbow.|The sun came out, and everything sparkled.} But [h] {hardly looked up|shook [h.his] head}. <h/happy: {Not now! We are in the middle of it|Just a moment, we are not done yet}!>", "Late in the afternoon, the rain stopped. They put on their boots and ran out to {jump in every puddle|look at the rainbow}." if s.world == "human" else "Late in the afternoon, the rain stopped. They ran out to {jump in every puddle|look at the rainbow}.")
    ending(s, "In the evening, [h] said, \"I hope that it rains again tomorrow.\"", "<h/happy: That was {better than [plan.2]|the best rainy day of my life}!>", "And when it rained the next time, [h] {clapped [h.his] [h.hands]|was the first to fetch the blankets}.",
           moral=("There is no bad weather when one has a good idea.", "The sun can also shine inside."))


def flood(s):
    """Water rises; everyone helps everyone."""
    s.cast(trait="brave clever helpful careful")
    s.season, s.weather = "spring", "rainy"
    s.creature("c", "mouse hedgehog rabbit lamb" if s.world == "human" else "bird mouse")
    opening(s, now=False)
    s.say("It had rained for {days|three days and three nights}. The {river|stream} rose higher and higher.", "In spring, the snow melted, and the {river|stream} grew {wide and wild|bigger every hour}.")
    s.say("[^day], [h] saw that the water was {already at the old fence|coming over the bank}. <h/loud: The water is coming!>", "At night, [h] woke up from a strange sound. {Water!|The water was at the door!} [^h.he] {ran from house to house|rang the bell} to wake the others." if s.world == "human" else "At night, [h] woke up from a strange sound. The water was coming! [^h.he] ran to wake the others.")
    s.say("Everyone {ran up the hill|carried what they could up the hill}. {Children and old people first.|The strong carried the weak.}" if s.world == "human" else "Everyone ran up the hill. {The strong carried the weak.|The big ones carried the little ones.}")
    s.para()
    s.say("When they were all safe, [f] {cried out|pointed}. <f/loud: Look! There is {someone|something} out there!> On a {log|board|little island} in the middle of the water sat [c.a], {shaking with fear|all alone}.", "Then they heard a thin cry. [^c.a] sat on a {log|rock} in the middle of the flood and could not get away.")
    s.say("<w/worried: {It is too dangerous|The water is too fast}.> [^h] looked around. There was {a long rope|an old washtub|a door floating by}. {<h/firm: I have an idea!>|}", "[^h] did not think for long. <h/firm: {Give me the rope|We need a boat}!>")
    s.say("They {tied the rope to a tree|held the rope all together}, and [h] {went out on a board|pulled [h.himself] along}, bit by bit. {The water pulled at [h.his] legs.|Once, [h.he] almost slipped.} Then [h.he] {reached|had} [c].", "They made a chain, [h.hand] in [h.hand], far out into the water. At the very end stood [h]. [^h.he] stretched, and stretched, and got hold of [c]!" if s.known["h"].hand != "wing" else "They tied a rope around [h], and out [h.he] went, bit by bit, until [h.he] reached [c].")
    s.say("<h/kind: {I have you|Hold on to me}.> {And they were pulled back to dry land.|Then the others pulled them back.}", "They pulled them both back to dry land. Everybody {cheered|hugged them}.")
    s.para()
    s.say("When the water had gone down, {they cleaned up together|everyone helped to clean up}. {Where one had no roof, the other had a bed.|Nobody was left alone.}", "Three days later, the sun came out. {There was mud everywhere.|Much was broken.} But they {built everything up again|worked together}, {house by house|until it was done}.")
    ending(s, "And [c]? It {stayed with [h]|has never left [h] since}.", "Ever since, there is a {rope on the old tree|bell on the hill}, so that {everyone can be warned in time|they are ready for the next time}.", "In the evening, they sat around the fire, tired and {dirty|wet}, but all of them were there.",
           moral=("When the water is high, everyone must pull on the same rope.",))


def winter_store(s):
    """The one who played all summer and the one who worked."""
    s.world = "animal"
    s.cast(trait="playful cheerful dreamy lively")
    s.season, s.weather = "summer", "sunny"
    s.food("e", "raw")
    opening(s, now=False)
    s.say("All summer long, [h] {danced in the sun|lay in the grass and sang}. [^f], however, {worked|carried food home} from morning till night.", "It was a long, warm summer. [^h] {played|sang} all day. But [f] {gathered food|was always busy}.")
    s.say("<h/happy: Leave the work and sing with me!>", "<h/curious: Why do you work so much? {The sun is shining|There is food everywhere}!>")
    s.say("<f/firm: {Winter will come|It will not be summer for ever}. {You should gather food, too|Then I will be glad of every nut}.>", "<f/kind: {Think of the winter|When the snow comes, it will be too late}.> But [h] only {laughed|went on playing}.")
    s.para()
    s.say("Then the leaves fell. {The wind grew cold.|} And one morning, everything was {white|covered with snow}. [^h] looked into [h.his] [h.home]. There was nothing to eat.", "Winter came, {sooner than [h] had thought|with ice and snow}. [^h.his] [h.home] was cold and empty.")
    s.say("[^h] was {hungry and cold|so hungry that [h.his] stomach growled}. {[^h.he] looked for food under the snow, but there was none.|} At last, [h.he] went to [f.his] [f.home] and knocked.", "For two days, [h] ate nothing. On the third day, [h.he] stood at [f.his] door, {shaking with cold|with [h.his] head down}.")
    s.say("<h/sorry: {You were right|I should have listened to you}. I have nothing to eat. Please help me.>")
    s.say("[^f] {looked at [h.him] for a moment|opened the door wide}. <f/kind: {Come in. There is enough for two|Come in and get warm}. {But next summer you will help me|In return, you can sing for me}.>", "<f/kind: {I worked, and you sang. Now you can sing for me while we eat|Winter is long and quiet. Your songs will make it shorter. Come in}!>")
    s.para()
    s.say("So [h] stayed. {They ate [e.n] by the fire|They shared everything}, and in the long evenings [h] {sang and told stories|sang the songs of summer}. <f/happy: {I never knew how nice winter could be|It would be very quiet without you}.>", "They spent the winter together. [^f] had food, and [h] had songs, and {so they had all they needed|none of them was hungry or sad}.")
    ending(s, "And the next summer? In the morning, [h] helped [f] to gather food. And in the afternoon, [f] learned to {dance|sing}.", "When spring came, [h] was the first to go out and gather. And [h.he] sang while [h.he] worked.",
           moral=("There is a time to work and a time to sing.", "Everyone has something to give."))


def fishing(s):
    """Waiting for the big one together."""
    s.cast(trait="impatient lively curious quiet", friend=False)
    s.place(tag="water", avoid="sand inside")
    opening(s)
    s.say("[^day], [m] took [h] {fishing|along to go fishing} [p.at].", "[^day], [m] said, \"Today I will show you how to fish.\" They went [p.to], {before the sun was up|very early}.")
    s.say("They found a quiet spot and threw out their lines. <h/curious: {And now|What do we do now}?> <m/kind: Now we wait.>")
    aside(s, 0.6)
    s.say("[^h] waited. {One minute. Two minutes.|} <h/angry: {Nothing is happening|This is boring}!> [^h.he] {threw a stone into the water|jumped up and down}. <m/kind: {If you splash, they will swim away|Shh. Listen}.>", "[^h] pulled out the line every minute to look. <m/kind: {Fish like those who can wait|Patience}.>")
    s.para()
    s.say("So [h] tried to sit still. {And then [h.he] began to notice things.|And slowly, the world grew bigger.} {A dragonfly sat down on the rod.|A heron stood in the reeds.} {The water had a hundred colours.|Somewhere, a frog was talking to itself.}", "[^h] sat still and listened. {The reeds whispered.|The water gurgled softly.} {A tiny bird came so close that [h.he] could have touched it.|A turtle stuck its head out of the water.}")
    s.say("[^m] told [h.him] about {when [m.he] was little|the biggest fish that ever got away}. They {laughed|talked} softly. {It was nice just to sit there.|[^h] forgot all about the fish.}", "<h/quiet: It is nice here.> <m/kind: {Yes. That is the real reason why I come|Now you know my secret}.>")
    s.say("Suddenly, the line {jerked|went tight}! <m/loud: {Hold on|You have one}!> [^h] pulled with all [h.his] might. {Splash!|} It was a {big silver|fat, shining} fish!", "And just then, when [h.he] was not thinking of it at all, something pulled at the line. <h/happy: I have one!>")
    s.say("They looked at it. {It was beautiful, with golden eyes.|It glittered in the sun.} [^h] {thought for a moment|swallowed}. <h/firm: {I want to let it go|It should swim home}.> And with a splash, it was gone.", "It was a very small fish. [^h] laughed and put it back. <h/kind: {Grow first|Go home to your family}!>")
    ending(s, "They walked home without a fish, but with {a basket full of stories|the sun on their faces}. <h/happy: Can we go again tomorrow?>", "<m/kind: So, what did you catch?> <h/happy: {A heron, a turtle and a good day|The whole morning}!>", "And [h] has never again found waiting boring.",
           moral=("Those who can wait see more.",))


PLOTS = [(seed, "human animal fairy", 4), (snow_day, "human animal fairy", 3), (rainy_day, "human animal", 3), (flood, "human animal", 2), (winter_store, "animal", 2), (fishing, "human", 2)]
