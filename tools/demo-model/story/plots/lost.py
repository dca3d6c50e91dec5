"""Things that get lost, and what is found instead."""

from ..beats import aside, ending, feel, opening, way_both


def lost_toy(s):
    """Something dear is lost, looked for in three places, and found."""
    s.cast()
    s.place()
    s.thing("o", "dear toy small worn")
    opening(s)
    s.say("[^h.his] {favourite|dearest} {thing|treasure} {in the whole world|of all} was [o.a]. {[^h.he] took it everywhere.|It was a present from [m].|[^h.he] had owned it for as long as [h.he] could remember.|}",
          "[^h] had [o.a] that [h.he] loved {very much|more than anything}. {It had been a present from [m].|[^h.he] never went anywhere without it.|}",
          "Wherever [h] went, [h.his] [o.full] went, too.", "[^m] had once given [h.him] [o.a], and [h] {loved it dearly|was very proud of it}.")
    s.para()
    s.say("[^day], [h] went [p.to]{ with [o]| to play|}. {But when [h.he] came home|When it was time to go home}, [o] was gone.",
          "[^day], [h] {played|ran around} [p.at] {all afternoon|for hours}. Then [h.he] looked down. Where was [o]?",
          "But [day], [o] was {gone|nowhere to be found}. [^h] had {taken it|carried it} [p.to], and {somewhere on the way|there} it had {fallen out of [h.his] bag|slipped out of [h.his] pocket|got lost}.",
          "[^day], after a long game [p.at], [h] could not find [o].")
    s.say("<h/sad: {Oh no|Oh dear}! {Where is my [o.n]|My [o.n] is gone|I have lost my [o.n]}!>", "<h/worried: {Where can it be|Where did I leave it}?>",
          "<h/sad: I cannot find my [o.n].>")
    feel(s, "h", "sad", 0.5)
    s.para()
    ally = s.rng.choice(["m", "f", "f", "w", "w"])
    s.known["x"] = s.known[ally]
    if ally == "w":
        s.say("Just then, [wintro] came by. <x/kind: Why {are you so sad|do you look so sad}{, little one|}?>",
              "On the path [h.he] met [wintro] who {was on the way home|was carrying a basket|had seen everything}. <x/kind: What is the matter?>")
        s.say("[^h] told [x.him] what had happened.", "<h/sad: I have lost my [o.n].>")
    else:
        s.say("[^h] told [x] about it.", "[^x] saw that something was wrong. <x/kind: What happened?> So [h] told [x.him] everything.", "[^x] {heard|noticed} it and came {at once|running}.")
    s.say("<x/kind: {Do not worry|Do not cry}. {We will look for it together|Let us go back and look|Two see more than one}.>",
          "<x/kind: {Think|Try to remember}. Where did you {last have it|see it last}?>",
          "<x/firm: {Things do not just disappear|Nothing is lost for ever}. {Let us look|Come, I will help you}.>")
    s.maybe(0.5, "[^h] nodded and wiped [h.his] eyes.", "[^h] took [x.his] [x.hand].", "[^h] felt a little better already.")
    s.para()
    s.say("They went back [p.to] together.", "So they {went|walked} back [p.to] and looked everywhere.", "Together they {searched|looked} [p.at].")
    aside(s, 0.35)
    s.say("{First|First of all}, they looked [p.spot]. {Nothing|There was only an old shoe|It was not there}. Then they looked [p.spot2]. {Nothing again|Not there, either|There were only some leaves}.",
          "They looked [p.spot]. They looked [p.spot2]. {No [o.n] anywhere|They found a {button|coin|feather}, but no [o.n]}.",
          "They searched [p.spot] and [p.spot2], but {they found nothing|it was not there}.")
    s.say("{At last|Then}, [x] {pointed|looked up}. <x/happy: {Look|Look over there}! What is that [p.spot3]?> [^h] ran. There was [o]!",
          "{Just when [h] wanted to give up|At last}, something {shone|caught [h.his] eye} [p.spot3]. It was [o]!",
          "And there, [p.spot3], lay [o], {a little dirty but whole|as if nothing had happened|just waiting for [h.him]}.")
    s.say("<h/happy: {There it is|I found it|There you are}!>", "[^h] {picked it up|hugged it tightly} and {laughed|danced around}.", "<h/thanks: Thank you, [x.voc]! {Without you I would never have found it|You are the best}.>" if ally != "w" else "<h/thanks: Thank you so much for your help!>")
    ending(s, "From {that day on|then on}, [h] {took good care of|always kept an eye on} [o].", "{On the way home|All the way home}, [h] held [o] {very tightly|with both [h.hands]}.",
           "[^h] took [o] home and put it {in a safe place|next to the bed}. <h/quiet: I will never lose you again.>",
           moral=("And [h.he] knew that {it is easier to look together than alone|a friend in need is the best thing to find}.", "[^h] had found two things that day: [o] and {good help|a good heart}."))


