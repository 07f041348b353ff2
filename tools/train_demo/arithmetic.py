# SPDX-License-Identifier: Apache-2.0
"""One- to three-step arithmetic word problems with short working and a last line `#### <number>`.

A problem is a chain of calculations; `chain` ("24+13;37-9") decides whether it belongs to training or to the test set
(split.py), whatever names, things and phrasings the story uses.
"""

NAMES = {"he": ["Tom", "Ben", "Omar", "Ravi", "Liam", "Noah", "Hugo", "Ivan", "Kofi", "Marco", "Paul", "Sam", "Leo", "Max"],
         "she": ["Anna", "Mia", "Zoe", "Lena", "Sara", "Nina", "Ella", "Ruth", "Yuki", "Clara", "Emma", "Lily", "Ada", "Rosa"]}
ITEMS = ["apples", "marbles", "stamps", "books", "cards", "coins", "shells", "pencils", "stickers", "cookies", "oranges",
         "buttons", "beads", "candles", "cups", "eggs", "flowers", "keys", "lemons", "muffins", "nuts", "pears", "pens",
         "plums", "postcards", "rings", "roses", "stones", "tickets", "toys"]
PACKS = ["boxes", "bags", "packs", "baskets", "crates", "jars", "trays"]
PLACES = ["on Monday", "in the morning", "after lunch", "later", "the next day", "on the way home", "in the evening"]


class Story:
    """Collects sentences and the calculations they imply."""

    def __init__(self, rng):
        self.rng = rng
        self.text, self.steps = [], []
        self.pronoun = rng.choice(["he", "she"])
        self.name = rng.choice(NAMES[self.pronoun])
        self.friend = rng.choice([n for p in NAMES.values() for n in p if n != self.name])
        self.items = rng.choice(ITEMS)

    def say(self, *templates, **values):
        text = self.rng.choice(templates)
        words = dict(name=self.name, friend=self.friend, items=self.items, he=self.pronoun, He=self.pronoun.capitalize(),
                     him={"he": "him", "she": "her"}[self.pronoun], his={"he": "his", "she": "her"}[self.pronoun],
                     item=self.items[:-1], packs=self.rng.choice(PACKS), **values)
        words["pack"] = {"boxes": "box"}.get(words["packs"], words["packs"][:-1])
        words["place"] = self.rng.choice(PLACES)
        self.text.append(text.format(**words))

    def calc(self, a, op, b):
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[op]
        self.steps.append((a, op, b, value))
        return value

    def result(self):
        return self.steps[-1][3]


def number(rng, low, high):
    """Small numbers as often as large ones: the length is drawn first."""
    return rng.randint(low, max(low, min(high, rng.choice([12, 30, 99, high]))))


def start(s, high=300):
    """A first amount; sometimes it must be calculated first."""
    r = s.rng
    if r.random() < 0.3:
        n, m = r.randint(2, 12), number(r, 2, 25)
        s.say("{name} buys {n} {packs} of {items} with {m} {items} in each {pack}.",
              "{name} has {n} {packs} with {m} {items} in each.", "There are {n} {packs} on a table, and each {pack} holds {m} {items}.",
              "{name} fills {n} {packs} with {m} {items} each.", "Each {pack} contains {m} {items}. {name} has {n} {packs}.", n=n, m=m)
        return s.calc(n, "*", m)
    a = number(r, 2, high)
    s.say("{name} has {a} {items}.", "{name} starts with {a} {items}.", "There are {a} {items} in {name}'s room.",
          "{name} owns {a} {items}.", "At first {name} has {a} {items}.", "{name} counts {a} {items} {place}.",
          "{name} collected {a} {items} last week.", a=a)
    return a


def gain(s, x):
    k = number(s.rng, 2, 200)
    s.say("{He} buys {k} more.", "Then {name} buys {k} more {items}.", "{friend} gives {him} {k} {items}.", "{He} finds {k} more {items} {place}.",
          "{He} gets {k} more {items} from {friend}.", "Then {k} more {items} arrive.", "{name} wins {k} {items}.", "{friend} brings {k} more.", k=k)
    return s.calc(x, "+", k)


def lose(s, x):
    if x < 3:
        return gain(s, x)
    k = number(s.rng, 1, x - 1)
    s.say("{He} gives {k} {items} to {friend}.", "Then {name} loses {k} of them.", "{He} sells {k} {items} {place}.", "{friend} takes {k} {items}.",
          "{k} {items} are broken and thrown away.", "{He} uses {k} of the {items}.", "{name} gives away {k} {items}.", "{k} of them get lost.", k=k)
    return s.calc(x, "-", k)


