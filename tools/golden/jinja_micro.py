# SPDX-License-Identifier: Apache-2.0
"""Micro templates of the goldens: features and known silent differences. A line of a block is one template; each starts
with the point of the line and adds its relatives. <U+XXXX> stands for that character."""

import re

VARIABLES = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi", "tags": ["a", "B"]},
        {"role": "assistant", "content": "ho", "n": 1, "meta": {"city": "Rome"}},
        {"role": "user", "content": "", "n": 2, "meta": {"city": "rome"}},
    ],
    "x": 5,
    "f": 2.5,
    "big": 18446744073709551615,
    "neg": -7,
    "s": "h\u00e9llo \u4e2d\u6587 \U0001f600",
    "html": "<a href=\"x\">it's & co</a>",
    "d": {"b": 1, "a": [1, 2.5, None, True], "items": "key"},
    "l": [3, 1, 2],
    "words": ["banana", "Apple", "cherry", "apple"],
    "empty": [],
    "nested": [[1, [2, 3]], [4]],
    "name": "World",
    "t": True,
    "nul": None,
    "text": "line one\nline two\n\nline four\n",
}

NUMBERS = r"""
{{ 7/2 }} {{ 8/2 }} {{ 7//2 }} {{ -7//2 }} {{ 7%3 }} {{ -7%3 }} {{ 7%-3 }}
{{ 7.5//2 }} {{ -7.5//2 }} {{ 7.5%2 }} {{ -7.5%2 }} {{ 0.0//-1 }} {{ 5.0%-2 }}
{{ 2**10 }} {{ 2**-1 }} {{ 2.0**3 }} {{ 2**3**2 }} {{ -2**2 }} {{ 2**0.5 }}
{{ 10**20 }} {{ big }} {{ big + 1 }} {{ -big }} {{ 9223372036854775807 + 1 }}
{{ 1e20 }} {{ 1e16 }} {{ 1e15 }} {{ 123456789012345680.0 }} {{ 1e-4 }} {{ 1e-5 }} {{ 0.1+0.2 }} {{ 1.0 }} {{ -0.0 }} {{ 1e300*1e10 }}
{{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1.5e3 }} {{ 1E5 }} {{ 00 }}
{{ true + true }} {{ true * 3 }} {{ -true }} {{ true == 1 }} {{ true is number }} {{ true is integer }} {{ true is boolean }}
{{ 1 == 1.0 }} {{ 1 is integer }} {{ 1.0 is integer }} {{ 1.0 is float }} {{ '1' == 1 }} {{ 1 != 2 }}
{{ 3.7|int }} {{ -3.7|int }} {{ '42'|int }} {{ '42.9'|int }} {{ ' 7 '|int }} {{ 'x'|int }} {{ 'x'|int(9) }} {{ '0x1A'|int(0, 16) }} {{ none|int }} {{ '1_0'|int }} {{ 'a'|int(base='x') }}
{{ 3|float }} {{ '2.5'|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ '1e3'|float }} {{ 'inf'|float }} {{ '-nan'|float }}
{{ 2.5|round }} {{ 3.5|round }} {{ 42.55|round(1) }} {{ 42.55|round(1, 'floor') }} {{ 42.51|round(1, 'ceil') }} {{ 1234|round(-2) }} {{ 1250|round(-2) }} {{ 2.675|round(2) }} {{ 5|round }}
{{ -5|abs }} {{ (-5)|abs }} {{ neg|abs }} {{ -2.5|abs }} {{ true|abs }}
{{ +x }} {{ -x }} {{ - -x }} {{ -f }} {{ not x }} {{ not not x }}
{{ x.real }} {{ (5).imag }} {{ f.is_integer() }} {{ 2.0.is_integer() }}
{{ 1 < 2 }} {{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 <= 1.0 }} {{ 1 < 1.5 }} {{ big > 1.5 }} {{ (1,2) < (1,3) }} {{ [2] > [1,5] }}
{{ l|sum }} {{ [1.5, 2]|sum }} {{ []|sum }} {{ l|sum(start=10) }} {{ messages|sum(attribute='n') if false else 'skip' }}
{{ l|max }} {{ l|min }} {{ words|max }} {{ words|min(case_sensitive=true) }} {{ []|max }} {{ ['b','a']|max }}
"""