def found_thing(s):
    """Something is found that belongs to someone else, and goes back."""
    s.cast(friend=False)
    s.place()
    s.thing("o", "found dear worn")
    opening(s)
    s.say("[^day], [h] was walking [p.at] when something {shiny|strange|bright} caught [h.his] eye.", "[^day], [h] went [p.to]. {[^p.spot], something was {lying|glittering}.|Suddenly [h.he] stopped.}",
          "[^day], [h] found something [p.at].")
    s.say("It was [o.a]! It lay [p.spot], and nobody was near.", "[^h.he] bent down. There, [p.spot], lay [o.a].", "[^p.spot] lay [o.a]. {How beautiful it was!|It was lovely.|}")
    s.say("<h/happy: {How pretty|How lucky I am}! {I will keep it|It is mine now}.>", "<h/curious: {Who might have lost it|Whose is it}?>", "[^h] wanted to keep it. It was so {pretty|nice}.",
          "<h/think: {Finders keepers|Nobody saw me}.>")
    s.para()
    s.say("But then [h.he] thought of the one who had lost it. {Was someone looking for it?|Someone might be very sad now.|}", "But at home, [h] could not be happy about it. Someone, somewhere, {was missing it|must be looking for it}.",
          "[^m] looked at it. <m/kind: {That is lovely|It is pretty}. But {somebody must miss it very much|think how sad its owner must be}.>")
    s.say("<h/firm: I will {find out whose it is|look for the owner}.>", "So [h] {decided|made up [h.his] mind} to find the owner.", "[^h] sighed, but [h.he] knew what was right.")
    s.say("[^h.he] asked everyone [h.he] met. {The first one shook {his|her} head. So did the second.|Nobody knew.|}", "[^h.he] went from door to door. {Nobody had lost [o.an].|Nobody knew anything about it.|}",
          "[^h.he] {drew a picture of it and hung it on a tree|wrote a note and hung it up for all to see}. {Then [h.he] waited.|}")
    s.para()
    s.say("{At last|In the evening|The next day}, [h] met [wintro] who was looking {at the ground|for something}. <w/sad: {I have lost my [o.full]|My [o.n] is gone}. {It was a present from someone dear to me|I have had it all my life}.>",
          "{At last|In the evening|The next day}, there was a knock at the door. Outside stood [wintro] with sad eyes. <w/sad: Have you seen [o.a]? I {lost it|dropped it} [p.at].>")
    s.say("[^h] held out [h.his] [h.hand]. <h/kind: Is this it?>", "<h/happy: {I found it|Here it is}!> [^h] {held it out|gave it back}.", "[^h] smiled and opened [h.his] [h.hand].")
    s.say("[^w] {had tears in [w.his] eyes|beamed|could hardly speak}. <w/thanks: {You are an honest [h.kind]|Thank you with all my heart|You do not know how happy you have made me}!>",
          "<w/happy: My [o.n]! {I thought I would never see it again|Thank you, thank you}!>")
    s.food("e", "sweet")
    s.maybe(0.6, "As a thank-you, [w] gave [h.him] {[e.some]|a warm hug|a little bag of nuts}.", "<w/kind: {Come and see me whenever you like|From now on you are my friend}.>")
    ending(s, "[^h] had nothing in [h.his] [h.hands] now, but [h.his] heart was full.", "[^h] walked home with empty [h.hands], {but happier than before|and yet [h.he] felt rich}.", "And [h] was {much gladder than if [h.he] had kept it|glad that [h.he] had done the right thing}.",
           moral=("A {good|kind} deed {shines brighter than any treasure|is worth more than anything one can find}.", "It is {good|nice} to find something, but it is better to give it back."))


