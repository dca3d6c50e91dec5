"""The words of the stories: names, kinds of characters, things, food."""

GIRLS = """Mia Anna Lily Ella Nora Lucy Ruby Clara Rosa Ivy Maya Zoe Emma Sophie Grace Hazel Alice Daisy Molly Tessa
Nina Lena Sara Hannah Julia Eva Ida Olive Violet Poppy Amy Kate Jane Betty Mary Susie Emily Ellie Leah Maria Carla Bella
Fiona Gina Holly Iris June Kira Lara Mina Nell Paula Penny Rosie Sally Tina Uma Vera Wendy Yara Zara Amina Leila Priya
Mei Yuki Sana Aisha Fatima Ines Lola Marta Elsa Freya Greta Heidi Ingrid Astrid Linnea Saga Tilda Wilma Abby Becky Cora
Dora Edith Flora Gwen Hope Joy Kitty Lottie Mabel Nancy Opal Pearl Quinn Robin Stella Thea Una Viola Willow Maisie Millie
Evie Elsie Annie Ada Beth Chloe Dana Esme Faye""".split()

BOYS = """Tom Ben Max Leo Sam Jack Finn Oscar Noah Liam Theo Hugo Felix Paul Peter Tim Jake Luke Adam Eli Milo Otto Emil
Anton Karl Nils Lars Erik Jonas Oliver Henry George Charlie Harry Toby Will Fred Danny Billy Joey Andy Mark David Daniel
Simon Martin Jan Ivan Pablo Diego Mateo Luis Marco Luca Dario Nico Rafael Omar Ali Samir Karim Yusuf Hassan Ravi Arun Kofi
Kwame Jin Kenji Hiro Wei Bao Alex Amos Barney Caleb Dylan Ezra Frank Gus Hank Isaac Jasper Kevin Lewis Miles Ned Owen
Percy Ralph Rory Seth Ted Victor Walter Zach Arthur Albert Bruno Casper Edgar Gabriel Ian Joel Julian Kit Levi Moses
Nathan Patrick Reuben Silas Tobias Vincent""".split()

PETS = """Pip Benny Coco Daisy Fluffy Patch Biscuit Ginger Rusty Hazel Clover Pepper Nutmeg Bramble Button Toffee Muffin
Whiskers Fern Maple Acorn Thistle Poppy Bumble Sunny Dusty Pebble Willow Honey Snowy Tilly Bobby Freddy Timmy Millie
Rosie Oscar Winnie Bella Hoppy Scout Berry Cinnamon Dotty Echo Flick Gilbert Harvey Ivy Jasper Kiki Lulu Momo Nibbles Ollie
Paddy Quill Rolo Sage Tumble Umber Velvet Woody Ziggy Basil Chester Digby Elmer Figgy Gus Humphrey Juniper Lumpy Mopsy
Norbert Olive Peanut Rufus Sorrel Teasel Twig Wilbur""".split()

MAGIC = """Aurora Luna Stella Orla Isolde Rowan Merrin Alba Celia Selma Mirabel Rosalind Elowen Tamsin Lark
Edmund Roland Osric Bertram Alaric Ember Spark Cosmo Orin Tobin Wren Flint Cedric Gideon Barnaby Ferdinand
Bolt Tinker Glim Zola Nim Pico Dax Juno Bram Odo Fenn Ulla Wilda Yorick Zephyr Hob Tansy Marigold Nettle""".split()

# Names of the two lists above that are not for everyone.
ONLY_HE = set("""Benny Bobby Freddy Timmy Oscar Gilbert Harvey Jasper Paddy Rufus Wilbur Norbert Humphrey Chester Elmer Digby Gus
Edmund Roland Osric Bertram Alaric Cedric Gideon Barnaby Ferdinand Yorick Bram Odo Hob Cosmo Orin Tobin""".split())
ONLY_SHE = set("""Daisy Poppy Tilly Millie Rosie Winnie Bella Dotty Lulu Kiki Olive Ivy Hazel Fern Juniper Mopsy Willow
Aurora Luna Stella Orla Isolde Alba Celia Selma Mirabel Rosalind Elowen Tamsin Zola Juno Ulla Wilda Tansy Marigold""".split())

