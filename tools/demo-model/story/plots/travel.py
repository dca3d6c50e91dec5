"""Long ways: walks home, journeys, treasure maps, messages."""

from ..beats import ending, feel, opening, way, way_both


def long_walk(s):
    """A long walk home in bad weather, kept going by small things."""
    s.cast(trait="lively impatient cheerful dreamy")
    s.thing("o", "light tool")
    s.place(tag="trees wind grass")
    s.time = "day"
    opening(s, now=False)
    s.say("[^day], [h] and [f] had been [p.at] all day. {Now the sun was going down.|They had not noticed how late it was.} And the way home was long.", "[^day], [h] and [f] {missed the last cart home|stayed out too long}. They had to walk, and it was {far|a very long way}.")
    s.say("After an hour, [f] sat down. <f/sad: {I cannot go on|My legs hurt}.>", "<f/sad: {How far is it|Are we nearly there}?> <h/kind: {Only a little bit|We have come halfway already}.>")
    s.say("It {grew dark|began to rain|got cold}. {The wind howled.|The path was hard to see.} [^h] took out [h.his] [o.full]." if s.known["o"].n in ("lantern", "umbrella", "compass") else "It {grew dark|began to rain|got cold}. {The wind howled.|The path was hard to see.}")
    s.para()
    s.say("<h/happy: {Let us sing|I know what to do}! {We walk to the next tree. Only to the next tree|For every hundred steps, one verse}.> {And when they were there, to the next one.|}", "<h/kind: {Do not think of the whole way. Think only of the next step|We will count our steps. A hundred for you, a hundred for me}.>")
    way_both(s, 0.8)
    s.say("They {sang every song that they knew|told each other all the jokes they knew}, {and then they began again|the good ones and the bad ones}.", "They {shared the last piece of bread|took turns carrying the bag} and imagined {what there would be for supper|a warm bed}. <f/happy: Hot soup!> <h/happy: With bread!>")
    s.maybe(0.6, "Once, something rustled in the bushes. They held their breath. {It was only a hedgehog on its way.|It was only an owl.}", "Then the clouds opened, and the moon {lit the way|came out}.")
    s.say("And then, behind the last hill, they saw a light. <f/happy: {That is our house|A light! We are home}!>", "At last, there was a small yellow light. It was the window at home.")
    s.say("[^m] {stood at the door|came running}. <m/happy: {There you are at last|I was so worried}!> {There was hot soup, and dry clothes.|}", "[^m] wrapped them in blankets and {gave them hot soup|put their cold feet by the fire}.")
    ending(s, "<f/happy: {It was not so far after all|We could have walked twice as far}.> <h/happy: {With you, no way is too long}!>", "That night, they slept like stones. And in their dreams, they walked on, {from tree to tree|singing}.", "Later, they had forgotten the cold and the rain. But they never forgot the songs.",
           moral=("The longest way is made of small steps.", "A way is only half as long with a friend."))