TEXT = r"""
{{ '<U+00E9>'[0] }}|{{ s|length }}|{{ s[6] }}|{{ s[-1] }}|{{ s[1:3] }}|{{ s[::-1] }}|{{ s[100:] }}
{{ s.upper() }} {{ s|upper }} {{ 'STRASSE <U+00DF> <U+0149> <U+FB01>'.upper() }} {{ '<U+0391><U+03A3> <U+03A3><U+0391><U+03A3>. <U+03A3>'.lower() }} {{ '<U+0130>'.lower()|length }} {{ '<U+01C6> <U+FB03>'.title() }}
{{ 'hELLO wORLD'|capitalize }} {{ '<U+00DF>a'|capitalize }} {{ 'hello big-world (x) [y] {z} <w> a_b it\'s'|title }} {{ "it's a b2b".title() }} {{ 'aBc'.swapcase() }}
{{ '  a b  '|trim }}| {{ 'xxaxx'|trim('x') }} {{ 'xyaxy'.strip('yx') }} {{ 'xyaxy'.lstrip('xy') }} {{ 'xyaxy'.rstrip('xy') }} {{ '\u3000 a \u00a0'|trim }}|
{{ 'a,b,,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'a-b-c'.rsplit('-', 1) }} {{ ' a b  c '.rsplit(none, 1) }} {{ 'abc'.split('</think>') }} {{ ''.split() }} {{ ''.split(',') }} {{ ' a b '.split(none, 1) }}
{{ 'a</think>b</think>c'.split('</think>')[-1].lstrip('\n') }} {{ ('<think>\nq\n</think>\n\nr').split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') }}
{{ text.splitlines() }} {{ text.splitlines(true) }} {{ 'a\r\nb\x0bc\u2028d'.splitlines() }}
{{ 'abc'.partition('b') }} {{ 'abcbd'.rpartition('b') }} {{ 'abc'.partition('z') }} {{ 'abc'.rpartition('z') }}
{{ 'hello'.startswith('he') }} {{ 'hello'.startswith(('x','he')) }} {{ 'hello'.endswith('lo') }} {{ 'hello'.startswith('l', 2) }} {{ 'hello'.endswith('ll', 0, 4) }} {{ 'abc'.startswith('', 4) }} {{ 'abc'.startswith('') }}
{{ 'hello'.find('l') }} {{ 'hello'.rfind('l') }} {{ 'hello'.find('z') }} {{ s.find('<U+6587>') }} {{ 'abc'.find('', 3) }} {{ 'abc'.find('', 4) }} {{ 'hello'.index('e') }} {{ 'banana'.count('an') }} {{ 'aaa'.count('') }} {{ 'hello'.find('l', -2) }}
{{ 'banana'.replace('a', 'o') }} {{ 'banana'.replace('a', 'o', 2) }} {{ 'banana'|replace('an', '') }} {{ 'abc'.replace('', '-') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 123|replace(2, 'x') }}
{{ ','.join(['a','b']) }} {{ ''.join(words) }} {{ ', '.join(d) }} {{ [1,none,'x',2.0]|join('-') }} {{ messages|join(',', attribute='role') }} {{ 'abc'|join('.') }} {{ d|join }}
{{ 'a'.center(4) }}|{{ 'ab'.center(5, '*') }}|{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '.') }}|{{ 'x'|center(6) }}|{{ '-5'.zfill(4) }}|{{ '<U+00E9>'.zfill(3) }}|{{ 'a\tb'.expandtabs(4) }}
{{ 'abc'.isalpha() }} {{ 'a1'.isalnum() }} {{ '12'.isdigit() }} {{ ' \n'.isspace() }} {{ 'Ab'.isupper() }} {{ 'AB1'.isupper() }} {{ 'ab'.islower() }} {{ ''.isalpha() }} {{ '<U+4E2D>'.isalpha() }} {{ 'ab' is lower }} {{ 'AB' is upper }} {{ '1' is lower }}
{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.txt'.removesuffix('.txt') }} {{ 'abc'.removeprefix('z') }}
{{ 'x' ~ 1 ~ none ~ 1.0 ~ true ~ [1] ~ undef }} {{ 'a' + 'b' }} {{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ 'ab' * -1 }}|
{{ 'a' in 'abc' }} {{ '' in 'abc' }} {{ 'z' not in 'abc' }} {{ '<U+4E2D>' in s }} {{ 'a' < 'b' }} {{ 'a' < 'B' }} {{ '<U+00E9>' > 'z' }}
{{ "%s is %d and %.2f" % ('a', 3, 2.345) }} {{ "%s" % x }} {{ "%(a)s %(b)03d" % {'a': 1, 'b': 2} }} {{ '%5d|%-5s|%05d|%x|%X|%o|%+d|% d' % (1,'a',2,255,255,8,3,4) }} {{ '%e %g %G %%' % (1234.5, 1e-10, 1e20) }} {{ '%r %c' % ("it's", 'z') }} {{ '%.2s|%5s' % ('abc', '<U+00E9>') }} {{ '%*d' % (5, 3) }} {{ '%#x' % 255 }}
{{ '%s' % undef }}|{{ 'abc' % undef }}|{{ '%s' % [1] }}|{{ '%s' % d }}|{{ 'x' % [] }}
{{ '{} {}'.format('a', 1) }} {{ '{1}{0}'.format('a', 'b') }} {{ '{x} {y!r}'.format(x=1, y='q') }} {{ '{:>5}|{:<5}|{:^5}|{:*^7}'.format('a','b','c','d') }} {{ '{:05d} {:,} {:.3f} {:x} {:+} {:e} {:%}'.format(42, 1234567, 3.14159, 255, 5, 12345.678, 0.25) }} {{ '{{}} {0[a]} {0[l][1]} {1.role}'.format({'a':1,'l':[1,2]}, messages[0]) }} {{ '{:{}}|'.format('x', 4) }}
{{ "%s, %s!"|format('Hello', name) }} {{ "%(a)s"|format(a=1) }}
{{ 'foo bar baz qux'|truncate(9) }} {{ 'foo bar baz qux'|truncate(9, true) }} {{ 'foo bar baz qux'|truncate(11) }} {{ 'foo bar baz qux'|truncate(11, false, '...', 0) }} {{ 'a b  c_d <U+00E9>'|wordcount }}
{{ text|indent }} {{ text|indent(2, true) }} {{ text|indent('> ', blank=true) }} {{ 'one'|indent }}
{{ html|e }} {{ html|escape|string }} {{ html|safe }} {{ ('<b>'|safe) + '<c>' }} {{ '<c>' + ('<b>'|safe) }} {{ ('<b>'|safe) ~ '<c>' }} {{ '<b>'|safe is escaped }} {{ '<'|e|e }} {{ '<'|e|forceescape }} {{ ['<'|e] }} {{ ('<x>'|safe).upper() + '>' }} {{ ('a<b'|safe).split('<') }} {{ ('-'|safe).join(['<','>']) }} {{ ('ab'|safe).replace('a', '<') }}
{{ 'a\tb\n\u00e9\x41\101\\ \' \" \q' }} {{ 'a' 'b' "c" }} {{ "multi\nline" }}
{{ 'it\'s' }} {{ ['it\'s', 'say "x"', 'both \' and "', 'tab\t nl\n \x00 \x7f \u00a0 \u200b \U0001f600 <U+00E9> \ue000'] }}
{{ 'abc'|list }} {{ 'abc'|reverse }} {{ 'abc'|first }} {{ 'abc'|last }} {{ ''|first }}|{{ 'cab'|sort|join }} {{ 'abca'|unique|join }}
{% for c in '<U+00E9><U+4E2D>a' %}[{{ c }}]{% endfor %}
{{ s|string is string }} {{ 5|string + 'x' }} {{ none|string }} {{ [1,'a']|string }}
{{ 'stra<U+00DF>e'.casefold() }} {{ 'ABC'.casefold() }} {{ 'abc'.isascii() }} {{ '<U+00E9>'.isascii() }}
"""

