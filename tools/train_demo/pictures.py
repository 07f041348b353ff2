# SPDX-License-Identifier: Apache-2.0
"""Pictures of coloured shapes and short words, with questions and answers ending in `#### <value>`.

A scene's key (canvas, cells, colours, shapes) or its word decides train or test (split.py; the words of the test set are
a fixed list that training never draws).
"""

import functools
import os
import zlib

from PIL import Image, ImageDraw, ImageFont

from split import is_test

COLOURS = {"red": (220, 40, 40), "blue": (40, 70, 220), "green": (30, 150, 60), "yellow": (240, 210, 40), "purple": (140, 50, 170),
           "orange": (245, 140, 30), "black": (20, 20, 20), "pink": (245, 130, 180)}
SHAPES = ["circle", "square", "triangle", "star", "cross", "diamond"]
CELLS = ["top left", "top", "top right", "left", "centre", "right", "bottom left", "bottom", "bottom right"]
# Height and width; the last three are no multiples of 32, so that the preprocessor must resize them.
SIZES = [(96, 96), (96, 128), (128, 96), (128, 128), (96, 160), (128, 160), (160, 128), (100, 140), (120, 90), (140, 150)]
PLURAL = {"cross": "crosses"}
# Words of the test set.
TEST_WORDS = """SUN SEA TEA BUS CAR DOG CAT HAT MAP PEN BOX CUP EGG ICE JAM KEY LEG NUT OAK OWL PIG RAT SKY TOY VAN WEB ZOO ARM BED COW EAR FOX GAS HEN
INK JET LIP MUD NET OIL PIE RUG SAW TIN URN WAX YAK BEE DEN FAN GUM BIRD BOAT BOOK CAKE COIN CORN DESK DOOR DUCK FARM FISH FLAG FORK FROG GATE GOLD HAND
HILL HOME IRON KITE LAMB LAKE LEAF LION MILK MOON NEST NOSE PARK RAIN RING ROAD ROOF ROPE ROSE SALT SAND SHIP SHOE SNOW SOAP STAR TENT TREE WIND WOLF WOOD
APPLE BREAD CHAIR CLOUD EARTH FRUIT GRASS HORSE HOUSE LEMON LIGHT MOUSE MUSIC NIGHT OCEAN PAPER PLANT QUEEN RIVER SHEEP SPOON STONE STORM TABLE TIGER TRAIN
WATER WHALE""".split()


FACES = [f"DejaVuSans{x}" for x in ("", "-Bold", "-BoldOblique", "-Oblique")] + [f"DejaVuSansMono{x}" for x in ("", "-Bold", "-BoldOblique", "-Oblique")] + \
    [f"DejaVuSerif{x}" for x in ("", "-Bold", "-BoldItalic", "-Italic")]


@functools.lru_cache(maxsize=1)
def font_files():
    """The twelve DejaVu faces that both matplotlib and the fonts-dejavu packages have, and Pillow's own (None)."""
    folders = ["/usr/share/fonts/truetype/dejavu"]
    try:
        import matplotlib
        folders.append(os.path.join(os.path.dirname(matplotlib.__file__), "mpl-data", "fonts", "ttf"))
    except ImportError:
        pass
    found = [next((p for p in (os.path.join(d, face + ".ttf") for d in folders) if os.path.exists(p)), None) for face in FACES]
    if None in found:
        raise SystemExit(f"{FACES[found.index(None)]}.ttf is missing: install fonts-dejavu-core and fonts-dejavu-extra, or matplotlib")
    return (*found, None)


@functools.lru_cache(maxsize=512)
def font(path, size):
    return ImageFont.load_default(size) if path is None else ImageFont.truetype(path, size)


def plural(word, n=2):
    return word if n == 1 else PLURAL.get(word, word + "s")


