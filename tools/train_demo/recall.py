# SPDX-License-Identifier: Apache-2.0
"""Recall: a list of named codes, then the question for one of them. The pair (name, code) decides train or test."""

from split import is_test

FIRST = ["amber", "blue", "brave", "bright", "calm", "clever", "cold", "dark", "early", "fast", "gentle", "golden", "green", "happy", "heavy", "hidden",
         "humble", "iron", "kind", "late", "light", "little", "lucky", "merry", "noble", "odd", "old", "plain", "proud", "quick", "quiet", "rapid",
         "red", "round", "royal", "sharp", "shy", "silent", "silver", "sleepy", "small", "soft", "steady", "strong", "sunny", "tall", "tiny", "warm",
         "white", "wild", "wise", "young"]
SECOND = ["badger", "bear", "beaver", "bison", "camel", "cat", "cobra", "crane", "crow", "deer", "dog", "dove", "eagle", "falcon", "finch", "fox",
          "frog", "goat", "goose", "hare", "hawk", "heron", "horse", "hound", "jackal", "koala", "lark", "lion", "lynx", "mole", "moose", "moth",
          "mouse", "newt", "otter", "owl", "panda", "raven", "robin", "seal", "shark", "snail", "stork", "swan", "tiger", "toad", "trout", "viper",
          "whale", "wolf", "wren", "zebra"]
LINES = ["The code of {k} is {v}.", "{k} has the code {v}.", "For {k} the code is {v}."]
EASY = "{k}: {v}"  # in training of models that name the key first, one list in four
ASKS = ["What is the code of {k}?", "Which code does {k} have?", "Give me the code of {k}.", "Please find the code of {k}."]
HEADS = ["Read this list of codes.", "Here is a list of codes.", "Remember these codes."]


def make(rng, entries, questions, test, working=False, easy=False):
    """Returns (text with the list, [(question, answer, key)]). The first question follows the list in the same message.
    working: the answer names the key and its code before the last line, as a sum shows its steps."""
    names = rng.sample([f"{a} {b}" for a in FIRST for b in SECOND], entries)
    form = rng.choice(LINES + [None])
    pairs = []
    for name in names:
        while True:
            value = f"{rng.randrange(1000, 10000)}"
            if is_test(f"{name}={value}") == test:
                break
        pairs.append((name, value))
    lines = [(EASY if easy else form or rng.choice(LINES)).format(k=k, v=v) for k, v in pairs]
    asked = rng.sample(pairs, min(questions, entries))
    asks = [(rng.choice(ASKS).format(k=k), (f"{k}: {v}\n" if working else "") + f"#### {v}", f"{k}={v}") for k, v in asked]
    return rng.choice(HEADS) + "\n" + "\n".join(lines) + "\n", asks