SURNAMES = """Brown Green Miller Baker Hill Wood Brook Field Rose Lane Page Bell Finch Marsh Reed Stone Winter Berry Fox
Potter Cooper Fisher Moss Penny Apple Button Plum Olsen Novak Garcia Rossi Lopez Meyer Moreau Silva Kim Tanaka""".split()

# Syllables for names that nobody has heard yet.
SYLLABLES = (
    "ba be bo bri da di do du fa fi flo ga gi go gri ha ho ja jo ka ki ko la li lo lu ma mi mo na ni no pa pi po ra ri ro "
    "sa si so ta ti to tri va vi wa wi ya zi zo".split(),
    "bo da do go ka ki la li lo ma mi mo na ni no ra ri ro ta ti to va zi".split(),
    ["", "", "", "n", "r", "l", "s", "x", "ck"],
)

# Each kind of animal: its home, what it has for hands, words for its looks.
ANIMALS = {
    "rabbit": ("burrow", "paw", "brown white grey fluffy"), "mouse": ("hole", "paw", "grey brown tiny white"),
    "bear": ("den", "paw", "brown big fluffy"), "fox": ("den", "paw", "red young orange"),
    "hedgehog": ("nest", "paw", "prickly round tiny"), "squirrel": ("nest", "paw", "red grey bushy-tailed"),
    "badger": ("den", "paw", "striped young round"), "raccoon": ("den", "paw", "striped grey furry"),
    "otter": ("den", "paw", "sleek brown glossy"), "beaver": ("lodge", "paw", "brown round busy"),
    "mole": ("tunnel", "paw", "black velvety tiny"), "kitten": ("house", "paw", "white striped black orange"),
    "puppy": ("house", "paw", "spotted brown black fluffy"), "cat": ("house", "paw", "black striped white orange"),
    "dog": ("house", "paw", "brown shaggy spotted"), "pig": ("barn", "hoof", "pink round spotted"),
    "lamb": ("barn", "hoof", "white woolly black"), "goat": ("barn", "hoof", "white brown bearded"),
    "pony": ("stable", "hoof", "brown white spotted"), "duckling": ("nest", "wing", "yellow fluffy brown"),
    "penguin": ("home", "wing", "round black-and-white young"), "frog": ("home", "hand", "green spotted tiny"),
    "turtle": ("home", "foot", "green slow young"), "panda": ("den", "paw", "round fluffy young"),
    "monkey": ("tree house", "hand", "brown young long-tailed"), "lion": ("cave", "paw", "golden young"),
    "tiger": ("cave", "paw", "striped young orange"), "elephant": ("home", "foot", "grey big young"),
    "koala": ("tree house", "paw", "grey fluffy round"), "hamster": ("nest", "paw", "golden round fluffy"),
    "wolf": ("den", "paw", "grey young silver"), "deer": ("home", "hoof", "spotted brown young"),
    "chipmunk": ("burrow", "paw", "striped tiny brown"), "donkey": ("stable", "hoof", "grey shaggy brown"),
}

# Kinds from fairy tales: pronoun or "" for either, home, hand, looks.
FAIRY = {
    "princess": ("she", "castle", "hand", "young golden-haired"), "prince": ("he", "castle", "hand", "young dark-haired"),
    "dragon": ("", "cave", "claw", "green red purple blue"), "knight": ("", "castle", "hand", "young"),
    "fairy": ("", "house under the ferns", "hand", "tiny silver-winged"), "elf": ("", "tree house", "hand", "tiny green-eyed"),
    "giant": ("", "hut", "hand", "tall young"), "troll": ("", "cave", "hand", "mossy grumpy-looking small"),
    "wizard": ("he", "tower", "hand", "young"), "witch": ("she", "cottage", "hand", "young red-haired"),
    "robot": ("", "workshop", "hand", "shiny small silver"), "unicorn": ("", "stable", "hoof", "white silver"),
    "gnome": ("", "cottage", "hand", "tiny round"),
    "goblin": ("", "hole", "hand", "small green"), "pirate": ("", "ship", "hand", "young"),
}

