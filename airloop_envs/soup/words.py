"""The vocabulary of generated pages: people, places, products, prices and prose, all written for this project."""

from __future__ import annotations

from airloop_envs.soup.rng import Rng


def listed(words: str) -> tuple[str, ...]:
    return tuple(words.split())


FIRST = listed(
    "Ada Alma Anton Bela Bruno Carla Cedric Dana Dario Edda Elias Emil Fiona Frida Gaston Greta Hanna Hugo Ida Ilja "
    "Ines Jana Joel Jonas Karin Kilian Lars Lena Livia Luka Mara Marek Mira Nadia Nils Noemi Olaf Oskar Paula Petra "
    "Quirin Rafael Ronja Rosa Samuel Selma Silas Tamara Theo Tilda Ulla Urban Vera Viktor Wanda Wim Xenia Yann Zora"
)
LAST = listed(
    "Abend Albers Amsel Bachmann Barth Beller Castor Conrad Dahl Dorn Eberle Engel Falk Ferber Garn Gessner Haber "
    "Hollis Imhof Jansen Juncker Kaiser Kessel Lindner Lorenz Marten Mohn Nagel Norden Oakes Orlan Pelz Prager Quast "
    "Ritter Rosner Sander Seiler Stahl Tanner Thorne Uhl Vance Vogt Walden Weiler Wirth Yates Zander Zobel"
)
CITIES = listed(
    "Ashbourne Belmere Cawdor Dunmoor Eastwick Fenholm Glenby Harrowgate Ingleton Jarrow Kelby Lowford Marsham Northam "
    "Oakhurst Penrith Quarndon Redmire Saltburn Thornby Ulverton Vale Westerham Yarmouth Zennor Aldbury Brackley Corley"
)
ADJECTIVES = listed(
    "amber ample bright broad calm clear compact copper cotton crisp dark deep dry early easy fine firm fresh gentle "
    "glossy grand green hollow iron ivory keen late light linen little lively long loud mellow mild narrow neat noble "
    "oaken old open pale plain proud quick quiet rare round rustic sharp short silent silver slim small smooth soft "
    "solid steady steel stout sturdy subtle swift tall thick tidy tiny upper velvet vivid warm wide wild woollen young"
)
PRODUCTS = listed(
    "anvil apron axe basket bench binder blanket bottle bowl bracket broom brush bucket candle canoe carpet chair "
    "chisel clamp clock coat compass crate cup curtain desk dial drawer drill easel fan file flask folder fork frame "
    "funnel garden-hose glove grinder hammer hammock hanger helmet hinge jacket jar jug kettle kite knife ladder lamp "
    "lantern latch ledger lens lever lock loom magnet mallet map mask mat mattress mirror mug needle notebook oar oven "
    "paddle pan pencil pillow pipe plane planter plate pliers pouch pump quilt rack rake rope rug ruler saddle satchel "
    "saw scale scarf screen shelf shovel sieve sled spade spindle spoon stool stove tarp teapot tent tile toaster "
    "tongs torch towel tray tripod trowel trunk umbrella vase vest vise wagon wallet wheel whisk whistle wrench"
)
TOPICS = listed(
    "archives bridges canals cooking cycling drainage energy ferries forestry gardens harbours heating housing insects "
    "lighting libraries maps markets mills museums orchards parks ponds printing quarries railways rivers roofs "
    "schools sewing ships soil stone swimming textiles theatres tides timber trams trees waste water weather "
    "windows wool"
)
NOUNS = listed(
    "account answer area arrival attempt balance board branch budget bureau case centre change chapter choice circle "
    "claim clerk coast colour column comment corner council county course cover crew custom damage day debate degree "
    "demand desk detail district edge effect effort engine entry error evening event example fact farm field figure "
    "floor form garden ground group guide habit hall harbour height hill history hour house idea index island item "
    "journey keeper kitchen label lake land letter level list market matter meadow meeting member mile morning name "
    "neighbour notice number offer office order page paper part path pattern people period piece place plan platform "
    "point price process programme project question reason record region report result river road room route rule "
    "season sector series sheet shore side sign station step story street summer supply table team term test tower "
    "town trade train travel valley value view village visit voice wall week winter word work worker yard year"
)
VERBS = listed(
    "accepts adds allows answers appears applies arrives becomes begins brings builds carries changes closes comes "
    "covers crosses decides depends draws enters explains fills finds follows gathers gives grows helps holds includes "
    "joins keeps leads leaves lists lowers makes marks meets moves names needs notes offers opens passes places "
    "prepares prints proves raises reaches reads receives records remains repairs replaces reports rests returns runs "
    "sends serves sets shares shows sorts starts stays stops supplies takes teaches tells tests turns visits waits "
    "works"
)
PREPOSITIONS = listed(
    "about above across after against along among around before behind below beside between beyond by for from in "
    "inside into near of on over past since through toward under until upon with within without"
)
# Ids and classes of the parts that tasks are about; the boilerplate has others.
PARTS = listed(
    "price status summary quota badge motto lead total remark owner rating stock figure note hint term grade place "
    "deadline tariff author region target margin credit pledge batch serial"
)
CATEGORIES = listed("kitchen garden workshop travel office bedroom harbour studio cellar attic stable bakery")
COLOURS = listed(
    "amber azure beige black bronze brown coral crimson cyan golden gray green indigo lilac maroon navy olive"
)
MATERIALS = listed("ash bamboo beech birch brass canvas cedar ceramic cork felt glass granite hemp jute leather slate")
MONTHS = listed("January February March April May June July August September October November December")