CONTAINERS = r"""
{{ none }} {{ true }} {{ false }} {{ True }} {{ None }} {{ nul }} {{ t }}
{{ (1,2) }} {{ (1,) }} {{ () }} {{ 1,2 }} {{ (1) }} {{ ((1,2),3) }}
{{ [1,'a',"it's",none,1.5,{'k':(1,2)},undef,true] }}
{{ d }} {{ d.b }} {{ d['a'][1] }} {{ d.a.1 }} {{ d.items() }} {{ d['items'] }} {{ d.keys() }} {{ d.values()|list }}
{{ {'a':1, 1:2, none:3, (1,2):4, 1.0:5} }} {{ {1:'a', true:'b', 1.0:'c'} }} {{ {} }} {{ {'x':1,}.x }}
{{ d.get('q') }} {{ d.get('q', 'def') }} {{ d.get('b') }} {{ d.copy() == d }} {{ 'b' in d }} {{ 'zz' not in d }} {{ 1 in d.values() }} {{ 'b' in d.keys() }} {{ ('b', 1) in d.items() }}
{{ dict(a=1, b=2) }} {{ dict([('x',1)]) }} {{ dict({'q':1}, r=2) }} {{ dict() }}
{{ l[::-1] }} {{ l[1:] }} {{ l[-1] }} {{ l[:-1] }} {{ l[5:] }} {{ l[-100:2] }} {{ l[::2] }} {{ l[2:0:-1] }} {{ l[5] is defined }} {{ l[1:2][0] }} {{ (1,2,3)[::-1] }}
{{ l + [4] }} {{ (1,) + (2,) }} {{ [0] * 3 }} {{ 2 * (1,) }} {{ [1] == [1] }} {{ [1] == (1,) }} {{ {'a':1} == {'a':1.0} }} {{ [1,[2]] == [1,[2]] }}
{{ 1 in l }} {{ 1.0 in l }} {{ '1' in l }} {{ none in [none] }} {{ [1] in [[1]] }} {{ undef in [undef] }} {{ 'x' in undef }}
{{ l.index(1) }} {{ [1,1,2].count(1) }} {{ (1,2).index(2) }} {{ l.copy() }}
{{ range(5) }} {{ range(5)|list }} {{ range(1,10,3)|join(' ') }} {{ range(5,0,-2)|list }} {{ range(3)|length }} {{ 2 in range(3) }} {{ range(10)[2:9:3] }} {{ range(3)[-1] }} {{ range(0) is sequence }} {{ range(3)|reverse|list }} {{ range(1,4).start }}
{{ undef }}|{{ undef is defined }}|{{ d.zzz }}|{{ d.zzz is undefined }}|{{ undef|default('x') }}|{{ ''|default('x') }}|{{ ''|default('x', true) }}|{{ none|default('x') }}|{{ none|d('x', boolean=true) }}|{{ d.zzz|d }}|
{{ undef == undef2 }} {{ undef == none }} {{ undef|length }} {{ undef|list }} {{ undef|upper }}| {{ not undef }} {{ undef or 'z' }} {{ undef and 1 }}| {{ undef is none }} {{ undef is iterable }} {{ undef is sequence }} {{ undef is string }} {{ [undef]|string }}
{{ '' or 'z' }} {{ 0 or none or [] }} {{ 1 and 2 }} {{ 0 and 2 }} {{ [] and 1 }} {{ (none or {}).x is defined }} {{ x and s and 3 }}
{{ 'a' if x > 3 else 'b' }} {{ 'a' if x > 9 }}| {{ ('a' if x > 9) is defined }} {{ 1 if true else 2 if false else 3 }} {{ (1 if false else 2) + 1 }} {{ 'y' if 'q' in d else 'n' }}
{{ x is divisibleby 5 }} {{ x is divisibleby(2) }} {{ x is odd }} {{ x is even }} {{ neg is odd }} {{ 2.0 is even }}
{{ s is string }} {{ d is mapping }} {{ l is mapping }} {{ l is iterable }} {{ s is iterable }} {{ x is iterable }} {{ l is sequence }} {{ d is sequence }} {{ x is sequence }} {{ d.items() is sequence }} {{ none is none }} {{ x is none }} {{ x is not none }} {{ t is true }} {{ 1 is true }} {{ t is false }} {{ x is number }} {{ f is float }} {{ '1' is number }}
{{ x is sameas 5 }} {{ t is sameas true }} {{ 1 is sameas true }} {{ none is sameas none }} {{ l is sameas l }} {{ [1] is sameas [1] }} {{ range is callable }} {{ x is callable }} {{ 'upper' is filter }} {{ 'zz' is filter }} {{ 'odd' is test }}
{{ x is eq 5 }} {{ x is equalto(5) }} {{ x is ne 4 }} {{ x is gt 4 }} {{ x is lessthan 4 }} {{ x is ge(5) }} {{ x is le 5 }} {{ x is in [5] }} {{ 'a' is in 'abc' }} {{ x is not in [5] }} {{ x is greaterthan 9 }}
{{ words|sort }} {{ words|sort(reverse=true) }} {{ words|sort(case_sensitive=true) }} {{ messages|sort(attribute='role')|map(attribute='role')|list }} {{ messages|sort(attribute='role,content')|map(attribute='content')|list }} {{ [3,1,2]|sort(true) }} {{ [[2,'b'],[1,'z'],[2,'a']]|sort }} {{ [1.5,1,true]|sort }} {{ nested|sort(attribute='0')|list }}
{{ d|dictsort }} {{ {'b':2,'A':1,'c':0}|dictsort }} {{ {'b':2,'A':1,'c':0}|dictsort(true) }} {{ {'b':2,'A':1,'c':0}|dictsort(false, 'value') }} {{ {'b':2,'A':1}|dictsort(reverse=true) }}
{{ messages|map(attribute='role')|list }} {{ messages|map(attribute='n', default=0)|list }} {{ words|map('upper')|list }} {{ words|map('replace', 'a', '_')|join(' ') }} {{ messages|map(attribute='meta.city', default='-')|list }} {{ nested|map(attribute=0)|list }} {{ nested|map('first')|list }} {{ empty|map('upper')|list }}
{{ messages|selectattr('n')|list|length }} {{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ messages|rejectattr('role', 'eq', 'user')|map(attribute='role')|list }} {{ l|select('odd')|list }} {{ l|reject('odd')|list }} {{ l|select('gt', 1)|list }} {{ [0,1,'',none,'a']|select|list }} {{ [0,1,'']|reject|list }} {{ messages|selectattr('n', 'defined')|first }} {{ messages|selectattr('meta')|list|length }}
{{ messages|groupby('role') }} {{ messages|groupby('meta.city', default='-')|map('first')|list }} {% for g in words|groupby(0) %}{{ g.grouper }}:{{ g.list|join('+') }};{% endfor %} {{ words|groupby(0, case_sensitive=true)|length }} {% for k, v in messages|groupby('role') %}{{ k }}={{ v|length }} {% endfor %}
{{ words|unique|list }} {{ words|unique(case_sensitive=true)|list }} {{ [1,1.0,true,2]|unique|list }} {{ messages|unique(attribute='role')|map(attribute='role')|list }}
{{ l|first }} {{ l|last }} {{ []|first }}|{{ []|last }}|{{ l|reverse|list }} {{ l|length }} {{ l|count }} {{ d|length }} {{ s|count }} {{ d|first }} {{ d|last }} {{ (1,2)|last }}
{{ [1,2,3,4,5]|batch(2)|list }} {{ [1,2,3]|batch(2, 'x')|list }} {{ [1,2,3,4,5]|slice(2)|list }} {{ [1,2,3,4,5]|slice(3, 0)|list }} {{ []|batch(2)|list }}
{{ d|items|list }} {{ undef|items|list }} {% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}
{{ d|list }} {{ d.items()|list }} {{ (1,2)|list }} {{ d|attr('get') is callable }} {{ d|attr('zz') is defined }} {{ d|attr('b') is defined }}
{% set m = words|map('upper') %}{{ m|list }}{{ m|list }}
{{ (words|map('length')|list)[0] }} {{ 'a' in words|map('lower') }} {{ [words|map('upper')|first] }}
{{ none.foo is defined }} {{ (5).foo is defined }} {{ d.b.c is defined }} {{ l.foo }}| {{ l['foo'] }}| {{ l.append is defined }} {{ d.update is defined }} {{ l.append }}| {{ ''.__class__ is defined }}
"""

