# SPDX-License-Identifier: Apache-2.0
"""Generators and answers: train and test are disjoint, every worked line is true. python3 -m unittest discover -s tools/train_demo"""

import random
import re
import unittest

import answers
import arithmetic
import pictures
import recall
from split import is_test


class SplitTest(unittest.TestCase):

    def test_both_sides_exist_and_depend_on_the_key_alone(self):
        keys = [f"{a}+{b}" for a in range(60) for b in range(60)]
        share = sum(map(is_test, keys)) / len(keys)
        self.assertTrue(0.04 < share < 0.09, share)
        self.assertEqual([is_test(k) for k in keys], [is_test(k) for k in keys])


class ArithmeticTest(unittest.TestCase):

    def test_working_is_true_and_chain_names_it(self):
        rng = random.Random(11)
        for _ in range(3000):
            question, answer, chain = arithmetic.make(rng)
            lines = answer.split("\n")
            self.assertRegex(lines[-1], r"^#### \d+$")
            for line, part in zip(lines[:-1], chain.split(";"), strict=True):
                a, op, b, value = re.fullmatch(r"(\d+)([-+*/])(\d+)=(\d+)", line).groups()
                self.assertEqual(f"{a}{op}{b}", part)
                self.assertEqual(eval(f"{a}{'//' if op == '/' else op}{b}"), int(value), line)
                if op == "/":
                    self.assertEqual(int(a) % int(b), 0, line)
            self.assertEqual(answers.value(answer), lines[-2].split("=")[1])
            self.assertNotIn("{", question)

    def test_every_number_of_the_working_stands_in_the_story_or_was_calculated(self):
        rng = random.Random(12)
        for _ in range(2000):
            question, answer, _ = arithmetic.make(rng)
            known = {int(n) for n in re.findall(r"\d+", question)}
            for word, n in (("double", 2), ("triple", 3)):
                if word in question:
                    known.add(n)
            for line in answer.split("\n")[:-1]:
                a, b, value = map(int, re.split(r"[-+*/=]", line))
                self.assertTrue({a, b} <= known, (question, line))
                known.add(value)


class RecallTest(unittest.TestCase):

    def test_answer_is_in_the_text_and_sides_do_not_mix(self):
        rng = random.Random(13)
        for test in (False, True):
            for _ in range(50):
                text, asks = recall.make(rng, 40, 4, test)
                for question, answer, key in asks:
                    name, value = key.split("=")
                    self.assertIn(name, question)
                    self.assertEqual(answers.value(answer), value)
                    self.assertEqual(sum(name in line and value in line for line in text.split("\n")), 1)
                    self.assertEqual(is_test(key), test)


class PictureTest(unittest.TestCase):

    def test_scenes_of_the_two_sides_differ(self):
        seen = {}
        for test in (False, True):
            rng = random.Random(14)
            seen[test] = {str((image.size, objects)) for image, objects in (pictures.shapes_scene(rng, test) for _ in range(1500))}
        self.assertEqual(seen[False] & seen[True], set())

    def test_words_of_the_two_sides_differ(self):
        rng = random.Random(15)
        train = {pictures.word_scene(rng, False)[1] for _ in range(800)}
        test = {pictures.word_scene(rng, True)[1] for _ in range(300)}
        self.assertEqual(train & pictures.TEST_SET, set())
        self.assertTrue(test <= pictures.TEST_SET)

    def test_counts_and_places_agree_with_the_scene(self):
        rng = random.Random(16)
        for _ in range(400):
            _, objects = pictures.shapes_scene(rng, False)
            question, answer = pictures.ask_shapes(rng, objects)
            value = answers.value(answer)
            if question.startswith(("How many", "Count")) and "shape" not in question:
                shape = next(s for s in pictures.SHAPES if pictures.plural(s) in question)
                self.assertEqual(int(value), sum(o[2] == shape for o in objects))
            if question.startswith("Where"):
                self.assertIn(value, pictures.CELLS)

    def test_patches_rebuild_the_picture(self):
        import numpy as np
        rng = random.Random(17)
        image, _ = pictures.shapes_scene(rng, False)
        rows, (h, w) = pictures.patches(image)
        back = rows.reshape(h // 2, w // 2, 2, 2, 3, 16, 16).transpose(0, 2, 5, 1, 3, 6, 4).reshape(h * 16, w * 16, 3)
        size = (w * 16, h * 16)
        self.assertTrue((back == np.asarray(image if image.size == size else image.resize(size, pictures.Image.BICUBIC))).all())


class AnswerTest(unittest.TestCase):

    def test_value_is_what_follows_the_last_mark(self):
        self.assertEqual(answers.value("1+1=2\n#### 2"), "2")
        self.assertEqual(answers.value("#### 1\n#### 37 \nmore"), "37")
        self.assertEqual(answers.value("####"), "")
        self.assertIsNone(answers.value("the answer is 2"))

    def test_right_needs_the_mark_and_the_same_value(self):
        self.assertTrue(answers.right("x\n#### red", "#### red"))
        self.assertFalse(answers.right("2", "#### 2"))
        self.assertFalse(answers.right("#### 21", "#### 2"))
        self.assertFalse(answers.right("####", "#### 2"))


if __name__ == "__main__":
    unittest.main()
