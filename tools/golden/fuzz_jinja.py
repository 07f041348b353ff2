# SPDX-License-Identifier: Apache-2.0
"""Differential fuzzing of the template engine against Python's jinja2.

    python tools/golden/fuzz_jinja.py --tool build/cpu/tests/jinja_render_tool --seconds 300 [--seed N] [--keep FILE]

Random templates from a grammar that is mostly well typed, rendered by both. Outcomes: equal text, both fail, the tool
says "not supported" (counted, allowed), or a difference (printed). Differences make the exit status 1.
A seed reproduces its run; each template also prints alone.
"""
import argparse
import json
import random
import subprocess
import sys
import time
import warnings

import jinja_env

VARIABLES = {
    "s": "h\u00e9llo W\u00f6rld \u4e2d\u6587",
    "e": "",
    "w": " \n pad\t",
    "q": "it's \"q\" \\ <b>&",
    "th": "<think>\nx\n</think>\n\nAnswer",
    "i": 7,
    "z": 0,
    "neg": -3,
    "fl": 2.5,
    "big": 2**63,
    "b": True,
    "n": None,
    "l": [3, 1, 2],
    "ls": ["b", "A", "a", "C"],
    "m": [1, "x", None, 2.5, True, [1], {"k": 1}],
    "el": [],
    "d": {"b": 1, "A": "x", "c": [1, 2], "items": 5},
    "ld": [{"r": "u", "v": 1}, {"r": "a", "v": 2, "o": None}, {"r": "u", "v": 0}],
    "ll": [[1, 2], [3, 4]],
}
NAMES = list(VARIABLES) + ["undef", "v1", "v2"]
ATTRS = ["b", "A", "k", "r", "v", "items", "zz", "upper", "get", "real", "o"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float",
         "boolean", "true", "false", "odd", "even", "lower", "upper", "callable", "escaped",
         "divisibleby(2)", "eq(1)", "ne('a')", "gt(1)", "lt(2)", "ge(1)", "le(1)", "in([1,'a'])", "sameas(none)",
         "divisibleby 3", "equalto 'u'"]
FILTERS = ["abs", "attr('b')", "batch(2)|list", "batch(2, 0)|list", "capitalize", "center(9)", "count", "d('x')",
           "default('y', true)", "dictsort", "dictsort(true)", "dictsort(by='value')", "dictsort(reverse=true)", "e",
           "escape", "first", "float", "float(1.5)", "forceescape", "format(1)", "format('a', 2)", "groupby('r')",
           "groupby(0)", "indent", "indent(2, true)", "indent('>', blank=true)", "int", "int(5)", "int(base=16)",
           "items|list", "join", "join(', ')", "join('-', attribute='r')", "last", "length", "list", "lower",
           "map('upper')|list", "map('string')|list", "map(attribute='r')|list", "map(attribute='zz', default=0)|list",
           "map('first')|list", "map('length')|list", "map('int')|join", "max", "min", "reject('odd')|list",
           "reject('none')|list", "rejectattr('o')|list", "rejectattr('r', 'eq', 'u')|list", "replace('a', 'bb')",
           "replace('l', '', 1)", "replace('', '.')", "reverse|list", "round", "round(1)", "round(1, 'floor')",
           "round(-1)", "safe", "select|list", "select('string')|list", "select('gt', 1)|list", "selectattr('v')|list",
           "selectattr('r', 'equalto', 'u')|map(attribute='v')|list", "slice(2)|list", "slice(2, 9)|list", "sort",
           "sort(reverse=true)", "sort(attribute='v')", "sort(attribute='r,v', reverse=true)",
           "sort(case_sensitive=true)", "string", "sum", "sum(start=1)", "sum(attribute='v')", "title", "tojson",
           "tojson(indent=1)", "tojson(ensure_ascii=true)", "tojson(separators=(',', ':'), sort_keys=true)", "trim",
           "trim('hd')", "truncate(5)", "truncate(6, true, '')", "unique|list", "unique(true)|list", "upper",
           "wordcount"]