def person(d: Rng) -> str:
    return f"{d.pick(FIRST)} {d.pick(LAST)}"


def people(d: Rng, n: int) -> list[str]:
    """`n` names, no first and no last name twice."""
    pairs = zip(d.sample(FIRST, n), d.sample(LAST, n), strict=True)
    return [f"{first} {last}" for first, last in pairs]


def product(d: Rng) -> str:
    return (
        f"{d.pick(ADJECTIVES).capitalize()} {d.pick(PRODUCTS)} {d.pick('ABCDEFGHJKLMNPRSTUVWXYZ')}{d.between(100, 999)}"
    )


def products(d: Rng, n: int) -> list[str]:
    """`n` names, no noun twice."""
    letters = "ABCDEFGHJKLMNPRSTUVWXYZ"
    return [
        f"{d.pick(ADJECTIVES).capitalize()} {noun} {d.pick(letters)}{d.between(100, 999)}"
        for noun in d.sample(PRODUCTS, n)
    ]


def cents(d: Rng) -> int:
    return d.between(300, 99_999)


def money(amount: int, symbol: str = "") -> str:
    """1234567 cents as 12,345.67, with the symbol before it."""
    return f"{symbol}{amount // 100:,}.{amount % 100:02d}"


def date(d: Rng) -> str:
    """As 2019-04-27; never after 2023 and never today."""
    return f"{d.between(1998, 2023)}-{d.between(1, 12):02d}-{d.between(1, 28):02d}"


def code(d: Rng) -> str:
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
    return f"{d.pick(letters)}{d.pick(letters)}-{d.between(1000, 9999)}-{d.pick(letters)}"


def slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def phrase(d: Rng) -> str:
    """Three or four words, for headings: "Quiet harbour of Belmere"."""
    return f"{d.pick(ADJECTIVES).capitalize()} {d.pick(NOUNS)} {d.pick(PREPOSITIONS)} {d.pick(CITIES)}"


def sentence(d: Rng) -> str:
    tail = f" {d.pick(PREPOSITIONS)} the {d.pick(ADJECTIVES)} {d.pick(NOUNS)}" if d.chance(0.7) else ""
    return f"The {d.pick(ADJECTIVES)} {d.pick(NOUNS)} {d.pick(VERBS)} {d.pick(PREPOSITIONS)} the {d.pick(NOUNS)}{tail}."


def prose(d: Rng, sentences: int) -> str:
    return " ".join(sentence(d) for _ in range(sentences))


def rare(d: Rng) -> str:
    """A phrase that is on one page only: with an invented word and a number."""
    return f"{d.pick(ADJECTIVES).capitalize()} {d.invented()} {d.between(100, 9999)}"