def gain_packs(s, x):
    n, m = s.rng.randint(2, 9), number(s.rng, 2, 20)
    s.say("Then {he} buys {n} {packs} with {m} {items} in each.", "{friend} brings {n} {packs} of {m} {items}.",
          "{He} gets {n} more {packs}, each with {m} {items}.", n=n, m=m)
    return s.calc(x, "+", s.calc(n, "*", m))


def grow(s, x):
    n, word = s.rng.choice([(2, "doubles"), (3, "triples")])
    s.say("Then the number of {items} {word}.", "{place} the number of {items} {word}.", word=word)
    s.text[-1] = s.text[-1][0].upper() + s.text[-1][1:]
    return s.calc(x, "*", n)


def ask_left(s):
    s.say("How many {items} does {name} have now?", "How many {items} are there now?", "How many {items} are there in the end?",
          "How many {items} does {he} have in the end?", "What is the number of {items} now?")


def ledger(s, steps):
    """An amount that changes."""
    x = start(s)
    while len(s.steps) < steps:
        room = steps - len(s.steps)
        kinds = [gain, lose, lose] + ([gain_packs] if room >= 2 else []) + ([grow] if x <= 300 else [])
        x = s.rng.choice(kinds)(s, x)
    ask_left(s)


def share(s, steps):
    """An amount that changes, then is shared equally: built backwards so that the division is exact."""
    r = s.rng
    n, each = r.randint(2, 12), number(r, 2, 40)
    total = n * each
    if steps == 1:
        s.say("{name} has {t} {items}.", "There are {t} {items}.", "{name} collects {t} {items}.", t=total)
    elif r.random() < 0.5 or total < 4:
        k = number(r, 1, 150)
        s.say("{name} has {a} {items} but loses {k} of them.", "{name} has {a} {items} and gives {k} to {friend}.", "There are {a} {items}, and {k} of them are bad.",
              a=total + k, k=k)
        s.calc(total + k, "-", k)
    else:
        k = number(r, 1, total - 1)
        s.say("{name} has {a} {items} and buys {k} more.", "{name} has {a} {items}. {friend} adds {k} {items}.", "{name} finds {a} {items} and {friend} finds {k}.",
              a=total - k, k=k)
        s.calc(total - k, "+", k)
    s.calc(total, "/", n)
    if steps == 3:
        k = number(r, 1, 99)
        s.say("{He} shares them equally among {n} friends.", "They are shared equally by {n} children.", n=n)
        s.say("{friend} is one of them and already had {k} {items}. How many {items} does {friend} have now?",
              "{friend} is one of them and had {k} {items} before. How many does {friend} have in the end?", k=k)
        s.calc(each, "+", k)
        return
    s.say("{He} shares them equally among {n} friends. How many {items} does each friend get?", "They go into {n} {packs}, the same number in each. How many {items} are in each {pack}?",
          "{He} puts {n} in every {pack}. How many {packs} are needed?", "They are split equally between {n} people. How many does each person get?", n=n)


def compare(s, steps):
    r = s.rng
    a = number(r, 3, 250)
    form = r.randrange(3)
    if steps == 1 and form == 0:
        b = number(r, 1, a - 1)
        s.say("{name} has {a} {items} and {friend} has {b} {items}. How many more {items} does {name} have than {friend}?",
              "{friend} has {b} {items}. {name} has {a} {items}. How many fewer {items} does {friend} have?",
              "What is the difference between {a} {items} and {b} {items}?", a=a, b=b)
        s.calc(a, "-", b)
        return
    if form == 1:
        n = r.choice([2, 3, 4, 5])
        s.say("{name} has {a} {items}. {friend} has {n} times as many.", "{friend} has {n} times as many {items} as {name}, who has {a}.", a=a, n=n)
        b = s.calc(a, "*", n)
    elif form == 2 or a < 4:
        k = number(r, 1, 150)
        s.say("{name} has {a} {items}. {friend} has {k} more than {name}.", "{friend} has {k} more {items} than {name}, who has {a}.", a=a, k=k)
        b = s.calc(a, "+", k)
    else:
        k = number(r, 1, a - 1)
        s.say("{name} has {a} {items}. {friend} has {k} fewer than {name}.", "{friend} has {k} fewer {items} than {name}, who has {a}.", a=a, k=k)
        b = s.calc(a, "-", k)
    if steps == 1:
        s.say("How many {items} does {friend} have?", "How many are {friend}'s?")
        return
    t = s.calc(a, "+", b)
    if steps == 2:
        s.say("How many {items} do they have together?", "How many {items} do {name} and {friend} have in total?", "How many is that in all?")
        return
    k = number(r, 1, t - 1)
    s.say("Together they give {k} {items} to a school. How many {items} are left?", "They sell {k} of all their {items}. How many remain?", k=k)
    s.calc(t, "-", k)