# Traits, with what they look like.
TRAITS = {
    "curious": ["[^h.he] wanted to know everything about everything.", "[^h.he] asked more questions than anyone else.",
                "[^h.he] liked to look under every stone.", "There was nothing that did not make [h.him] wonder."],
    "kind": ["[^h.he] always had a friendly word for everyone.", "[^h.he] never forgot to say thank you.",
             "[^h.he] shared whatever [h.he] had.", "If somebody was sad, [h] was the first to notice."],
    "shy": ["[^h.he] often hid when visitors came.", "[^h.he] spoke so softly that people had to lean in to hear.",
            "[^h.he] liked to watch from a corner.", "New faces made [h.him] blush."],
    "brave": ["[^h.he] was not afraid of the dark or of thunder.", "[^h.he] climbed the highest walls.",
              "Hardly anything could frighten [h.him].", "[^h.he] always went first."],
    "clever": ["[^h.he] could solve almost any riddle.", "[^h.he] always had a plan.", "[^h.he] thought first and acted later.",
               "When something did not work, [h.he] found another way."],
    "cheerful": ["[^h.he] sang from morning till night.", "[^h.he] could make anyone laugh.", "Even on grey days, [h.he] smiled.",
                 "[^h.he] whistled wherever [h.he] went."],
    "dreamy": ["[^h.he] could watch the clouds for hours.", "[^h.he] often forgot what [h.he] was doing.",
               "In [h.his] head there was always a story.", "[^h.he] liked to lie in the grass and think."],
    "impatient": ["[^h.he] hated to wait.", "Everything had to happen at once.", "[^h.he] ran when others walked.",
                  "For [h.him], tomorrow was much too far away."],
    "stubborn": ["When [h.he] wanted something, [h.he] did not give up.", "[^h.he] did not like to be told what to do.",
                 "[^h.he] liked to do everything alone.", "Once [h.he] said no, it stayed a no."],
    "playful": ["[^h.he] turned everything into a game.", "[^h.he] loved to run and hide and jump.", "There was no game that [h.he] did not know.",
                "[^h.he] could not sit still for long."],
    "careful": ["[^h.he] always looked twice before [h.he] took a step.", "[^h.he] kept all [h.his] things in order.",
                "[^h.he] never broke anything.", "[^h.he] liked to do things slowly and well."],
    "helpful": ["[^h.he] carried bags for the neighbours.", "[^h.he] was always there when there was work to do.",
                "[^h.he] liked nothing more than to lend a [h.hand].", "Everyone knew that they could ask [h.him] for help."],
    "lively": ["[^h.he] woke up before the birds.", "[^h.he] was always on the move.", "[^h.he] never walked when [h.he] could run.",
               "[^h.he] was never tired before bedtime."],
    "gentle": ["[^h.he] would not hurt a fly.", "Even the smallest bugs were safe with [h.him].", "[^h.he] spoke softly and listened well.",
               "Babies stopped crying when [h.he] was near."],
    "forgetful": ["[^h.he] lost one thing after another.", "Some days [h.he] even forgot to eat breakfast.",
                  "[^h.he] often forgot where [h.he] had put things.", "[^h.he] needed to be reminded of nearly everything."],
    "quiet": ["[^h.he] did not talk much, but [h.he] saw everything.", "[^h.he] liked calm evenings best.",
              "[^h.he] could sit still for a long time and just listen.", "[^h.he] used few words, but they were good ones."],
}