def a(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def draw_shape(d, shape, x, y, r, colour):
    if shape == "circle":
        d.ellipse([x - r, y - r, x + r, y + r], fill=colour)
    elif shape == "square":
        s = r * 0.88
        d.rectangle([x - s, y - s, x + s, y + s], fill=colour)
    elif shape == "triangle":
        d.polygon([(x, y - r), (x + r, y + r * 0.8), (x - r, y + r * 0.8)], fill=colour)
    elif shape == "diamond":
        d.polygon([(x, y - r * 1.1), (x + r * 0.8, y), (x, y + r * 1.1), (x - r * 0.8, y)], fill=colour)
    elif shape == "cross":
        w = r * 0.38
        d.rectangle([x - w, y - r, x + w, y + r], fill=colour)
        d.rectangle([x - r, y - w, x + r, y + w], fill=colour)
    else:  # a five-pointed star: unit circle points at 72 degrees
        outer = [(0, -1), (0.951, -0.309), (0.588, 0.809), (-0.588, 0.809), (-0.951, -0.309)]
        inner = [(0.235, -0.324), (0.380, 0.124), (0, 0.4), (-0.380, 0.124), (-0.235, -0.324)]
        points = [p for pair in zip(outer, inner) for p in pair]
        d.polygon([(x + px * r * 1.15, y + py * r * 1.15) for px, py in points], fill=colour)


def background(rng):
    base = rng.choice([(255, 255, 255), (240, 240, 235), (225, 232, 240), (250, 245, 225)])
    return tuple(max(0, min(255, c + rng.randint(-5, 5))) for c in base)


def shapes_scene(rng, test):
    """Returns (image, objects): objects are (cell, colour, shape), sorted by cell."""
    while True:
        h, w = rng.choice(SIZES)
        n = rng.choice([1, 2, 2, 3, 3, 4, 5])
        few = rng.sample(list(COLOURS), rng.randint(1, min(4, max(2, n)))), rng.sample(SHAPES, rng.randint(1, min(4, max(2, n))))
        objects = sorted((cell, rng.choice(few[0]), rng.choice(few[1])) for cell in rng.sample(range(9), n))
        if is_test(f"{h}x{w}:{objects}") == test:
            break
    image = Image.new("RGB", (w, h), background(rng))
    d = ImageDraw.Draw(image)
    for cell, colour, shape in objects:
        cy, cx = h / 6 * (2 * (cell // 3) + 1), w / 6 * (2 * (cell % 3) + 1)
        room = min(h, w) / 6
        r = rng.uniform(0.6, 0.9) * room
        x, y = cx + rng.uniform(-1, 1) * (room - r), cy + rng.uniform(-1, 1) * (room - r)
        draw_shape(d, shape, x, y, r, tuple(max(0, min(255, c + rng.randint(-12, 12))) for c in COLOURS[colour]))
    return image, objects


def word_scene(rng, test):
    """Returns (image, word, colour name)."""
    if test:
        word = rng.choice(TEST_WORDS)
    else:
        while True:
            n = rng.choice([3, 3, 4, 4, 5])
            if rng.random() < 0.5:
                word = "".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(n))
            else:
                word = "".join(rng.choice("AEIOU" if (i + n) % 2 else "BCDFGHKLMNPRSTVWY") for i in range(n))
            if word not in TEST_SET:
                break
    h, w = rng.choice(SIZES)
    colour = rng.choice([c for c in COLOURS if c not in ("yellow",)])
    image = Image.new("RGB", (w, h), background(rng))
    d = ImageDraw.Draw(image)
    path = rng.choice(font_files())
    for size in range(rng.randint(22, 36), 11, -1):
        f = font(path, size)
        left, top, right, bottom = d.textbbox((0, 0), word, font=f)
        if right - left <= w - 8:
            break
    x = rng.uniform(4, max(4, w - 4 - (right - left))) - left
    y = rng.uniform(4, max(4, h - 4 - (bottom - top))) - top
    d.text((x, y), word, font=f, fill=COLOURS[colour])
    return image, word, colour


TEST_SET = frozenset(TEST_WORDS)


def listing(objects):
    return ", ".join(f"{CELLS[cell]}: {colour} {shape}" for cell, colour, shape in objects)


def ask_shapes(rng, objects):
    """One question about a scene of shapes: (question, answer)."""
    cell, colour, shape = rng.choice(objects)
    same_shape = [o for o in objects if o[2] == shape]
    same_colour = [o for o in objects if o[1] == colour]
    same = [o for o in objects if o[1:] == (colour, shape)]
    kind = rng.randrange(9)
    if kind == 0:
        n = len(objects)
        return rng.choice(["How many shapes are there?", "How many shapes do you see?", "Count the shapes."]), f"{listing(objects)}\n#### {n}"
    if kind == 1:
        other = rng.choice(SHAPES) if rng.random() < 0.25 else shape
        found = [o for o in objects if o[2] == other]
        return rng.choice([f"How many {plural(other)} are there?", f"Count the {plural(other)}."]), f"{listing(found) or 'none'}\n#### {len(found)}"
    if kind == 2:
        other = rng.choice(list(COLOURS)) if rng.random() < 0.25 else colour
        found = [o for o in objects if o[1] == other]
        return rng.choice([f"How many {other} shapes are there?", f"How many shapes are {other}?"]), f"{listing(found) or 'none'}\n#### {len(found)}"
    if kind == 3 and len(same_shape) == 1:
        return rng.choice([f"What colour is the {shape}?", f"Which colour does the {shape} have?", f"What is the colour of the {shape}?"]), f"The {shape} is {colour}.\n#### {colour}"
    if kind == 4 and len(same_colour) == 1:
        return rng.choice([f"What shape is {colour}?", f"Which shape is {colour}?", f"What is the {colour} shape?"]), f"The {colour} shape is {a(shape)}.\n#### {shape}"
    if kind == 5 and len(same) == 1:
        return rng.choice([f"Where is the {colour} {shape}?", f"In which part of the picture is the {colour} {shape}?"]), f"{CELLS[cell]}: {colour} {shape}\n#### {CELLS[cell]}"
    if kind == 6:
        if rng.random() < 0.5:
            colour, shape = rng.choice(list(COLOURS)), rng.choice(SHAPES)
        found = [o for o in objects if o[1:] == (colour, shape)]
        return rng.choice([f"Is there {a(colour)} {shape}?", f"Do you see {a(colour)} {shape}?"]), f"{listing(found) or 'none'}\n#### {'yes' if found else 'no'}"
    if kind == 7:
        where = CELLS[cell]
        return rng.choice([f"What is at the {where}?", f"Which shape is at the {where}?"]), f"{where}: {colour} {shape}\n#### {colour} {shape}"
    return rng.choice(["Describe the picture.", "What do you see?", "List all shapes."]), f"{listing(objects)}\n#### {len(objects)}"


def ask_word(rng, word, colour):
    if rng.random() < 0.75:
        return rng.choice(["What word is written here?", "Which word do you see?", "Read the word.", "What does the picture say?"]), f"{' '.join(word)}\n#### {word}"
    return rng.choice(["What colour is the word?", "Which colour does the text have?"]), f"The word is {colour}.\n#### {colour}"


def ask_two(rng, first, second):
    """A question over two scenes of shapes."""
    both = [first, second]
    kind = rng.randrange(3)
    if kind == 0:
        n, m = len(first), len(second)
        return "How many shapes are in both pictures together?", f"first: {listing(first)}\nsecond: {listing(second)}\n{n}+{m}={n + m}\n#### {n + m}"
    which = rng.randrange(2)
    order = ["first", "second"]
    if kind == 1:
        cell, colour, shape = rng.choice(both[which])
        if not any(o[1:] == (colour, shape) for o in both[1 - which]):
            return f"Which picture shows {a(colour)} {shape}, the first or the second?", f"{order[which]}: {CELLS[cell]}: {colour} {shape}\n#### {order[which]}"
    return f"List the shapes of the {order[which]} picture.", f"{listing(both[which])}\n#### {len(both[which])}"


def make(rng, test, questions=1):
    """Returns (images, [(question, answer)]); a word's picture and pairs of pictures now and then."""
    kind = rng.random()
    if kind < 0.25:
        image, word, colour = word_scene(rng, test)
        asks = [ask_word(rng, word, colour)]
        if questions > 1 and rng.random() < 0.5:
            asks.append(ask_word(rng, word, colour))
        return [image], asks
    if kind < 0.37:
        (one, first), (two, second) = shapes_scene(rng, test), shapes_scene(rng, test)
        return [one, two], [ask_two(rng, first, second)]
    image, objects = shapes_scene(rng, test)
    return [image], [ask_shapes(rng, objects) for _ in range(questions)]


# --- as the processor of the Qwen3.5 family sees a picture -------------------------------------------------------------
PATCH, MERGE = 16, 2
MIN_PIXELS, MAX_PIXELS = 64 * 64, 512 * 512


def fitted(h, w):
    """Sides rounded to multiples of 32 (half to even); every size in SIZES stays within the pixel limits."""
    f = PATCH * MERGE
    return round(h / f) * f, round(w / f) * f


def patches(image):
    """uint8 patches [h/16*w/16, 768] in merge-block order, each one channel, row, column; and the grid (h/16, w/16)."""
    import numpy as np
    h, w = fitted(image.height, image.width)
    if (w, h) != image.size:
        image = image.resize((w, h), Image.BICUBIC)
    gh, gw = h // PATCH, w // PATCH
    x = np.asarray(image, dtype=np.uint8).reshape(gh // 2, 2, PATCH, gw // 2, 2, PATCH, 3)
    return np.ascontiguousarray(x.transpose(0, 3, 1, 4, 6, 2, 5)).reshape(gh * gw, 3 * PATCH * PATCH), (gh, gw)


def checksum(image):
    return zlib.crc32(image.tobytes())