def treasure_map(s):
    """A map leads to a treasure of another kind."""
    s.cast(trait="curious brave clever lively dreamy")
    s.place(tag="trees water wind grass")
    s.thing("o", "found small")
    opening(s)
    s.say("[^day], [h] found an old map {in a bottle|under a loose board|inside an old book}. There was a red cross on it. <h/happy: A treasure map!>", "[^day], something fell out of {an old coat|a dusty book}. It was a map, and in one corner there was a red cross.")
    s.say("[^h] ran to [f]. <f/happy: Let us look for it at once!>", "[^f] {bent over the map|looked at it closely}. <f/curious: {That is not far from here|I know this place}. It must be near [p].>")
    s.say("They packed {a shovel|a rope} and {some bread|two apples} and set out.", "They set out at once, with {a shovel and a lamp|a spade on their shoulders}.")
    s.para()
    way_both(s, 1.0)
    s.say("\"{Thirty|Fifty} steps north,\" said the map. \"Then {turn at the crooked tree|go around the big stone}.\" They counted {aloud|each step}.", "The map said, \"{Look where the shadow of the tree ends|Go where three stones stand}.\" {They looked for a long time.|} At last, they stood [p.at].")
    s.say("There they dug. {One hour. Two hours.|} They dug until {their arms hurt|they could hardly stand}. Then the shovel hit something hard! {Clang!|}", "[^p.spot], [h] {began to dig|pushed the leaves aside}. {Something shone.|There was something hard!} It was a box!")
    s.say("[^h] lifted the lid. {Their hearts beat fast.|} Inside, there was no gold. There was only [o.a] and a letter.", "They opened the box. {No gold. No diamonds.|} Only [o.a] lay there, and beside it a piece of paper.")
    s.say("\"Dear finder,\" it said. \"{You have come a long way with a friend. That is the treasure|The real treasure is the way that you have walked together}. {Now put something in for the next one|Please hide it again for others}.\"")
    s.para()
    s.say("[^f] {was disappointed at first|laughed}. <f/happy: {It is true. It was a great day|Well, we did have an adventure}.> [^h] nodded.", "They looked at each other and {laughed|grinned}. <h/happy: {We got lost, we sang and we dug. It was wonderful|That was the best day of the year}!>")
    s.say("They put {a shiny button|a drawing|a blue feather} into the box and buried it again. {Then they went home, arm in arm.|}", "[^h] laid {a marble|a small shell|a lucky coin} in the box, and [f] wrote {both their names|the date} on the paper. Then they hid it again.")
    ending(s, "Maybe you will find it one day.", "Then they put the map back where they had found it, for someone else to find.", "And [o]? It lies [p.spot2], waiting for the next finder.",
           moral=("The best treasure cannot be carried home in a sack.",))


def message(s):
    """Carrying a message or parcel, with distractions on the way."""
    s.cast(trait="dreamy forgetful impatient helpful kind")
    s.thing("o", "small paper breaks")
    s.food("e", "fruit")
    s.known["x"] = s.known["w"]
    opening(s)
    s.say("[^day], [m] gave [h] [o.a]. <m: {Take this to|Please carry this to} [w]. {Do not lose it|And do not dawdle on the way}.>" if not s.known["w"].name.startswith("the ") else "[^day], [m] gave [h] [o.a]. <m: Please carry this to the old [w.kind] on the hill. {Do not lose it|And do not dawdle on the way}.>")
    s.say("<h/firm: {I will be careful|You can count on me}.> And off [h.he] went.", "[^h] put it {in [h.his] bag|under [h.his] arm} and set out.")
    way(s, 0.8)
    s.para()
    s.say("On the way, [h.he] came to some bushes with {red|dark, sweet} [e.n]." if s.known["e"].n.endswith("berries") else "On the way, [h.he] came to a tree full of ripe [e.n].", "After a while, [h.he] met [f]. <f/happy: {Come and play with me}!>")
    s.say("<h/think: Just {for a moment|a little}.> [^h] {put down the parcel|sat down}. {But a moment can be long.|} When [h.he] looked up, the sun was {low|already going down}, and [o] was gone!", "[^h] wanted to stop. [^h.he] already had one foot off the path. Then [h.he] remembered [h.his] promise. <h/firm: {Later|On the way back}!>")
    lost = "gone" in s.paragraphs[-1][-1]
    if lost:
        feel(s, "h", "worried")
        s.creature("c", "squirrel rabbit kitten puppy" if s.world == "human" else "squirrel mouse bird")
        s.say("Then [h.he] saw tracks in the {mud|sand}. [^h.he] followed them {around three bushes|to a hollow tree}. There sat [c.a], and it was {sitting on|playing with} [o]! <h/kind: I need that. I will give you {a nut|my last cookie} for it.>", "[^h.he] searched {everywhere|the whole path}. At last, [h.he] heard something. [^c.a] had carried [o] away and was {hiding it under some leaves|showing it to its friends}. <h/happy: There it is!>")
        s.say("Now [h] ran {as fast as [h.he] could|without stopping once}.", "[^h.he] held it tightly and {did not stop again|ran the rest of the way}.")
    else:
        s.say("[^h] went on, {over the bridge|up the hill} and {through the mud|through the wind}. {It was not easy.|}", "The bag grew heavy, and {it began to rain|the path was steep}. But [h.he] did not stop.")
    s.para()
    s.say("At last, [h] stood at the door. [^w] opened. <w/happy: {I have been waiting for that|There you are}! {Come in|It is just what I needed}!>", "[^w] took [o] with both hands and {beamed|smiled}. <w/thanks: {You cannot know how important this is to me|I have waited for it all day}.>")
    s.say("<h/sorry: I almost lost it on the way.> <w/kind: {Almost does not count|But you brought it in the end}.>" if lost else "<w/kind: {I can see that one can count on you|You must be tired. Sit down}.>")
    s.say("There was {hot cocoa|warm milk|tea} and {bread with jam|a big piece of cake}.", "As a thank-you, [h] got {a bag of nuts|a jar of honey}.")
    ending(s, "On the way back, [h] had all the time in the world. {Now [h.he] could stop wherever [h.he] liked.|And the berries tasted twice as good.}" if s.known["e"].n.endswith("berries") else "On the way back, [h] had all the time in the world, and [h.he] stopped wherever [h.he] liked.", "When [h] came home, [m] asked, \"Did everything go well?\" [^h] {grinned|smiled}. <h/happy: {Almost|More or less}.>", "Since then, [h] is the one who is sent when something is important.",
           moral=("First the duty, then the berries.",) if s.known["e"].n.endswith("berries") else ("One thing after another.",))