def shop(s, steps):
    r = s.rng
    p, n = number(r, 2, 40), r.randint(2, 12)
    s.say("A {item} costs {p} dollars. {name} buys {n} {items}.", "{name} buys {n} {items} for {p} dollars each.", "Each {item} costs {p} dollars, and {name} wants {n}.", p=p, n=n)
    t = s.calc(p, "*", n)
    if steps == 1:
        s.say("How many dollars does {he} pay?", "How much is that in dollars?", "What is the price of all of them in dollars?")
        return
    if steps == 3:
        k = number(r, 1, 60)
        s.say("{He} also buys a bag for {k} dollars.", "Sending them costs {k} dollars more.", k=k)
        t = s.calc(t, "+", k)
    if steps == 3 or r.random() < 0.7:
        change = number(r, 1, 99)
        s.say("{He} pays with {q} dollars. How many dollars does {he} get back?", "{He} had {q} dollars. How many dollars are left?", q=t + change)
        s.calc(t + change, "-", t)
    else:
        k = number(r, 1, t - 1)
        s.say("{He} has a coupon for {k} dollars off. How many dollars does {he} pay?", "{friend} pays {k} dollars of it. How many dollars does {name} pay?", k=k)
        s.calc(t, "-", k)


def rate(s, steps):
    r = s.rng
    what, unit, time = r.choice([("reads", "pages", "day"), ("bakes", "cakes", "hour"), ("walks", "miles", "week"), ("paints", "pictures", "month"),
                                 ("plants", "trees", "day"), ("writes", "lines", "hour"), ("saves", "dollars", "week"), ("folds", "boats", "hour")])
    n, d = number(r, 2, 40), r.randint(2, 12)
    if steps == 1:
        s.say("{name} {w} {n} {u} every {t}. How many {u} is that in {d} {t}s?", "Every {t} {name} {w} {n} {u}. How many {u} after {d} {t}s?", w=what, n=n, u=unit, t=time, d=d)
        s.calc(n, "*", d)
        return
    s.say("{name} {w} {n} {u} every {t} for {d} {t}s.", "For {d} {t}s {name} {w} {n} {u} each {t}.", w=what, n=n, u=unit, t=time, d=d)
    t = s.calc(n, "*", d)
    if steps == 3:
        m, e = number(r, 2, 30), r.randint(2, 9)
        s.say("{friend} {w} {m} {u} every {t} for {e} {t}s. How many {u} is that together?", "{friend} {w} {m} {u} each {t} for {e} {t}s. How many {u} do both have in total?", w=what, m=m, u=unit, t=time, e=e)
        s.calc(t, "+", s.calc(m, "*", e))
        return
    k = number(r, 1, 150)
    if r.random() < 0.5:
        s.say("The goal is {q} {u}. How many {u} are missing?", "{He} wants to reach {q} {u}. How many {u} are still to do?", q=t + k, u=unit)
        s.calc(t + k, "-", t)
    else:
        s.say("After that {he} {w} {k} more {u}. How many {u} is that in total?", "{friend} {w} {k} {u}. How many {u} is that together?", w=what, k=k, u=unit)
        s.calc(t, "+", k)


def bare(s, steps):
    """Plain sums; evaluated from left to right, the product first."""
    r = s.rng
    op = r.choice("++--**/")
    if op == "/":
        b, q = r.randint(2, 12), number(r, 2, 60)
        a = b * q
    elif op == "*":
        a, b = r.randint(2, 12), number(r, 2, 60)
        if r.random() < 0.5:
            a, b = b, a
    else:
        a, b = number(r, 2, 499), number(r, 2, 499)
        if op == "-":
            a, b = max(a, b), min(a, b)
    x = s.calc(a, op, b)
    expr = f"{a} {op} {b}"
    for _ in range(steps - 1):
        op = r.choice("+-") if x > 2 else "+"
        k = number(r, 1, min(300, x - 1) if op == "-" else 300)
        x = s.calc(x, op, k)
        expr += f" {op} {k}"
    s.say("What is {e}?", "Calculate {e}.", "How much is {e}?", "{e} = ?", "Please work out {e}.", "Find the value of {e}.", e=expr)


KINDS = [ledger, ledger, ledger, share, compare, shop, rate, bare]


def make(rng):
    """Returns (question, answer, chain)."""
    while True:
        s = Story(rng)
        steps = rng.choice([1, 2, 2, 3, 3])
        rng.choice(KINDS)(s, steps)
        if 1 <= len(s.steps) <= 3 and all(0 <= v <= 999 and a <= 999 and b <= 999 for a, _, b, v in s.steps):
            break
    working = "\n".join(f"{a}{op}{b}={v}" for a, op, b, v in s.steps)
    chain = ";".join(f"{a}{op}{b}" for a, op, b, _ in s.steps)
    return " ".join(s.text), f"{working}\n#### {s.result()}", chain