# What someone likes to do, and a sentence that comes back to it at the end.
HOBBIES = [
    ("to paint pictures", "That evening, [h] painted a picture of it all and hung it on the wall."),
    ("to count the stars", "That night, [h] counted the stars again, and there seemed to be one more than before."),
    ("to sing", "On the way to bed, [h] made up a little song about it."),
    ("to collect smooth stones", "[^h] found a smooth stone and kept it to remember the day."),
    ("to tell stories", "And of all the stories that [h] told, this one became the favourite."),
    ("to watch the clouds", "The next day, [h] saw a cloud that looked just like a smile."),
    ("to dance", "[^h] was so happy that [h.he] danced all the way home."),
    ("to listen to the rain", "Later it began to rain, and [h] fell asleep to the sound of the drops."),
    ("to draw maps", "[^h] took out a map that [h.he] had drawn and marked the spot with a little heart."),
    ("to pick flowers", "[^h] picked a small bunch of flowers and put them in a glass by the bed."),
    ("to look at the moon", "That night, the moon looked in at the window, big and round, and [h] waved to it."),
    ("to jump in puddles", "And when [h] saw a puddle on the way home, [h.he] jumped right into the middle of it."),
    ("to make up riddles", "At supper, [h] made up a riddle about it, and nobody could guess the answer."),
    ("to watch the birds", "In the evening, the birds sang, and [h] thought that they were singing about it."),
    ("to whistle", "[^h] whistled a happy tune all evening."),
    ("to collect colourful leaves", "[^h] put a golden leaf under the pillow and dreamed of it all."),
    ("to eat honey bread", "For supper there was honey bread, and it had never tasted so good."),
    ("to play hide-and-seek", "Later, they all played hide-and-seek, and [h] found the best hiding place of all."),
    ("to look at picture books", "At bedtime, [h] looked at a picture book, but no story in it was as good as that day."),
    ("to build little houses out of sticks", "The next day, [h] built a little house out of sticks and told everyone what had happened."),
    ("to splash in the water", "In the bath that evening, [h] splashed and laughed and told the whole story again."),
    ("to roll down hills", "On the way home, [h] rolled down the last hill, just for fun."),
    ("to make crowns out of flowers", "[^h] made a crown out of flowers and wore it until bedtime."),
    ("to smell the fresh bread in the morning", "And the next morning, the smell of fresh bread woke [h.him], and [h.he] smiled."),
    ("to climb trees", "Later, [h] climbed up into a tree and looked out over everything, feeling very content."),
    ("to sit by the fire", "That evening, [h] sat by the fire and thought about it for a long time."),
]

COLORS = "red blue green yellow orange purple pink white silver golden".split()
SOFT = "soft fluffy warm cosy striped".split()

# Things that can be carried: adjectives, tags.
THINGS = {
    "ball": (COLORS + ["bouncy", "striped"], "toy rolls"), "kite": (COLORS + ["striped", "paper"], "toy flies"),
    "teddy bear": (SOFT + ["brown", "little", "old"], "toy soft dear"), "doll": (["little", "pretty", "wooden", "rag", "tiny"], "toy dear"),
    "toy boat": (COLORS + ["wooden", "little"], "toy floats made"), "toy train": (COLORS + ["wooden", "shiny"], "toy breaks"),
    "toy car": (COLORS + ["shiny", "fast"], "toy breaks"), "drum": (COLORS + ["little", "round"], "toy music"),
    "whistle": (["silver", "tin", "wooden", "tiny"], "small music"), "spinning top": (COLORS + ["wooden"], "toy small"),
    "music box": (["golden", "little", "old", "wooden"], "breaks dear music"), "marble": (["blue", "green", "glass", "shiny"], "small rolls"),
    "shell": (["pink", "white", "smooth", "pretty"], "small found"), "button": (["shiny", "golden", "blue", "red"], "small found"),
    "feather": (["blue", "white", "long", "soft"], "small found"), "scarf": (["red", "striped", "woolly", "long", "blue"], "worn soft"),
    "hat": (["straw", "red", "pointed", "woolly", "funny"], "worn wool"), "mitten": (["red", "woolly", "blue", "striped"], "worn soft small wool"),
    "umbrella": (COLORS + ["striped", "big"], "tool"), "basket": (["little", "big", "round", "woven"], "tool"),
    "lantern": (["little", "old", "bright", "paper"], "tool light"), "blanket": (SOFT + ["blue", "yellow"], "soft dear"),
    "cup": (["blue", "yellow", "pretty", "favourite"], "breaks"), "bell": (["silver", "little", "golden", "tiny"], "small music"),
    "flute": (["wooden", "silver", "little"], "music made dear"), "key": (["golden", "rusty", "little", "silver"], "small found"),
    "book": (["thick", "old", "red", "picture"], "paper dear"), "necklace": (["silver", "pretty", "golden", "shell"], "small worn dear"),
    "ring": (["silver", "golden", "tiny", "shiny"], "small worn dear found"), "vase": (["blue", "tall", "glass", "pretty"], "breaks"),
    "clock": (["old", "round", "wooden", "golden"], "breaks"), "wooden horse": (["little", "brown", "painted"], "toy made dear breaks"),
    "puppet": (["funny", "little", "wooden"], "toy made dear breaks"), "wagon": (["red", "little", "wooden", "old"], "toy breaks"),
    "scooter": (["red", "blue", "fast", "shiny"], "toy breaks"), "paintbrush": (["long", "thin", "new"], "small tool"),
    "magnifying glass": (["round", "old", "shiny"], "tool dear"), "compass": (["golden", "old", "little"], "small tool dear"),
    "yo-yo": (["red", "yellow", "green", "shiny"], "toy small"), "toy rabbit": (SOFT + ["white", "little"], "toy soft dear"),
    "bracelet": (["beaded", "silver", "pretty", "blue"], "small worn dear"),
    "jar of marbles": (["big", "heavy", "full"], "breaks"), "paper boat": (["white", "little", "blue"], "toy floats made paper"),
    "coin": (["golden", "silver", "old", "shiny"], "small found"), "snow globe": (["little", "pretty", "round"], "breaks dear"),
    "locket": (["silver", "golden", "tiny"], "small worn dear"), "toy robot": (["silver", "red", "little"], "toy breaks"),
    "stone": (["smooth", "round", "white", "speckled"], "small found"), "ribbon": (["red", "blue", "silk", "long"], "small worn soft"),
    "flower pot": (["red", "clay", "painted"], "breaks"), "teapot": (["blue", "white", "old", "round"], "breaks"),
    "pencil": (["red", "long", "new", "blue"], "small tool"), "backpack": (["green", "red", "new", "little"], "tool"),
}