def voyage(s):
    """A small boat, a far shore, and the way back."""
    s.cast(trait="brave curious dreamy lively")
    s.word("boat", "a little boat/the boat", "a raft/the raft", "an old rowing boat/the boat", "a walnut-brown sailing boat/the boat", "a round basket boat/the boat")
    s.word("isle", "an island full of parrots/the parrots could talk/a green feather", "an island of white sand/shells lay everywhere like stars/a pink shell", "an island with a singing mountain/the wind sang in the rocks/a stone that hummed", "an island where it was always evening/fireflies danced in the air/a jar with one firefly", "an island with a tiny lighthouse/an old man lived there all alone/a little brass bell", "an island of a thousand cats/they slept in the sun/a tuft of soft fur")
    opening(s)
    s.say("Every evening, [h] looked out over the water. <h/curious: What is on the other side?> {Nobody knew.|}", "[^h] had always wanted to know what lies beyond the {lake|water|big water}.")
    s.say("[^day], [h] and [f] {built [boat]|found [boat] in the reeds}. {They painted it blue.|They called it \"{Sea Star|Wild Duck|Little Wave|Good Hope}\".}", "[^day], [h] said to [f], \"Today we will find out.\" They {took|had} [boat] and a basket of {bread|apples}.")
    s.say("They pushed off. {The waves rocked them.|The wind was soft.} The shore grew {smaller and smaller|as thin as a line}.", "<h/loud: {Cast off|Off we go}!> The wind {filled the sail|pushed them along}, and soon there was only water all around.")
    s.para()
    s.maybe(0.7, "At noon, {a whale|a big fish|a seal} came up beside them, {looked at them with one eye|snorted} and dived again. <f/surprised: {Did you see that|Was that real}?>", "Then the wind grew stronger. {The waves were as high as houses.|Water came into the boat.} [^f] bailed, and [h] held on to the rudder. <h/firm: {We can do it|Hold on}!>")
    s.say("In the evening, they saw land. It was [isle]! [^isle.2].", "And then, out of the mist, came [isle]. They stepped ashore, and [isle.2].")
    s.say("They {explored everything|ran along the shore}. {They ate fruit that they had never seen before.|They slept under the open sky.} <f/happy: {I never want to leave|It is like a dream}.>", "They stayed {for three days|until the bread was gone}. {Every day they found something new.|}")
    s.say("But one evening, [h] looked back over the water. <h/quiet: {At home, they are lighting the lamps now|I miss home a little}.> [^f] nodded. <f/quiet: I was just thinking the same.>", "But at night, [h] dreamed of home. <h/quiet: {It is beautiful here. But nobody knows us|I would like to tell someone about it}.>")
    s.para()
    s.say("So they sailed back. {The wind was with them.|The stars showed them the way.} In the boat lay [isle.3].", "The next morning, they set out for home, with [isle.3] {as a keepsake|in [h.his] pocket}.")
    s.say("[^m] stood on the shore, as if [m.he] had known it. <m/happy: There you are at last!>", "Everyone was standing on the shore and waving. {They had so much to tell!|}")
    ending(s, "In the evening, [h] looked out over the water again. Now [h.he] knew what was on the other side. But beyond that, there was surely something else.", "[^isle.3] lies on the window sill now. Whoever looks at it {hears the sea|begins to dream}.", "<m/curious: What was the best thing?> [^h] thought for a long time. <h/happy: {Going away. And coming home|The moment when I saw our light}.>",
           moral=("One must go away to know how nice it is to come home.",))


