#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Drives a running `fluvial serve` with the official openai client.

    tests/server/openai_client_test.py PROGRAM MODEL

Needs `pip install openai`; without it the test says so and exits with status 77, which ctest counts as skipped.
"""
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

try:
    import openai
except ImportError:
    print("skipped: the Python package openai is not installed (pip install openai)")
    sys.exit(77)

KEY = "test-key"
# Teaches nothing to a model with random weights; it makes the server look for tool calls and reasoning.
TEMPLATE = """{#- thoughts end with </think> -#}{%- if tools %}{{ '<|im_start|>system\\n<tool_call>\\n<function=' }}{% for tool in tools %}{{ tool | tojson }}
{%- endfor %}{{ '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content if m.content is string else '') + '<|im_end|>\\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% if thinking is defined and thinking -%}
{{ '<think>\\n' }}{% endif %}{% endif %}"""


class Server:
    def __init__(self, program, model, *options):
        self.process = subprocess.Popen(
            [program, "serve", str(model), "--port", "0", "--served-model-name", "demo", "--api-key", KEY, *options],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        if " on http://" not in line:
            raise RuntimeError(f"the server did not start: {line!r}")
        self.url = line.rsplit(" on ", 1)[1].strip()

    def client(self, **more):
        return openai.OpenAI(base_url=self.url + "/v1", api_key=KEY, max_retries=0, timeout=60, **more)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        model = pathlib.Path(cls.folder.name) / "model"
        shutil.copytree(MODEL, model)
        (model / "chat_template.jinja").write_text(TEMPLATE)
        cls.server = Server(PROGRAM, model, "--max-model-len", "2048", "--enable-prefix-caching")
        cls.client = cls.server.client()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        status = cls.server.stop()
        cls.folder.cleanup()
        assert status == 0, f"the server ended with {status}"

    MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a river?"}]

    def chat(self, **more):
        options = {"model": "demo", "messages": self.MESSAGES, "max_tokens": 12, "seed": 3, **more}
        return self.client.chat.completions.create(**options)

    def complete(self, **more):
        return self.client.completions.create(**{"model": "demo", "prompt": "A river is", "max_tokens": 12, "seed": 3, **more})

    def test_models(self):
        models = self.client.models.list()
        self.assertEqual([m.id for m in models.data], ["demo"])
        self.assertEqual(self.client.models.retrieve("demo").id, "demo")

    def test_completion(self):
        a, b = self.complete(), self.complete()
        self.assertEqual(a.choices[0].text, b.choices[0].text)
        self.assertEqual(a.choices[0].finish_reason, "length")
        self.assertEqual(a.usage.completion_tokens, 12)
        self.assertEqual(a.usage.total_tokens, a.usage.prompt_tokens + 12)

    def test_completion_stream(self):
        whole = self.complete(n=2)
        text, reasons, usage = {}, {}, None
        for chunk in self.complete(n=2, stream=True, stream_options={"include_usage": True}):
            if chunk.usage is not None:
                usage = chunk.usage
            for choice in chunk.choices:
                text[choice.index] = text.get(choice.index, "") + choice.text
                if choice.finish_reason is not None:
                    self.assertNotIn(choice.index, reasons)
                    reasons[choice.index] = choice.finish_reason
        self.assertEqual(text, {c.index: c.text for c in whole.choices})
        self.assertEqual(reasons, {0: "length", 1: "length"})
        self.assertEqual(usage, whole.usage)

    def test_completion_logprobs_and_echo(self):
        answer = self.complete(logprobs=3, echo=True, max_tokens=4)
        self.assertTrue(answer.choices[0].text.startswith("A river is"))
        logprobs = answer.choices[0].logprobs
        self.assertEqual(len(logprobs.tokens), answer.usage.prompt_tokens + 4)
        self.assertIsNone(logprobs.token_logprobs[0])
        self.assertTrue(all(p <= 0 for p in logprobs.token_logprobs[1:]))
        # What the model says of its own words does not depend on whether they are prompt or answer.
        given = self.complete(temperature=0, logprobs=0, max_tokens=6)
        ids = self.tokens("A river is")
        drawn = self.complete(temperature=0, logprobs=0, max_tokens=6, extra_body={"return_tokens_as_token_ids": True})
        ids += [int(t.removeprefix("token_id:")) for t in drawn.choices[0].logprobs.tokens]
        read = self.complete(prompt=ids, echo=True, logprobs=0, max_tokens=0)
        for a, b in zip(given.choices[0].logprobs.token_logprobs, read.choices[0].logprobs.token_logprobs[-6:]):
            self.assertAlmostEqual(a, b, delta=0.2)  # bf16 activations: decode and prefill round differently

    def tokens(self, prompt):
        import urllib.request
        request = urllib.request.Request(self.server.url + "/tokenize", json.dumps({"prompt": prompt}).encode(),
                                         {"Authorization": "Bearer " + KEY})
        return json.load(urllib.request.urlopen(request))["tokens"]

    def test_prompt_logprobs(self):
        answer = self.complete(extra_body={"prompt_logprobs": 2})
        listed = answer.choices[0].model_extra["prompt_logprobs"]
        self.assertEqual(len(listed), answer.usage.prompt_tokens)
        self.assertIsNone(listed[0])
        for entry in listed[1:]:
            self.assertGreaterEqual(len(entry), 2)
            self.assertTrue(all(e["logprob"] <= 0 for e in entry.values()))

    def test_chat(self):
        answer = self.chat()
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertIsInstance(answer.choices[0].message.content, str)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 12)
        parts = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a river?"}]
        self.assertEqual(self.chat(messages=parts).choices[0].message.content, answer.choices[0].message.content)

    def test_chat_stream(self):
        whole = self.chat()
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage, whole.usage)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason], ["length"])

    def test_chat_stream_helper(self):
        ends = {"logit_bias": {"1002": 100}, "extra_body": {"min_tokens": 8}}  # the end token, once it is allowed
        with self.client.chat.completions.stream(model="demo", messages=self.MESSAGES, seed=3, **ends) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        whole = self.chat(**ends)
        self.assertEqual(whole.choices[0].finish_reason, "stop")
        self.assertEqual(final.choices[0].message.content, whole.choices[0].message.content)

    def test_chat_logprobs(self):
        for k in (0, 1, 5, 20):
            answer = self.chat(logprobs=True, top_logprobs=k, max_tokens=5)
            content = answer.choices[0].logprobs.content
            self.assertEqual(len(content), 5)
            for item in content:
                self.assertEqual(len(item.top_logprobs), k)
                self.assertLessEqual(item.logprob, 0)
                self.assertEqual(bytes(item.bytes).decode("utf-8", "replace"), item.token)
        with self.assertRaises(openai.BadRequestError):
            self.chat(logprobs=True, top_logprobs=21)

    def test_n_seed_and_penalties(self):
        answer = self.chat(n=3)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2])
        self.assertEqual(answer.usage.completion_tokens, 36)
        one = self.chat(seed=4)
        self.assertEqual(answer.choices[1].message.content, one.choices[0].message.content)
        self.chat(temperature=0.5, top_p=0.9, presence_penalty=0.5, frequency_penalty=0.5, logit_bias={"300": -100},
                  extra_body={"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 2, "ignore_eos": True})

    def test_stop(self):
        whole = self.complete(temperature=0, max_tokens=30).choices[0].text
        stop = whole[4:8]
        answer = self.complete(temperature=0, max_tokens=30, stop=[stop])
        self.assertEqual(answer.choices[0].text, whole[:whole.index(stop)])
        self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_tools(self):
        tools = [{"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
        answer = self.chat(tools=tools, tool_choice="auto")
        self.assertGreater(answer.usage.prompt_tokens, self.chat().usage.prompt_tokens)  # the template lists them
        again = self.MESSAGES + [
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]
        self.assertEqual(self.chat(messages=again, tools=tools).choices[0].message.role, "assistant")
        with self.assertRaisesRegex(openai.BadRequestError, "grammar"):
            self.chat(tools=tools, tool_choice="required")

    def test_reasoning(self):
        answer = self.chat(extra_body={"chat_template_kwargs": {"thinking": True}})
        # Random words never close the thought: all of it is reasoning.
        self.assertTrue(answer.choices[0].message.model_extra["reasoning_content"])
        self.assertEqual(answer.choices[0].message.content, "")

    def test_prefix_cache_is_reported(self):
        prompt = list(range(300, 700))
        self.complete(prompt=prompt)
        cached = self.complete(prompt=prompt).usage.prompt_tokens_details.cached_tokens
        self.assertGreater(cached, 0)
        self.assertLess(cached, 400)

    def test_images_are_refused_by_a_text_model(self):
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
        with self.assertRaisesRegex(openai.BadRequestError, "images"):
            self.chat(messages=[{"role": "user", "content": [{"type": "text", "text": "?"}, image]}])

    def test_structured_output_is_refused_without_a_grammar_library(self):
        with self.assertRaisesRegex(openai.BadRequestError, "grammar"):
            self.chat(response_format={"type": "json_object"})

    def test_errors(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.chat(model="gpt-9")
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=-1)
        self.assertEqual(caught.exception.type, "invalid_request_error")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(prompt=[300] * 3000)
        self.assertIn("3000", caught.exception.message)
        self.assertIn("2047", caught.exception.message)
        with self.assertRaises(openai.BadRequestError):
            self.chat(messages=[])
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(extra_body={"typo": 1})
        self.assertEqual(caught.exception.param, "typo")
        with openai.OpenAI(base_url=self.server.url + "/v1", api_key="wrong", max_retries=0) as stranger:
            with self.assertRaises(openai.AuthenticationError):
                stranger.models.list()
        self.assertEqual(self.chat().choices[0].finish_reason, "length")

    def test_leaving_a_stream_early(self):
        for _ in range(5):
            stream = self.complete(max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
            for i, _ in enumerate(stream):
                if i == 3:
                    break
            stream.close()
        self.assertEqual(self.complete().choices[0].finish_reason, "length")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: openai_client_test.py PROGRAM MODEL [unittest options]")
    PROGRAM, MODEL = sys.argv[1], sys.argv[2]
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])
