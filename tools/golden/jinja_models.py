# SPDX-License-Identifier: Apache-2.0
"""Chat templates with the shapes of the models the engine serves, and conversations to render with them.

The templates are written for this test from a description of each prompt format; they are not the released files. They
use the features the released ones use: whitespace signs, macros with defaults and recursion, namespaces written in
loops, reversed slices, loop neighbours, string methods with character sets, tojson, raise_exception, break.
"""

QWEN2_5_VL = """{% set image_count = namespace(value=0) %}{% set video_count = namespace(value=0) %}
{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}
<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}
<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}
{{ message['content'] }}<|im_end|>
{% else %}
{% for part in message['content'] %}
{% if part['type'] == 'image' or 'image' in part or 'image_url' in part %}
{% set image_count.value = image_count.value + 1 %}
{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>{% elif part['type'] == 'video' or 'video' in part %}
{% set video_count.value = video_count.value + 1 %}
{% if add_vision_id %}Video {{ video_count.value }}: {% endif %}<|vision_start|><|video_pad|><|vision_end|>{% elif 'text' in part %}{{ part['text'] }}{% endif %}
{% endfor %}
<|im_end|>
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""

QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\nFunctions you may call:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nAnswer a call as JSON inside <tool_call></tool_call>.<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

QWEN3_VL = """{%- set counts = namespace(image=0, video=0) %}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {%- if messages[0].content is string %}
            {{- messages[0].content }}
        {%- else %}
            {%- for content in messages[0].content %}
                {%- if 'text' in content %}
                    {{- content.text }}
                {%- endif %}
            {%- endfor %}
        {%- endif %}
        {{- '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" ~ tool|tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].content is string %}
        {{- messages[0].content }}
    {%- else %}
        {%- for content in messages[0].content if content.text is defined %}
            {{- content.text }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.content is string %}
            {{- message.content }}
        {%- else %}
            {%- for content in message.content %}
                {%- if content.type == 'image' or 'image' in content or 'image_url' in content %}
                    {%- set counts.image = counts.image + 1 %}
                    {%- if add_vision_id %}Picture {{ counts.image }}: {% endif -%}
                    <|vision_start|><|image_pad|><|vision_end|>
                {%- elif content.type == 'video' or 'video' in content %}
                    {%- set counts.video = counts.video + 1 %}
                    {%- if add_vision_id %}Video {{ counts.video }}: {% endif -%}
                    <|vision_start|><|video_pad|><|vision_end|>
                {%- elif 'text' in content %}
                    {{- content.text }}
                {%- endif %}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- generation %}
        {%- if message.content is string %}
            {{- message.content }}
        {%- else %}
            {%- for item in message.content or [] %}
                {%- if 'text' in item %}
                    {{- item.text }}
                {%- endif %}
            {%- endfor %}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- set call = tool_call.function if tool_call.function else tool_call %}
            {{- '\\n' if not loop.first or message.content else '' }}
            {{- '<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' ~ (call.arguments if call.arguments is string else call.arguments|tojson) ~ '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
        {%- endgeneration %}
    {%- elif message.role == "tool" %}
        {%- if loop.first or loop.previtem.role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' ~ (message.content if message.content is string else message.content|map(attribute='text', default='')|join) ~ '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != "tool" %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

QWEN3_5 = """{%- set image_count = namespace(value=0) %}
{%- set video_count = namespace(value=0) %}
{%- macro render_content(content, do_vision_count, is_system_content=false) %}
    {%- if content is string %}
        {{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for item in content %}
            {%- if 'image' in item or 'image_url' in item or item.type == 'image' %}
                {%- if is_system_content %}
                    {{- raise_exception('System message cannot contain images.') }}
                {%- endif %}
                {%- if do_vision_count %}
                    {%- set image_count.value = image_count.value + 1 %}
                {%- endif %}
                {%- if add_vision_id %}
                    {{- 'Picture ' ~ image_count.value ~ ': ' }}
                {%- endif %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'video' in item or item.type == 'video' %}
                {%- if do_vision_count %}
                    {%- set video_count.value = video_count.value + 1 %}
                {%- endif %}
                {{- ('Video ' ~ video_count.value ~ ': ' if add_vision_id else '') ~ '<|vision_start|><|video_pad|><|vision_end|>' }}
            {%- elif 'text' in item %}
                {{- item.text }}
            {%- else %}
                {{- raise_exception('Unexpected item type in content.') }}
            {%- endif %}
        {%- endfor %}
    {%- elif content is none or content is undefined %}
        {{- '' }}
    {%- else %}
        {{- raise_exception('Unexpected content type.') }}
    {%- endif %}
{%- endmacro %}
{%- if not messages %}
    {{- raise_exception('No messages provided.') }}
{%- endif %}
{%- if tools and tools is iterable and tools is not mapping %}
    {{- '<|im_start|>system\\n# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nCall as <tool_call> with <function=name> and <parameter=key> blocks.' }}
    {%- if messages[0].role == 'system' %}
        {%- set content = render_content(messages[0].content, false, true)|trim %}
        {%- if content %}
            {{- '\\n\\n' + content }}
        {%- endif %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {%- set content = render_content(messages[0].content, false, true)|trim %}
    {{- '<|im_start|>system\\n' + content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" %}
        {%- set content = render_content(message.content, false)|trim %}
        {%- if not(content.startswith('<tool_response>') and content.endswith('</tool_response>')) %}
            {%- set ns.multi_step_tool = false %}
            {%- set ns.last_query_index = index %}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if ns.multi_step_tool %}
    {{- raise_exception('No user query found in messages.') }}
{%- endif %}
{%- for message in messages %}
    {%- set content = render_content(message.content, true)|trim %}
    {%- if message.role == "system" %}
        {%- if not loop.first %}
            {{- raise_exception('System message must be at the beginning.') }}
        {%- endif %}
    {%- elif message.role == "user" %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- set reasoning_content = reasoning_content|trim %}
        {%- if loop.index0 > ns.last_query_index or (preserve_thinking is defined and preserve_thinking is true) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls and message.tool_calls is iterable and message.tool_calls is not mapping %}
            {%- for tool_call in message.tool_calls %}
                {%- if tool_call.function is defined %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {%- if loop.first %}
                    {{- ('\\n\\n' if content|trim else '') + '<tool_call>\\n<function=' + tool_call.name + '>\\n' }}
                {%- else %}
                    {{- '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' }}
                {%- endif %}
                {%- if tool_call.arguments is mapping %}
                    {%- for args_name, args_value in tool_call.arguments|items %}
                        {{- '<parameter=' + args_name + '>\\n' }}
                        {%- set args_value = args_value | tojson | safe if args_value is mapping or (args_value is iterable and args_value is not string) else args_value | string %}
                        {{- args_value }}
                        {{- '\\n</parameter>\\n' }}
                    {%- endfor %}
                {%- endif %}
                {{- '</function>\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- content }}
        {{- '\\n</tool_response>' }}
        {%- if not loop.last and loop.nextitem.role != "tool" %}
            {{- '<|im_end|>\\n' }}
        {%- elif loop.last %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- raise_exception('Unexpected message role.') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
"""

KIMI_K2 = """{%- if tools -%}
  <|im_system|>tool_declare<|im_middle|>{{ tools | tojson(separators=(',', ':')) }}<|im_end|>
{%- endif -%}
{% macro render_content(message) -%}
  {%- set c = message.get('content') -%}
  {%- if c is string -%}{{ c }}
  {%- else -%}
    {%- for part in c or [] -%}
      {%- if part['type'] in ['image', 'image_url'] -%}<|media_start|>image<|media_content|><|media_pad|><|media_end|>
      {%- else -%}{{ part.get('text', '') }}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro %}
{%- for message in messages -%}
  {%- if loop.first and messages[0]['role'] != 'system' -%}
  <|im_system|>system<|im_middle|>You are Kimi, an AI assistant.<|im_end|>
  {%- endif -%}
  {%- set role_name = message.get('name') or message['role'] -%}
  {%- if message['role'] == 'user' -%}
    <|im_user|>{{ role_name }}<|im_middle|>
  {%- elif message['role'] == 'assistant' -%}
    <|im_assistant|>{{ role_name }}<|im_middle|>
  {%- else -%}
    <|im_system|>{{ role_name }}<|im_middle|>
  {%- endif -%}
  {%- if message['role'] == 'assistant' and message.get('tool_calls') -%}
    {{ render_content(message) }}<|tool_calls_section_begin|>
    {%- for tool_call in message['tool_calls'] -%}
      {%- set id = tool_call['id'] -%}
      <|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>{% if tool_call['function']['arguments'] is string %}{{ tool_call['function']['arguments'] }}{% else %}{{ tool_call['function']['arguments'] | tojson }}{% endif %}<|tool_call_end|>
    {%- endfor -%}
    <|tool_calls_section_end|>
  {%- elif message['role'] == 'tool' -%}
    ## Return of {{ message.tool_call_id }}
{{ render_content(message) }}
  {%- elif message['content'] is not none -%}
    {{ render_content(message) }}
  {%- endif -%}
  <|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}
  <|im_assistant|>assistant<|im_middle|>
{%- endif -%}
"""

# The shape of newer Kimi templates: recursion over schemas, dictsort, tuples, break, several namespaces.
KIMI_TYPES = """{%- macro type_of(schema, depth=0) -%}
  {%- if depth > 6 -%}any
  {%- elif schema.enum is defined -%}{{ schema.enum | map('tojson') | join(' | ') }}
  {%- elif schema.type == 'object' -%}
    { {%- for key, value in (schema.properties or {}) | dictsort -%}
      {{ '\\n' ~ '  ' * (depth + 1) ~ key ~ ('' if key in (schema.required or []) else '?') ~ ': ' ~ type_of(value, depth + 1) ~ ',' }}
    {%- endfor -%}
    {{ '\\n' ~ '  ' * depth ~ '}' }}
  {%- elif schema.type == 'array' -%}{{ type_of(schema['items'] or {}, depth + 1) }}[]
  {%- elif schema.type is iterable and schema.type is not string -%}{{ schema.type | join(' | ') }}
  {%- else -%}{{ {'integer': 'number', 'string': 'string', 'boolean': 'boolean'}.get(schema.type, schema.type or 'any') }}
  {%- endif -%}
{%- endmacro -%}
{%- set sep = '<|sep|>' -%}
{%- set state = namespace(last_user=-1, calls=0, order=[]) -%}
{%- for message in messages[::-1] -%}
  {%- if message.role == 'user' -%}
    {%- set state.last_user = messages | length - loop.index -%}
    {%- break -%}
  {%- endif -%}
{%- endfor -%}
{%- for tool in tools or [] -%}
  {%- set fn = tool.function or tool -%}
  {%- set state.order = state.order + [(fn.name, loop.index0)] -%}
  <|open|>tool name={{ fn.name | tojson }}{{ sep }}{{ type_of(fn.parameters or {}) }}<|close|>
{%- endfor -%}
{%- for name, index in state.order -%}
  {{- name ~ '#' ~ index ~ (',' if not loop.last else ';') -}}
{%- endfor -%}
{%- for message in messages -%}
  {%- if message.role not in ('system', 'user', 'assistant', 'tool') -%}
    {%- continue -%}
  {%- endif -%}
  <|open|>{{ message.role }}{% for key, value in message | dictsort if key not in ['role', 'content', 'tool_calls'] and value is string %} {{ key }}={{ value.replace('"', '&quot;') | tojson(ensure_ascii=True) }}{% endfor %}{{ sep }}
  {%- set body -%}
    {%- if message.content is string -%}{{ message.content }}{%- else -%}{{ message.content or [] | selectattr('text') | map(attribute='text') | join('\\n') }}{%- endif -%}
  {%- endset -%}
  {{- body | trim -}}
  {%- for call in message.tool_calls or [] -%}
    {%- set state.calls = state.calls + 1 -%}
    <|open|>call n={{ state.calls }}{{ sep }}{{ call.function.name }}({% for k, v in (call.function.arguments if call.function.arguments is mapping else {}).items() %}{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %})<|close|>
  {%- endfor -%}
  {{- '<|end_of_msg|>' if loop.index0 >= state.last_user else '<|close|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}<|open|>assistant{{ sep }}{%- endif -%}
"""

GLM_4_6 = """[gMASK]<sop>
{%- if tools -%}
<|system|>
# Tools

Functions you may call:
<tools>
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
</tools>

Answer a call as <tool_call>name with <arg_key> and <arg_value> pairs</tool_call>
{%- endif -%}
{%- macro visible_text(content) -%}
    {%- if content is string -%}
        {{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if item is mapping and item.type == 'text' -%}
                {{- item.text }}
            {%- elif item is string -%}
                {{- item }}
            {%- elif item is mapping and item.type in ['image', 'image_url'] -%}
                {{- '<|begin_of_image|><|image|><|end_of_image|>' }}
            {%- endif -%}
        {%- endfor -%}
    {%- elif content is none -%}
    {%- else -%}
        {{- content }}
    {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last_user_index=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {% set ns.last_user_index = loop.index0 -%}
    {%- endif %}
{%- endfor %}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible_text(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not visible_text(m.content).endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}
<|assistant|>
{%- set reasoning_content = '' %}
{%- set content = visible_text(m.content) %}
{%- if m.reasoning_content is string %}
    {%- set reasoning_content = m.reasoning_content %}
{%- else %}
    {%- if '</think>' in content %}
        {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
{%- endif %}
{%- if loop.index0 > ns.last_user_index and reasoning_content -%}
{{ '\\n<think>' + reasoning_content.strip() + '</think>' }}
{%- else -%}
{{ '\\n<think></think>' }}
{%- endif -%}
{%- if content.strip() -%}
{{ '\\n' + content.strip() }}
{%- endif -%}
{% if m.tool_calls %}
{% for tc in m.tool_calls %}
{%- if tc.function %}
    {%- set tc = tc.function %}
{%- endif %}
{{ '\\n<tool_call>' + tc.name }}
{% set _args = tc.arguments %}
{% if _args is mapping %}
{% for k, v in _args.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}
{% endif %}
</tool_call>{% endfor %}
{% endif %}
{%- elif m.role == 'tool' -%}
{%- if m.content is string -%}
{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
    {{- '<|observation|>' }}
{%- endif %}
{{- '\\n<tool_response>\\n' }}
{{- m.content }}
{{- '\\n</tool_response>' }}
{%- else -%}
<|observation|>{% for tr in m.content %}

<tool_response>
{{ tr.output if tr.output is defined else tr.text }}
</tool_response>{% endfor -%}
{% endif -%}
{%- elif m.role == 'system' -%}
<|system|>
{{ visible_text(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    <|assistant|>{{- '\\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}
{%- endif -%}
"""

TEMPLATES = {
    "qwen2_5_vl": QWEN2_5_VL,
    "qwen3": QWEN3,
    "qwen3_vl": QWEN3_VL,
    "qwen3_5": QWEN3_5,
    "kimi_k2": KIMI_K2,
    "kimi_types": KIMI_TYPES,
    "glm_4_6": GLM_4_6,
}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city \u2013 \u5929\u6c14 \"now\".",
        "parameters": {
            "type": "object",
            "properties": {
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "city": {"type": "string", "description": "Name & country"},
                "days": {"type": "integer", "minimum": 0, "maximum": 18446744073709551615, "default": 1},
                "range": {"type": ["number", "null"], "multipleOf": 0.5},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {
            "type": "object",
            "properties": {
                "filters": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"Key": {"type": "string"}, "a": {"type": "boolean"}}},
                }
            },
        },
        "strict": None,
    },
}


