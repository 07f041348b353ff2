# SPDX-License-Identifier: Apache-2.0
"""The Jinja environment in which transformers renders chat templates, rebuilt on jinja2 alone.

Facts from transformers 5.x, utils/chat_template_utils.py: immutable sandbox, trim_blocks, lstrip_blocks, loop controls,
a `generation` block that prints its body, tojson = json.dumps without ASCII escapes, raise_exception, strftime_now,
dict and namespace replaced by restricted ones (a namespace refuses names that start with an underscore).
strftime_now sees 2025-03-04 05:06:07 here so that goldens do not age.
"""
import datetime
import json

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import jinja2.utils

NOW = datetime.datetime(2025, 3, 4, 5, 6, 7)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class RestrictedNamespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            _refuse(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name, value):
        _refuse(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)


def _refuse(name):
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}")


class RestrictedDict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)


def _raise(message):
    raise jinja2.exceptions.TemplateError(message)


def _tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format):
    return NOW.strftime(format)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise
    env.globals["strftime_now"] = _strftime_now
    env.globals["dict"] = RestrictedDict()
    env.globals["namespace"] = RestrictedNamespace
    return env


_ENVIRONMENT = environment()


def render(template, variables):
    """(text, None) or (None, name of the exception and its message)."""
    try:
        return _ENVIRONMENT.from_string(template).render(**variables), None
    except Exception as error:  # every failure of a template is a result here
        return None, f"{type(error).__name__}: {error}"