def market_trade(s):
    """A chain of swaps that ends well."""
    s.cast(trait="kind clever cheerful dreamy helpful", friend=False)
    s.place("p", tag="people", avoid="inside") if s.world != "animal" else s.place()
    for name, tag in (("o", "toy"), ("o2", "tool worn"), ("o3", "dear music")):
        s.thing(name, tag)
    opening(s)
    s.say("[^day], [h] took [h.his] [o.full] [p.to]. [^h.he] wanted to swap it for {something better|something beautiful}.", "[^day], [m] said, \"You do not play with your [o.n] any more. Take it [p.to] and swap it for something useful.\"")
    s.say("There [h.he] met {a mother with a crying child|a little one who was crying}. The child looked at [o] and {stopped crying|smiled}. <h/kind: Here, take it.>", "The first one [h.he] met was a small child who {had no toys|looked at [o] with big eyes}. <h/kind: {You can have it|Take it, it is yours}.>")
    s.say("The mother gave [h.him] [o2.a] for it. <h/happy: {Thank you|That is kind}!>", "\"Then take [o2.a] for it,\" said the child's mother. [^h] thanked her.")
    s.para()
    s.say("A little later, [h] met [wintro] who {needed just that|was looking very unhappy}. <w/sad: {My [o2.n] is broken|I have lost my [o2.n]}, and I {have so far to go|cannot work without it}.> [^h] gave [o2] to [w].")
    s.say("<w/thanks: {I have no money. But take this|You are a good [h.kind]. Here}.> And [w] gave [h.him] [o3.a].", "[^w] {searched in [w.his] bag|thought for a moment}. <w/kind: All I have is [o3.a]. {It is yours|Take it}.>")
    s.say("[^h] {looked at [o3]|turned [o3] over in [h.his] [h.hands]}. {It was the most beautiful thing that [h.he] had ever had.|It was old and lovely.} On the way home, [h.he] {could not stop smiling|hummed a tune}.")
    s.para()
    s.say("At home, [m] stared at it. <m/surprised: {My old [o3.n]! I lost it when I was as small as you|I used to have one just like that}!> {[^m.his] eyes were wet.|}", "[^h] gave it to [m]. <m/happy: {For me? I have always wanted one|It is beautiful}!>")
    ending(s, "So everyone had got what they needed: the child, [w], [m] and [h].", "<h/happy: And I only wanted to get rid of an old [o.n]!>", "[^h] had come home with something better than any swap: three happy faces.",
           moral=("What one gives away with a good heart often comes back in another shape.",))


PLOTS = [(long_walk, "human animal", 3), (treasure_map, "human animal fairy", 4), (message, "human animal fairy", 3), (voyage, "human animal fairy", 3), (market_trade, "human animal fairy", 2)]