def _user(content):
    return {"role": "user", "content": content}


def _assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def _system(content):
    return {"role": "system", "content": content}


def _tool(content, **more):
    return {"role": "tool", "content": content, **more}


def _call(name, arguments, id="functions.get_weather:0"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


IMAGE = {"type": "image", "image": "file:///a.png"}
IMAGE_URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
VIDEO = {"type": "video", "video": "b.mp4"}


def _text(text):
    return {"type": "text", "text": text}


# (name, variables beside the defaults messages, tools=None, documents=None, add_generation_prompt=True)
CONVERSATIONS = [
    ("single", {"messages": [_user("Hello!")]}),
    ("no_prompt", {"messages": [_user("Hello!")], "add_generation_prompt": False}),
    ("system", {"messages": [_system("Be brief."), _user("Hi")]}),
    ("multi_turn", {"messages": [_system("S"), _user("One?"), _assistant("1."), _user("Two?"), _assistant("2."), _user("Three?")]}),
    ("chinese", {"messages": [_system("\u4f60\u662f\u52a9\u624b\u3002"), _user("\u4f60\u597d\uff0c\u4e16\u754c\uff01\U0001f600"), _assistant("\u60a8\u597d\u3002\u3000"), _user("\u518d\u89c1\u00a0")]}),
    ("empty_content", {"messages": [_system(""), _user(""), _assistant(""), _user("")]}),
    ("whitespace_content", {"messages": [_user("  \n padded \n\n"), _assistant("\n\nanswer\n"), _user("\ttab")]}),
    ("none_content", {"messages": [_user("Call it"), _assistant(None, tool_calls=[_call("get_weather", {"city": "Rome"})]), _tool("{\"t\": 21.5}", tool_call_id="functions.get_weather:0"), _user("Thanks")], "tools": [WEATHER]}),
    ("tools", {"messages": [_user("Weather in Rome?")], "tools": [WEATHER, SEARCH]}),
    ("tools_system", {"messages": [_system("Use tools."), _user("Weather?")], "tools": [SEARCH, WEATHER]}),
    ("tool_turn", {"messages": [_user("Rome?"), _assistant("", tool_calls=[_call("get_weather", {"city": "Rome", "days": 2, "range": 1.0, "deep": {"a": [1, None, True]}})]), _tool("sunny", tool_call_id="functions.get_weather:0", name="get_weather")], "tools": [WEATHER]}),
    ("tool_parallel", {"messages": [_user("Rome and \u5317\u4eac?"), _assistant("Looking.", tool_calls=[_call("get_weather", {"city": "Rome"}), _call("get_weather", "{\"city\": \"\u5317\u4eac\"}", "functions.get_weather:1")]), _tool("sunny", tool_call_id="functions.get_weather:0"), _tool("\u6674", tool_call_id="functions.get_weather:1"), _assistant("Both sunny."), _user("And tomorrow?")], "tools": [WEATHER]}),
    ("tool_list_content", {"messages": [_user("Q"), _assistant("", tool_calls=[_call("search", {"filters": []})]), _tool([_text("part one"), _text("part two")], tool_call_id="functions.search:0")], "tools": [SEARCH]}),
    ("reasoning", {"messages": [_user("Q1"), _assistant("A1", reasoning_content="because\n"), _user("Q2"), _assistant("A2", reasoning_content="\nstep 1\nstep 2\n"), _user("Q3")]}),
    ("reasoning_last", {"messages": [_user("Q1"), _assistant("A1", reasoning_content="thinking")], "add_generation_prompt": False}),
    ("think_tags", {"messages": [_user("Q1"), _assistant("<think>\nold\n</think>\n\nA1"), _user("Q2"), _assistant("<think>\nnew <b>\n</think>\n\n\nA2</think>tail")], "add_generation_prompt": False}),
    ("reasoning_tools", {"messages": [_user("Q"), _assistant("", reasoning_content="need data", tool_calls=[_call("get_weather", {"city": "Oslo"})]), _tool("cold", tool_call_id="x:0"), _assistant("It is cold.", reasoning_content="got it")], "tools": [WEATHER], "add_generation_prompt": False}),
    ("thinking_off", {"messages": [_user("Quick.")], "enable_thinking": False}),
    ("thinking_on", {"messages": [_user("Slow."), _assistant("ok"), _user("more /nothink")], "enable_thinking": True}),
    ("preserve_thinking", {"messages": [_user("Q1"), _assistant("A1", reasoning_content="keep"), _user("Q2")], "preserve_thinking": True}),
    ("image", {"messages": [_user([IMAGE, _text("What is it?")])]}),
    ("images_counted", {"messages": [_user([IMAGE, _text("a"), IMAGE_URL, _text("b")]), _assistant("two"), _user([IMAGE, VIDEO, _text("c")])], "add_vision_id": True}),
    ("video", {"messages": [_system("Watch."), _user([VIDEO, _text("Describe.")])]}),
    ("list_content", {"messages": [_user([_text("first "), _text("second")]), _assistant([_text("answer")]), _user([_text("next")])]}),
    ("list_system", {"messages": [_system([_text("listed system")]), _user("go")]}),
    ("image_in_system", {"messages": [_system([IMAGE, _text("x")]), _user("go")]}),
    ("system_late", {"messages": [_user("hi"), _system("late"), _user("go")]}),
    ("no_user", {"messages": [_system("only")]}),
    ("tool_response_user", {"messages": [_user("Q"), _user("<tool_response>\nold\n</tool_response>"), _assistant("A", reasoning_content="r")], "add_generation_prompt": False}),
    ("odd_role", {"messages": [_user("hi"), {"role": "critic", "content": "no"}]}),
    ("empty_messages", {"messages": []}),
    ("html_and_braces", {"messages": [_user("<b>{{ x }} {% if %} & \"quotes\" 'single' \\ back</b>"), _assistant("{}"), _user("%s %d {0}")]}),
    ("named", {"messages": [{"role": "user", "content": "hi", "name": "ann"}, {"role": "assistant", "content": "yo", "name": "bot"}, _user("q")]}),
]


def variables(more):
    return {"tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", **more}