STATEMENTS = r"""
{% for i in [1] %}{{ l is defined }}{% endfor %}{% set l = 1 %}{{ l }}
{{ l }}{% for i in [1] %}{{ l is defined }}{% endfor %}{% set l = 1 %}{{ l }}
{% for i in [1] %}{{ l is defined }}{% endfor %}{% if x %}{% set l = 1 %}{% endif %}{{ l }}
{% for i in [1,2] %}{% if i == 2 %}{{ s is defined }}{% endif %}{% set s = i %}{{ s }}{% endfor %}{{ s is defined }}
{% for i in [1,2] %}{% for j in [1] %}{{ s is defined }}{% endfor %}{% set s = i %}{% for j in [1] %}{{ s }}{% endfor %}{% endfor %}
{% macro m() %}{{ name is defined }}{% endmacro %}{{ m() }}{% set name = 'x' %}{{ m() }}{% macro range() %}r{% endmacro %}{{ range() }}
{% macro m(a) %}{% for q in [1] %}{{ name is defined }}{{ a }}{% endfor %}{% set name = a %}{{ name }}{% endmacro %}{{ m(1) }}{{ name }}
{% with a = l %}{% set b %}{{ l is defined }}{% set l = 5 %}{{ l }}{% endset %}{{ b }}{% endwith %}{% set l = 2 %}
{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ m.role }}{% if not loop.last %}, {% endif %}{% endfor %}
{% for i in [1,2,3] %}({{ loop.previtem }}|{{ loop.nextitem }}|{{ loop.previtem is defined }}|{{ loop.nextitem is defined }}){% endfor %}
{% for i in [1,1,2,2,1] %}{{ loop.cycle('odd','even') }}{{ loop.changed(i) }} {% endfor %}
{% for i in range(3) %}{% for j in range(2) %}{{ loop.index }}{{ i }}{{ j }};{% endfor %}{{ loop.index }}|{% endfor %}
{% for i in range(2) %}{% set outer = loop %}{% for j in range(2) %}{{ outer.index }}.{{ loop.index }} {% endfor %}{% endfor %}
{% for i in l if i > 1 %}{{ i }}/{{ loop.index }}/{{ loop.length }} {% else %}none{% endfor %}{% for i in l if i > 9 %}{{ i }}{% else %}none{% endfor %}
{% for i in empty %}x{% else %}empty{% endfor %}{% for i in undef %}x{% else %}undef{% endfor %}
{% for i in [1,2,3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}|{% for i in [1,2,3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% for i in [1] %}{% continue %}{% else %}else{% endfor %}|{% for i in [1] %}{% break %}{% else %}else{% endfor %}|{% for i in [1,2] %}{% if i==2 %}{% break %}{% endif %}{% else %}else{% endfor %}
{% for i in [1,2] %}{% for j in [1,2] %}{% if j == 2 %}{% break %}{% endif %}{{ i }}{{ j }}{% endfor %}{% endfor %}
{% for k in d %}{{ k }} {% endfor %}{% for k, v in d.items() %}{{ k }}:{{ v }} {% endfor %}{% for a, (b, c) in [(1,(2,3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for m in messages[::-1] %}{{ m.role[0] }}{% endfor %} {% for i in range(messages|length - 1, -1, -1) %}{{ messages[i].role[0] }}{% endfor %}
{% for i in nested recursive %}{% if i is iterable %}[{{ loop(i) }}]{% else %}{{ i }}@{{ loop.depth }}{{ loop.depth0 }}{% endif %}{% endfor %}
{% for a, b in [[1,2],[3,4]] if a > 0 %}{{ loop.previtem }}{{ a }}{{ b }}{% endfor %}
{% for i in [1,2,3] %}{{ loop.length }}{{ loop.nextitem }}{% endfor %}{% for i in words|map('upper') %}{{ loop.last }}{{ loop.length }}{{ i }} {% endfor %}
{% for x in [x, x+1] %}{{ x }}{% endfor %}{{ x }} {% for i in [1] %}{% set x = 9 %}{{ x }}{% endfor %}{{ x }}
{% for i in [1,2] %}{{ y }}{% set y = i %}{{ y }}{% endfor %}{{ y }}
{% set ns = namespace(a=1, found=false) %}{% for i in l %}{% set ns.a = ns.a + i %}{% if i == 1 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.a }}{{ ns.found }}{{ ns.zz is defined }}{{ ns['a'] }}{{ ns }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}{% set (c, d2) = [3, 4] %}{{ c }}{{ d2 }}{% set q = 1, %}{{ q }}
{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}{% set ns.c %}blk{% endset %}{{ ns.c }}
{% set b %}  hi {{ name }} {% endset %}[{{ b }}]{% set u | upper | trim %} x {{ name }} {% endset %}[{{ u }}]{% set v %}{% set inner = 1 %}{% endset %}{{ inner is defined }}
{% if x == 5 %}five{% elif x == 6 %}six{% else %}other{% endif %}{% if not x %}a{% elif x %}b{% endif %}{% if x == 5 %}{% set inif = 1 %}{% endif %}{{ inif }}
{% macro f(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(b=1, a=2) }} {{ f(1, c='z') }} {{ f() }} {{ f }}
{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, z=3) }}{{ f() }}{{ f(*[1,2], **{'k': 1}) }}
{% macro g(x) %}[{{ caller(x) }}{{ caller is defined }}]{% endmacro %}{% call(y) g(5) %}<{{ y }}>{% endcall %}{% macro h() %}{{ caller() if caller else 'nocall' }}{% endmacro %}{{ h() }}{% call h() %}body{% endcall %}
{% macro fact(n) %}{{ n * (fact(n-1)|int) if n > 1 else 1 }}{% endmacro %}{{ fact(10) }} {{ fact(3) + '!' }} {{ fact(3)|length }} {{ fact(4).strip() }}
{% macro tree(v) %}{% if v is mapping %}{ {%- for k, w in v|dictsort %}{{ k }}:{{ tree(w) }};{% endfor %}}{% elif v is iterable and v is not string %}[{% for w in v %}{{ tree(w) }},{% endfor %}]{% else %}{{ v }}{% endif %}{% endmacro %}{{ tree({'b':[1,{'a':2}],'a':'s'}) }}
{% macro m() %}{{ z }}{% endmacro %}{% set z = 1 %}{{ m() }}{% set z = 2 %}{{ m() }}{% for i in [1] %}{% set z = 3 %}{{ m() }}{% endfor %}
{% macro m() %}{% set inner = 1 %}{{ loop is defined }}{% endmacro %}{% for i in [1] %}{{ m() }}{% endfor %}{{ inner is defined }}
{% if true %}{% macro late(a) %}<{{ a }}>{% endmacro %}{% endif %}{{ late(1) }}{% for i in [1,2] %}{% macro inl() %}{{ i }}{% endmacro %}{{ inl() }}{% endfor %}
{% filter upper %}abc {{ name }}{% endfilter %}{% filter replace('a','b')|trim %} aa {% endfilter %}
{% with a=1, b=x %}{{ a+b }}{% endwith %}{% with %}{% set only = 1 %}{{ only }}{% endwith %}{{ only is defined }}{% with x = 1, y2 = x %}{{ x }}{{ y2 }}{% endwith %}
{% generation %}{{ x }}{% set zz = 1 %}{% endgeneration %}{{ zz is defined }}
{% raw %}{{ x }} {% if %}{% endraw %}|{% raw -%}   a {%- endraw %} b
{% print x, s %}{% print 1 + 1 %}
{# comment #}a{#- c -#} b {#+ x +#} c
{{ cycler('a','b').next() }}{% set c = cycler(1,2) %}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}{{ c.reset() }}{{ c.next() }}{% set j = joiner('|') %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}
{{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%d %B %Y, %H:%M:%S %A %b %a %j %y %%') }}
{% for m in messages %}{% if m.role == 'user' %}{% set last = loop.index0 %}{% endif %}{% endfor %}{{ last is defined }}
{% set x = [] %}{% set x = x + [1] %}{% set x = x + [2] %}{{ x }}{% set s2 = 'a' %}{% set s2 = s2 ~ 'b' %}{{ s2 }}
{% for i in [1,2,3] %}{% set ok %}{{ i }}{% endset %}{{ ok }}{% endfor %}{{ ok is defined }}
{% set f = namespace(x=1).x %}{{ f }}{% set upper = 'shadow' %}{{ upper }}{{ 'a'|upper }}{% set range = 5 %}{{ range }}
"""

