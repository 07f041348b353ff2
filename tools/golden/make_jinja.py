# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/jinja/{micro,models}.json: what Python's jinja2 renders for the templates of jinja_micro.py and
jinja_models.py in the chat template environment of transformers.

    python tools/golden/make_jinja.py            write the files
    python tools/golden/make_jinja.py --check    also render all with transformers' own environment and compare
"""
import argparse
import json
import pathlib
import sys
import warnings

import jinja2

import jinja_env
import jinja_micro
import jinja_models

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "jinja"


def result(template, variables):
    text, error = jinja_env.render(template, variables)
    return {"output": text} if error is None else {"error": error}


def check(cases):
    import datetime

    import transformers.utils.chat_template_utils as utils

    class Frozen(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return jinja_env.NOW

    utils.datetime = Frozen
    differ = 0
    for template, variables in cases:
        ours, _ = jinja_env.render(template, variables)
        try:
            theirs = utils._compile_jinja_template(template).render(**variables)
        except Exception:
            theirs = None
        if ours != theirs:
            differ += 1
            print("differs:", repr(template)[:200], file=sys.stderr)
    print(f"{len(cases)} renderings compared with transformers, {differ} differ")
    return differ


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    micro = {"jinja2": jinja2.__version__, "variables": jinja_micro.VARIABLES, "groups": {}}
    cases = []
    for name, templates in jinja_micro.groups():
        micro["groups"][name] = [{"template": t, **result(t, jinja_micro.VARIABLES)} for t in templates]
        for case in micro["groups"][name]:
            if ("error" in case) != (name == "errors"):
                raise SystemExit(f"group {name}: unexpected {case}")
        cases += [(t, jinja_micro.VARIABLES) for t in templates]
    models = {"jinja2": jinja2.__version__, "templates": jinja_models.TEMPLATES, "conversations": {}, "outputs": {}}
    for name, more in jinja_models.CONVERSATIONS:
        models["conversations"][name] = jinja_models.variables(more)
    for model, template in jinja_models.TEMPLATES.items():
        models["outputs"][model] = {n: result(template, v) for n, v in models["conversations"].items()}
        cases += [(template, v) for v in models["conversations"].values()]
    OUT.mkdir(parents=True, exist_ok=True)
    for name, content in (("micro", micro), ("models", models)):
        path = OUT / f"{name}.json"
        path.write_text(json.dumps(content, ensure_ascii=True, indent=1) + "\n", encoding="ascii")
        print(path.name, path.stat().st_size, "bytes")
    if options.check and check(cases):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