METHODS = ["upper()", "lower()", "title()", "capitalize()", "swapcase()", "strip()", "lstrip()", "rstrip()",
           "strip('<b>h')", "lstrip('\\n')", "rstrip('\\n')", "split()", "split(' ')", "split('l')", "split('l', 1)",
           "split(none, 1)", "rsplit(' ', 1)", "rsplit(none, 1)", "split('</think>')[0]", "split('</think>')[-1]",
           "splitlines()", "splitlines(true)", "partition('l')", "rpartition('l')", "startswith('h')",
           "startswith(('x', ' '))", "endswith('d')", "find('l')", "rfind('l')", "find('l', 3)", "find('l', -3, 99)",
           "index('l')", "count('l')", "count('')", "replace('l', 'L')", "replace('l', 'L', 1)", "join(['a', 'b'])",
           "join(ls)", "center(20)", "center(21, '*')", "ljust(20)", "rjust(20, '.')", "zfill(20)", "isalpha()",
           "isdigit()", "isspace()", "isupper()", "islower()", "isalnum()", "removeprefix('h')", "removesuffix('d')",
           "expandtabs(4)", "format(1, x=2)", "casefold()", "get('b')", "get('zz', 3)", "get(1)", "items()|list",
           "keys()|list", "values()|list", "copy()", "count(1)", "index(1)", "items()", "append(1)", "is_integer()"]
FORMATS = ["%s", "%d", "%5.1f|%s", "%-6s|", "%05d", "%x", "%r", "%%", "%e", "%g", "%+d", "%(b)s", "%i%%", "%c"]
BRACES = ["{}", "{:>8}", "{:<6}|", "{:^9}", "{:*^9}", "{!r}", "{:05d}", "{:.2f}", "{:,}", "{:x}", "{0}", "{x}", "{:e}"]

PROBE = ("{%% set ns = namespace(a=0, b='') %%}{%% macro mac(x, y=3) %%}<{{ x }}|{{ y }}>{%% endmacro %%}"
         "{%% for v1 in l %%}{%% set v2 = v1 %%}{{ %s }}{%% endfor %%}")