JSON = r"""
{{ d|tojson }} {{ s|tojson }} {{ s|tojson(ensure_ascii=True) }} {{ s|tojson(true) }} {{ html|tojson }}
{{ d|tojson(indent=2) }}
{{ d|tojson(indent='--') }} {{ [[],{},[{}]]|tojson(indent=1) }} {{ l|tojson(indent=0) }}
{{ d|tojson(separators=(',',':')) }} {{ d|tojson(sort_keys=true) }} {{ {'b':{'z':1,'a':2},'a':0}|tojson(sort_keys=true, indent=1) }} {{ d|tojson(indent=2, separators=(', ', ' = ')) }}
{{ none|tojson }} {{ true|tojson }} {{ 1|tojson }} {{ 1.0|tojson }} {{ 1e-6|tojson }} {{ 1e20|tojson }} {{ big|tojson }} {{ (1,2)|tojson }} {{ ''|tojson }} {{ 'inf'|float|tojson }} {{ 'nan'|float|tojson }}
{{ 'a"b\\c\n\r\t\b\f\x01\x1f\x7f/<U+00E9>\u2028<U+1F600>'|tojson }} {{ '<U+00E9><U+1F600>\x7f'|tojson(ensure_ascii=true) }}
{{ {1:'a', 1.5:'b', true:'c', none:'d', 'e':{}}|tojson }} {{ {2:1, 10:2}|tojson(sort_keys=true) }}
{{ messages|tojson }} {{ [messages[0]]|tojson|length }} {{ (d|tojson)|safe }} {{ d|tojson|e }}
"""