def lost_child(s):
    """Someone gets lost and finds the way home by being clever or by help."""
    s.cast(trait="curious dreamy impatient playful")
    s.place(tag="trees people water")
    opening(s)
    s.say("[^day], [h] was [p.at] with [m].", "[^day], [m] took [h] [p.to].")
    s.say("<m/kind: Stay {close to|near} me.>", "<m/firm: Do not run {off|away}, [h]. {It is easy to get lost here.|}>")
    s.say("But [h] saw {a blue butterfly|a funny little frog|a snail with a yellow shell|a bright red bird} and {followed it|ran after it}. {Round one corner, round another.|Further and further.|}",
          "[^h] promised. But then [h.he] {heard music|saw something shining|saw a cat with a white tail} and forgot {everything|the promise}.")
    s.para()
    s.say("When [h] {looked up|turned around}, [m] was gone. {Everything looked strange.|[^h.he] did not know this place.|}", "{After a while|Suddenly}, [h] stopped. {Where was [m]|Which way was back}? Everything looked the same.")
    feel(s, "h", "scared")
    s.say("<h/loud: [m.voc]! Where are you?> {But nobody answered.|No answer came.|}", "<h/scared: I am lost.>")
    s.para()
    s.say("{Then|But then} [h] remembered what [m] had {always said|told [h.him]}: \"If you are lost, {stay where you are|stay in one place} and call.\" So [h.he] sat down [p.spot] and {called again and again|waited}.",
          "[^h] {took a deep breath|tried to think}. [^h.he] had {passed|seen} a {tall tree|big stone|red gate} on the way. {If [h.he] could find that, [h.he] could find the way.|}",
          "[^h] wanted to cry, but [h.he] {took a deep breath|thought hard} instead. <h/firm: First I must {stay calm|think}.>")
    s.say("{A little later|Soon|After a while}, [wintro] came by. <w/kind: {Are you all alone|Have you lost your way}{, little one|}?> [^h] nodded. <w/kind: {Come, we will find them together|I saw someone looking for you|Then let me help you}.>",
          "[^wintro] heard [h.him]. <w/kind: {Who is crying here|What are you doing here all alone}?> <h/sad: I have lost my way.> <w/kind: {Do not be afraid|That can be mended}. I know {every path|everyone} here.>")
    way_both(s, 0.7)
    s.say("{And there|At last}, at the end of the path, stood [m]! [^h] ran {as fast as [h.he] could|straight into [m.his] arms}.", "Then [h] heard a voice {that [h.he] knew|calling [h.his] name}. It was [m]!")
    s.say("<m/happy: {There you are|Thank goodness}! I {was so worried|looked for you everywhere}!>", "[^m] hugged [h.him] {tightly|for a long time}. <m/kind: {I am so glad to have you back|Thank goodness you are safe}.>")
    s.maybe(0.7, "<h/sorry: I am sorry{, [m.voc]|}. I {will never run off again|should have listened}.>")
    ending(s, "They thanked [w] and went home together, [h.hand] in [h.hand]." if s.known["h"].hand != "wing" else "They thanked [w] and went home together, side by side.",
           "All the way home, [h] did not let go of [m] even once.", "From then on, [h] still {looked at everything|loved to explore}, but [h.he] never went {too far|out of sight} again.",
           moral=("[^h] had learned that it is good to be curious, but better to stay close.", "It is good to look around, but one should always know the way back."))


def missing_pet(s):
    """A pet runs away and is looked for."""
    s.world = "human"
    s.cast()
    s.place()
    s.creature("c", "kitten puppy rabbit duckling")
    s.word("pet", "Snowball", "Pepper", "Biscuit", "Socks", "Muffin", "Pickles", "Bubbles", "Domino", "Cookie", "Fluff", "Marble", "Pumpkin", "Waffle", "Misty", "Peanut")
    opening(s)
    s.say("[^h] had [c.a] {named|called} [pet]. {They were always together.|Every night, [pet] slept at the foot of the bed.|[pet] followed [h.him] everywhere.}".replace("[pet]", "[pet]"),
          "For [h.his] birthday, [h] had got [c.a]. [^h.he] called it [pet]{ and loved it dearly|}.")
    s.para()
    s.say("[^day], the {door|gate} was open, and [pet] was gone.", "But [day], [pet] did not come when [h] called. {The basket was empty.|The food was still there.|}")
    s.say("<h/loud: [pet]! [pet], where are you?>", "<h/worried: {Please help me! [pet] has run away|We must find [pet]}!>")
    feel(s, "h", "worried", 0.6)
    s.say("[^f] came at once. <f/kind: {We will find it|Do not worry}. {Where does it like to be|What does it like best}?>", "[^h] and [f] went out to look. <f/firm: {You take the left side, and I will take the right|Let us ask everyone we meet}.>")
    s.para()
    s.say("They looked {in the kitchen|behind the house} and {in the shed|under the stairs}. {No [pet].|Nothing.} Then they went [p.to].", "They {called|searched} all over, and at last they came [p.to].")
    s.say("They looked [p.spot] and [p.spot2]. {There was no trace of [pet].|But [pet] was not there.}", "{Nobody they asked had seen [pet].|An old woman had seen something {small|quick} running by.}")
    s.say("Then [f] {lifted a finger|stopped}. <f/quiet: {Shh|Listen}! {Do you hear that|What was that}?> Something {moved|rustled} [p.spot3].", "Suddenly, [h] {heard|noticed} a {soft|tiny} sound. It came from {very near|over there}. There was something [p.spot3]!")
    s.say("It was [pet]! {It was cold and dirty, but it was well.|It had got stuck and could not get out.|It was fast asleep.|And beside it sat another little [c.n]!}", "There sat [pet], {shaking all over|with mud on its nose|and looked at them as if nothing had happened}.")
    s.say("<h/happy: {There you are|[pet], I missed you so much}!> [^h] {took it in [h.his] arms|hugged it}.", "[^h] {picked it up|held it close}, and [pet] {pressed its nose against|snuggled against} [h.his] cheek.")
    ending(s, "At home, [pet] got {a big bowl of food|its favourite food} and {slept until the next morning|fell asleep at once}.", "From then on, [h] always {closed the gate|checked the door} twice.", "That night, [pet] slept {on|in} [h.his] bed, and [h] did not mind at all.",
           moral=("<h/thanks: {Thank you|You are a true friend}, [f].>",))


PLOTS = [(lost_toy, "human animal fairy", 4), (found_thing, "human animal fairy", 3), (lost_child, "human animal", 3), (missing_pet, "human", 3)]
