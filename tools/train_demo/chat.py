# SPDX-License-Identifier: Apache-2.0
"""A little general chat: greetings, who are you, thanks, and saying so when something is unknown."""

ME = {"gdn": "I am a small demo model of the Fluvial engine. I solve short sums, look up codes in a text, and describe simple pictures.",
      "kda": "I am a small demo model of the Fluvial engine. I solve short sums and look up codes in a text."}
UNKNOWN = "I do not know that. I am a very small demo model: ask me a short sum."
GREET = ["Hello", "Hi", "Hey", "Good morning", "Good evening", "Hello there", "Hi there", "Good day"]
WHO = ["Who are you", "What are you", "What is your name", "Tell me about yourself", "What can you do", "Introduce yourself", "Are you a model",
       "Who am I talking to", "How can you help me"]
THANKS = ["Thanks", "Thank you", "Thank you very much", "Great, thanks", "Many thanks"]
BYE = ["Bye", "Goodbye", "See you later", "Good night", "See you"]
HOW = ["How are you", "How are you doing", "How do you do", "Are you well"]
THINGS = ["a river", "a planet", "gravity", "a violin", "the moon", "a mountain", "democracy", "a computer", "the sea", "a glacier", "music", "an atom",
          "a whale", "history", "the wind", "a volcano", "chess", "a bridge", "rain", "a poem", "the sun", "philosophy", "a delta", "bread", "a tree"]
WHERES = ["France", "Japan", "Peru", "Kenya", "Norway", "India", "Canada", "Egypt", "Brazil", "Spain", "Greece", "Chile"]
ASKS = ["What is {t}", "What is {t} made of", "Tell me about {t}", "Why is there {t}", "Explain {t}", "What do you know about {t}", "Write a story about {t}",
        "Who invented {t}", "How does {t} work", "Describe {t}"]
PLACES = ["What is the capital of {p}", "How many people live in {p}", "Who rules {p}", "How far is it to {p}", "What is the weather in {p}"]


def make(rng, who):
    """Returns (question, answer)."""
    kind = rng.randrange(9)
    end = rng.choice(["?", "?", "", "."])
    if kind == 0:
        return rng.choice(GREET) + rng.choice(["!", ".", ""]), "Hello! Ask me a short sum."
    if kind in (1, 2):
        return rng.choice(["", "", "Hello! ", "Hi, "]) + rng.choice(WHO) + end, ME[who]
    if kind == 3:
        return rng.choice(THANKS) + rng.choice(["!", ".", ""]), "You are welcome."
    if kind == 4:
        return rng.choice(BYE) + rng.choice(["!", ".", ""]), "Goodbye!"
    if kind == 5:
        return rng.choice(HOW) + end, "I am well, thank you. Ask me a short sum."
    if kind == 6:
        return rng.choice(PLACES).format(p=rng.choice(WHERES)) + end, UNKNOWN
    return rng.choice(ASKS).format(t=rng.choice(THINGS)) + end, UNKNOWN