# Food: how a portion is called, singular or plural or mass, tags.
FOODS = {
    "pancakes": ("pl", "cook sweet"), "apple pie": ("sg", "cook sweet cake"), "carrot soup": ("mass", "cook warm"),
    "cookies": ("pl", "cook sweet"), "honey cake": ("sg", "cook sweet cake"), "blueberry muffins": ("pl", "cook sweet"),
    "vegetable soup": ("mass", "cook warm"), "chocolate cake": ("sg", "cook sweet cake"), "strawberry jam": ("mass", "cook sweet"),
    "cherry pie": ("sg", "cook sweet cake"), "pumpkin soup": ("mass", "cook warm"), "cinnamon buns": ("pl", "cook sweet"),
    "plum cake": ("sg", "cook sweet cake"), "noodles": ("pl", "cook warm"), "dumplings": ("pl", "cook warm"),
    "lemon cake": ("sg", "cook sweet cake"), "oatmeal": ("mass", "cook warm"), "ginger cookies": ("pl", "cook sweet"),
    "berry pie": ("sg", "cook sweet cake"), "potato soup": ("mass", "cook warm"), "waffles": ("pl", "cook sweet"),
    "apples": ("pl", "raw fruit"), "pears": ("pl", "raw fruit"), "cherries": ("pl", "raw fruit"), "plums": ("pl", "raw fruit"),
    "strawberries": ("pl", "raw fruit"), "blackberries": ("pl", "raw fruit"), "nuts": ("pl", "raw"), "carrots": ("pl", "raw"),
    "oranges": ("pl", "raw fruit"), "raspberries": ("pl", "raw fruit"), "bread and cheese": ("mass", "raw"),
    "sandwiches": ("pl", "raw"), "bananas": ("pl", "raw fruit"), "peaches": ("pl", "raw fruit"),
}

# Small animals that people meet: looks, what is said of their voices, homes.
CREATURES = {
    "bird": ("small brown blue little", "chirped", "nest"), "kitten": ("grey tiny striped black", "meowed", "basket"),
    "puppy": ("brown little spotted white", "whimpered", "basket"), "hedgehog": ("small prickly round", "sniffed", "pile of leaves"),
    "duckling": ("yellow fluffy tiny", "peeped", "pond"), "rabbit": ("white little brown", "wiggled its nose", "burrow"),
    "squirrel": ("red little grey", "chattered", "tree"), "owl": ("small fluffy white", "hooted", "tree"),
    "fawn": ("spotted little thin", "blinked", "forest"), "fox cub": ("red tiny fluffy", "whined", "den"),
    "mouse": ("tiny grey little", "squeaked", "hole"), "lamb": ("white little woolly", "bleated", "meadow"),
    "seagull": ("white young grey", "cried", "cliff"), "turtle": ("green small old", "blinked", "pond"),
}