WHITESPACE = [
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n",
    "a\n  {%- if true -%}\n  b\n  {%- endif -%}\nc\n\n",
    "  {{ x }}\n  {{- x -}}  \n  {{ x }}\n",
    "  {%+ if true %}a{%+ endif %}\n b",
    "{% if true +%}\n a{% endif +%}\n b",
    "a {# c #}\nb\n  {# c #}\nc {#- d -#}\n e",
    "{% for i in l %}\n  {{ i }}\n{% endfor %}\nend\n",
    "{% for i in l -%}\n  {{ i }}\n{%- endfor %}\nend\n\n\n",
    "x\r\n{% if true %}\r\ny\r{% endif %}\r\nz\r\n",
    "\t {% set a = 1 %}\n\u00a0{% set b = 2 %}\n{{ a }}{{ b }}",
    "a{% if true %}   \n b {% endif %}  \n c",
    "{{ x }}{% raw %}\n  {{ y }}\n  {% endraw %}\nz",
    "  {% raw %} a {% endraw %}  \n  b",
    "{%- macro m(a) -%}\n  <{{ a }}>\n{%- endmacro -%}\n\n{{ m(1) }}\n{{ m(2) }}\n",
    "{{\n x\n}}{{-x-}} {{ - x }}",
    "{%- set x = 3 -%}   {{ x }}   {%- if true %} y {% endif -%}  z",
    "  {%- for m in messages %}\n    {{- m.role }}\n    {%- if not loop.last %}{{ ', ' }}{% endif %}\n  {%- endfor %}\n",
    "{{ {'a': {'b': 1}}}}{{ [{}][0] }}{{ {} }}",
    "{ {{ x }} } {% if true %}}{% endif %} {%if x%}{{x}}{%endif%}{#-#}{##}",
    "",
    "\n",
    "\n\n",
    "plain { text % } # with }} and %} and #}",
    "{{ 'a }} b' }}{{ '{% x %}' }}{# {{ x }} {% if %} #}",
]