class Generator:
    def __init__(self, rng):
        self.rng = rng
        self.loops = 0

    def pick(self, items):
        return self.rng.choice(items)

    def literal(self):
        kind = self.rng.randrange(9)
        if kind == 0:
            return str(self.pick([0, 1, 2, 3, 7, 10, 100, 12345678901]))
        if kind == 1:
            return self.pick(["0.5", "1.0", "2.5", "1e3", "1e-7", "3.14159", "1e22"])
        if kind < 5:
            return self.pick(["'a'", "'b c'", "''", "'\u00e9\u4e2d'", "\"it's\"", "'a\\nb'", "'%s'", "'{}'", "'  x '", "'12'",
                              "'1.5'", "'<a>'", "'l'", "'b'"])
        if kind == 5:
            return self.pick(["true", "false", "none", "[]", "{}", "()"])
        if kind == 6:
            return "[" + ", ".join(self.atom() for _ in range(self.rng.randrange(4))) + "]"
        if kind == 7:
            return "{" + ", ".join(self.pick(["'a'", "'b'", "1", "none", "'r'"]) + ": " + self.atom() for _ in range(self.rng.randrange(3))) + "}"
        return "(" + ", ".join(self.atom() for _ in range(2)) + ")"

    def atom(self):
        if self.loops and self.rng.random() < 0.15:
            return "loop." + self.pick(["index", "index0", "first", "last", "length", "revindex", "revindex0", "depth",
                                        "previtem", "nextitem", "cycle('a', 'b')", "changed(i)", "depth0"])
        return self.pick(NAMES) if self.rng.random() < 0.65 else self.literal()

    def index(self):
        if self.rng.random() < 0.5:
            return self.pick(["0", "1", "-1", "5", "'b'", "'r'", "i", "none", "1.0", "true"])
        bound = lambda: self.pick(["", "", "0", "1", "2", "-1", "-2", "9", "none"])
        step = self.pick(["", "", ":", ":-1", ":2", ":-2"])
        return bound() + ":" + bound() + step

    def expr(self, depth=0):
        roll = self.rng.random()
        if depth > 3 or roll < 0.2:
            return self.atom()
        if roll < 0.42:
            return f"{self.operand(depth)}|{self.pick(FILTERS)}"
        if roll < 0.54:
            return f"{self.operand(depth)}.{self.pick(METHODS)}"
        if roll < 0.68:
            return f"{self.operand(depth)} {self.pick(BINARY)} {self.operand(depth)}"
        if roll < 0.75:
            return f"{self.variable(depth)}[{self.index()}]"
        if roll < 0.79:
            return f"{self.operand(depth)}.{self.pick(ATTRS)}"
        if roll < 0.85:
            return f"{self.operand(depth)} is {self.pick(['', '', 'not '])}{self.pick(TESTS)}"
        if roll < 0.89:
            other = f" else {self.operand(depth)}" if self.rng.random() < 0.8 else ""
            return f"({self.operand(depth)} if {self.operand(depth)}{other})"
        if roll < 0.91:
            return f"{self.pick(['-', '+', 'not '])}{self.operand(depth)}"
        if roll < 0.93:
            return f"'{self.pick(FORMATS)}' % {self.operand(depth)}"
        if roll < 0.94:
            return f"'{self.pick(BRACES)}'.format({self.operand(depth)}, x={self.operand(depth)})"
        if roll < 0.96:
            return f"range({', '.join(self.pick(['0', '1', '3', '5', 'i', '-2', '10']) for _ in range(self.rng.randrange(1, 4)))}){self.pick(['', '|list', '[1]', '|length'])}"
        if roll < 0.98:
            return f"{self.pick(['mac', 'mac', 'undef', 'dict', 'namespace'])}({self.pick(['', self.operand(depth), 'x=' + self.operand(depth), '1, 2, 3', 'l, y=2'])})"
        return f"{self.pick(['2', 'i', 'fl', 'neg'])} ** {self.pick(['2', '3', '0', '-1', '0.5'])}"

    def variable(self, depth):
        # Subscripts of constants are folded by jinja2 at compile time with slightly other errors.
        return self.pick(NAMES) if self.rng.random() < 0.7 else f"({self.pick(NAMES)}|{self.pick(FILTERS)})"

    def operand(self, depth):
        text = self.expr(depth + 1)
        simple = text.replace("_", "").replace(".", "").isalnum() and " " not in text
        return text if simple else f"({text})"

    def tag(self, text):
        return "{%" + self.pick(["", "", "", "-", "+"]) + " " + text + " " + self.pick(["", "", "", "-", "+"]) + "%}"

    def space(self):
        return self.pick(["", "", " ", "\n", "  ", "\n  ", "x", "\n\n", "\t", " y\n"])

    def valid(self):
        """An expression that usually renders: most random ones raise, and one error hides the rest of a template."""
        for _ in range(6):
            text = self.expr()
            probe = PROBE % text
            if self.rng.random() < 0.04 or jinja_env.render(probe, VARIABLES)[1] is None:
                return text
        return self.atom()

    def output(self):
        return "{{" + self.pick(["", "", "-"]) + " " + self.valid() + " " + self.pick(["", "", "-"]) + "}}"

    def block(self, depth, in_loop):
        return "".join(self.statement(depth, in_loop) for _ in range(self.rng.randrange(1, 4)))

    def statement(self, depth=0, in_loop=False):
        roll = self.rng.random()
        if depth > 2 or roll < 0.45:
            return self.space() + self.output() + self.space()
        if roll < 0.55:
            text = self.tag(f"if {self.valid()}") + self.block(depth + 1, in_loop)
            if self.rng.random() < 0.3:
                text += self.tag(f"elif {self.valid()}") + self.block(depth + 1, in_loop)
            if self.rng.random() < 0.5:
                text += self.tag("else") + self.block(depth + 1, in_loop)
            return self.space() + text + self.tag("endif")
        if roll < 0.70:
            target = self.pick(["v1", "v1", "v2", "v1, v2"])
            head = f"for {target} in {self.pick(['l', 'ls', 'm', 'el', 'd', 'ld', 'll', 'd.items()', 'd|items', 's', 'undef', 'ld[::-1]', self.operand(1)])}"
            if self.rng.random() < 0.25:
                head += f" if {self.operand(1)}"
            self.loops += 1
            text = self.tag(head) + self.block(depth + 1, True)
            self.loops -= 1
            if self.rng.random() < 0.2:
                text += self.tag("else") + self.block(depth + 1, in_loop)
            return self.space() + text + self.tag("endfor")
        if roll < 0.80:
            if self.rng.random() < 0.3:
                return self.tag(f"set ns.{self.pick(['a', 'b'])} = {self.valid()}") + "{{ ns.a }}"
            if self.rng.random() < 0.2:
                return self.tag("set " + self.pick(["v1", "v2", "ns.a", "v1 | upper"])) + self.block(depth + 1, in_loop) + self.tag("endset")
            return self.tag(f"set {self.pick(['v1', 'v2', 'l', 's', 'v1, v2'])} = {self.valid()}")
        if roll < 0.84:
            name = self.pick(["mac", "mac2"])
            args = self.pick(["", "x", "x, y=1", "x=2, y=x"])
            saved, self.loops = self.loops, 0
            body = self.block(depth + 1, False) + self.pick(["", "{{ x }}", "{{ varargs }}", "{{ kwargs }}", "{{ caller() }}", "{{ x }}{{ y }}"])
            self.loops = saved
            return self.tag(f"macro {name}({args})") + body + self.tag("endmacro") + "{{ mac }}"
        if roll < 0.87:
            saved, self.loops = self.loops, 0
            text = self.tag(f"call{self.pick(['', '(a)'])} mac({self.pick(['', '1', 's, 2'])})") + self.block(depth + 1, False) + self.tag("endcall")
            self.loops = saved
            return text
        if roll < 0.90:
            return self.tag("filter " + self.pick(["upper", "trim", "replace('a', 'b')|title", "indent(2)", "e"])) + self.block(depth + 1, in_loop) + self.tag("endfilter")
        if roll < 0.92:
            return self.tag(f"with v1 = {self.valid()}") + self.block(depth + 1, in_loop) + self.tag("endwith")
        if roll < 0.94 and in_loop:
            return self.tag("if " + self.valid()) + self.tag(self.pick(["break", "continue"])) + self.tag("endif")
        if roll < 0.96:
            return self.space() + self.pick(["{# c #}", "{#- c -#}", "{#+ c +#}"]) + self.space()
        if roll < 0.98:
            return self.tag("generation") + self.block(depth + 1, False) + self.tag("endgeneration")
        return self.tag("raw") + " {{ x }} " + self.space() + self.tag("endraw")

    def template(self):
        prefix = "{% set ns = namespace(a=0, b='') %}" if self.rng.random() < 0.6 else ""
        if self.rng.random() < 0.4:
            prefix += "{% macro mac(x, y=3) %}<{{ x }}|{{ y }}>{% endmacro %}"
        body = "".join(self.statement() for _ in range(self.rng.randrange(1, 5)))
        return prefix + body


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=20, help="differences to print")
    parser.add_argument("--keep", help="file for the templates that differ, one JSON string a line")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    tool = subprocess.Popen([options.tool], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
    counts = {"equal": 0, "both fail": 0, "not supported": 0, "different": 0}
    end = time.monotonic() + options.seconds
    generator = Generator(random.Random(options.seed))
    kept = open(options.keep, "w") if options.keep else None
    while time.monotonic() < end:
        template = generator.template()
        want, error = jinja_env.render(template, VARIABLES)
        if want is not None and (" at 0x" in want or len(want) > 1 << 20):
            continue
        tool.stdin.write(json.dumps({"template": template, "variables": VARIABLES}) + "\n")
        tool.stdin.flush()
        line = tool.stdout.readline()
        if not line:
            print("the tool died on", json.dumps(template))
            raise SystemExit(2)
        got = json.loads(line)
        if want is not None and got.get("output") == want:
            counts["equal"] += 1
        elif want is None and "error" in got:
            counts["both fail"] += 1
        elif got.get("code") in ("unusable_model", "resource") and "supported" in got["error"]:
            counts["not supported"] += 1
        else:
            counts["different"] += 1
            if kept:
                kept.write(json.dumps(template) + "\n")
            if counts["different"] <= options.show:
                print(json.dumps(template, ensure_ascii=False), "\n   python:", repr(want) if error is None else error,
                      "\n   ours:  ", repr(got.get("output", got.get("error"))))
    print(f"seed {options.seed}:", ", ".join(f"{count} {name}" for name, count in counts.items()))
    sys.exit(1 if counts["different"] else 0)


if __name__ == "__main__":
    main()