ERRORS = r"""
{{ x.foo.bar }}
{{ undef.foo }}
{{ undef['a'] }}
{{ undef + 1 }}
{{ undef() }}
{{ undef < 1 }}
{{ raise_exception('System message must be at the beginning.') }}
{% for m in messages %}{% if loop.index == 3 %}{{ raise_exception('bad role: ' ~ m.role) }}{% endif %}{% endfor %}
{{ l.append(4) }}
{{ d.update({'a': 1}) }}
{{ d.pop('a') }}
{{ 1 + 'a' }}
{{ '1' + 1 }}
{{ [1] + (2,) }}
{{ 1/0 }} {{ 1//0 }}
{{ 1 % 0 }}
{{ nosuch() }}
{{ x|nosuch }}
{{ x is nosuch }}
{{ x() }}
{% include 'a' %}
{% import 'a' as b %}
{% extends 'a' %}
{% nosuch %}
{% for %}{% endfor %}
{% for i in l %}
{% if x %}{% endfor %}
{% endif %}
{{ (1 }}
{{ 'abc }}
{{ x
{% if x
{# abc
{% raw %} abc
{{ 1 2 }}
{{ }}
{% break %}
{% macro m() %}{% break %}{% endmacro %}
{% for i in 5 %}{% endfor %}
{% for i in none %}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% for a, b in [(1,2,3)] %}{% endfor %}
{% set x.y = 1 %}
{% set ns = namespace() %}{% set ns._a = 1 %}
{% set 1 = 2 %}
{% set a, b = 1 %}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1,2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=1) }}
{% macro m(a) %}{{ a }}{% endmacro %}{% call m(1) %}{% endcall %}
{% macro m(a) %}{{ caller() }}{% endmacro %}{{ m(1) }}
{{ '%d' % 'a' }}
{{ '%s %s' % (1,) }}
{{ '%s' % (1, 2) }}
{{ '{} {}'.format(1) }}
{{ undef|tojson }}
{{ namespace()|tojson }}
{{ [1,'a']|sort }}
{{ [none, 1]|max }}
{{ {[1]: 2} }}
{{ none|length }}
{{ 5|first }}
{{ 5|list }}
{{ 'a' * 'b' }}
{{ -'a' }}
{{ 1 in 5 }}
{{ 1 in 'abc' }}
{{ range(1000000) }}
{{ range(1, 2, 0) }}
{{ 'abc'.split('') }}
{{ 'abc'.index('z') }}
{{ 'abc'.nosuch() }}
{{ ','.join([1]) }}
{{ l[::0] }}
{{ l['a':] }}
{{ x[1:] }}
{{ words|map }}{{ words|map|list }}
{{ words|map('nosuch')|list }}
{{ words|join(',', 1, 2, 3) }}
{{ l|batch }}
{{ loop.index }}
{{ f(a=1, a=2) }}
{{ ]  }}
{{ a b }}
{{ a. }}
{{ $ }}
{{ none < 1 }}
{% set loop = 1 %}{% for i in l %}{{ loop.index }}{% set loop = 2 %}{% endfor %}
{% call x %}{% endcall %}
{% filter nosuch %}{% endfilter %}
{{ 0.0 ** -1 }}
{{ x is divisibleby 0 }}
{% macro r() %}{{ r() }}{% endmacro %}{{ r() }}
"""


def _lines(block):
    text = re.sub(r"<U\+([0-9A-F]{4,6})>", lambda match: chr(int(match.group(1), 16)), block)
    return [line for line in text.strip("\n").split("\n") if line]


def groups():
    """[(group name, [template, ...])] in the order they are stored."""
    return [
        ("numbers", _lines(NUMBERS)),
        ("text", _lines(TEXT)),
        ("containers", _lines(CONTAINERS)),
        ("statements", _lines(STATEMENTS)),
        ("json", _lines(JSON)),
        ("whitespace", WHITESPACE),
        ("errors", _lines(ERRORS)),
    ]
