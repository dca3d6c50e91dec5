//! Compares the interpreter with Jinja2, and tests its limits.

use std::time::{Duration, SystemTime};

use serde_json::{Value as Json, json};

use super::*;

/// Enough for every ordinary template; what exceeds it would exceed any budget.
const WORK: u64 = 2 << 20;

fn render(source: &str, variables: &Json) -> Result<Text, At> {
    let variables: Vec<(&str, Variable<'_>)> = variables
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.as_str(), Variable::Foreign(value)))
        .collect();
    Template::new(source)?.render(
        &variables,
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_721_995_200),
        WORK,
    )
}

fn text(source: &str) -> String {
    let rendered = render(source, &json!({}));
    rendered.unwrap_or_else(|(failure, line)| panic!("{source}: {line}: {failure}")).as_str().to_owned()
}

fn failure(source: &str) -> String {
    match render(source, &json!({ "list": [1, 2], "text": "abc", "map": { "a": 1 } })) {
        Err((failure, line)) => format!("{line}: {failure}"),
        Ok(text) => panic!("{source}: {:?}", text.as_str()),
    }
}

/// Each snippet as Jinja2 renders it; `scripts/check-templates --golden` wrote them down.
#[test]
fn snippets_are_rendered_as_jinja2_does() {
    let golden: Json = serde_json::from_str(include_str!("../../../tests/golden/jinja.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() > 50);
    let mut wrong = Vec::new();
    for case in cases {
        let source = case["template"].as_str().unwrap();
        let found = match render(source, &golden["variables"]) {
            Ok(text) => text.as_str().to_owned(),
            Err((failure, line)) => format!("line {line}: {failure}"),
        };
        let expected = case["text"].as_str().unwrap();
        if found != expected {
            wrong.push(format!("{source}\n  ours   {found:?}\n  jinja2 {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn invalid_templates_are_rejected() {
    for (source, expected) in [
        ("{{ missing.x }}", r#"1: "missing", which is not defined, so it has no "x""#),
        ("a\n{{ missing.x() }}", r#"2: "missing", which is not defined, so it has no "x""#),
        ("{{ missing['x'] }}", r#"1: "missing", which is not defined, so it has no items"#),
        ("{{ missing + 1 }}", r#"1: unsupported operands: "missing", which is not defined + int"#),
        ("{{ 'a' + 1 }}", "1: unsupported operands: string + int"),
        ("{{ missing() }}", r#"1: "missing", which is not defined cannot be called"#),
        ("{{ 1 / 0 }}", "1: division by zero"),
        ("{{ 1 // 0 }}", "1: division by zero"),
        ("{{ 1 % 0 }}", "1: division by zero"),
        ("{{ 9223372036854775807 + 1 }}", "1: a number does not fit 64 bits"),
        ("{{ 2 ** 64 }}", "1: a number does not fit 64 bits"),
        ("{{ (0 - 9223372036854775807 - 1) // -1 }}", "1: a number does not fit 64 bits"),
        ("{{ 1 < 'a' }}", "1: int and string cannot be compared"),
        ("{% for i in 5 %}{% endfor %}", "1: int cannot be iterated"),
        ("{% for a, b in [[1, 2, 3]] %}{% endfor %}", "1: cannot unpack: 2 names for 3 values"),
        ("{{ list[::0] }}", "1: the step of a slice is 0"),
        ("{{ range(1, 2, 0) }}", "1: the step of range is 0"),
        ("{{ list | nothing }}", r#"1: the filter "nothing" is not supported"#),
        ("{{ 1 is nothing }}", r#"1: the test "nothing" is not supported"#),
        ("{{ text.nothing() }}", r#"1: the method of strings "nothing" is not supported"#),
        ("{{ list.append(3) }}", "1: changing a list (append) is not supported"),
        ("{{ text.upper(1) }}", "1: upper takes at most 0 arguments, got 1"),
        ("{{ list | join(q=1) }}", r#"1: join has no argument "q""#),
        ("{{ text.split('') }}", "1: split: the separator is empty"),
        ("{{ raise_exception('no ' ~ 1) }}", "1: the template rejected the conversation: no 1"),
        ("{% set map.a = 2 %}", "1: map.a cannot be set: map is mapping"),
        ("{% include 'x' %}", r#"1: the tag "include" is not supported"#),
        ("{% import 'x' as y %}", r#"1: the tag "import" is not supported"#),
        ("{% extends 'x' %}", r#"1: the tag "extends" is not supported"#),
        ("{% break %}", "1: break outside a loop"),
        ("{% endif %}", "1: endif does not belong here"),
        ("\n{% if 1 %}", "2: elif or else or endif is missing"),
        ("{% for x in y %}a", "1: else or endfor is missing"),
        ("{{ }}", "1: expected a value, found }}"),
        ("{{ 1 2 }}", "1: expected }}, found 2"),
        ("{% if %}", "1: expected a value, found %}"),
        ("{{ a[ }}", "1: unmatched }"),
        ("{{ list[] }}", "1: an index expected between [ and ]"),
        ("{% macro m(a=1, b) %}{% endmacro %}", "1: the parameter b needs a default like those before it"),
        ("{{ '%s' % 1 }}", "1: formatting with % is not supported"),
    ] {
        assert_eq!(failure(source), expected, "{source}");
    }
}

/// Names that escape the sandbox in Python are undefined here.
#[test]
fn the_sandbox_cannot_be_escaped() {
    for name in ["__class__", "__init__", "__globals__", "__subclasses__", "_x"] {
        assert_eq!(
            text(&format!("{{{{ ''.{name} is defined }}}}{{{{ [].{name} is defined }}}}")),
            "FalseFalse"
        );
        assert_eq!(
            text(&format!("{{{{ namespace.{name} is defined }}}}{{{{ range['{name}'] is defined }}}}")),
            "FalseFalse"
        );
        assert!(failure(&format!("{{{{ ''.{name}() }}}}")).ends_with("is not supported"));
        assert!(failure(&format!("{{{{ ''.{name}.{name} }}}}")).contains("is not defined"));
    }
    for name in
        ["open", "eval", "exec", "import", "__import__", "self", "config", "cycler", "lipsum", "caller"]
    {
        assert_eq!(text(&format!("{{{{ {name} is defined }}}}")), "False");
    }
    assert!(failure("{{ '' | attr('__class__') }}").ends_with("is not supported"));
    assert!(failure("{{ '{0.__class__}'.format(1) }}").contains("no value for"));
}

/// Templates that would never end or fill the memory fail quickly.
#[test]
fn work_and_memory_are_limited() {
    let doubling = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = GROW %}\
        {% endfor %}{{ ns.x | length }}";
    let doubled = |first: &str, grow: &str| doubling.replace("START", first).replace("GROW", grow);
    let too_much = "rendering exceeds the limit of 2097152 steps and bytes";
    for source in [
        "{% for i in range(1000000000) %}{% endfor %}".to_owned(),
        "{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}".to_owned(),
        "{% for i in range(10000) %}{% for j in range(10000) %}xxxxxxxx{% endfor %}{% endfor %}".to_owned(),
        "{{ 'x' * 1000000000000 }}".to_owned(),
        "{{ 'x' * 9223372036854775807 }}".to_owned(),
        doubled("'x'", "ns.x ~ ns.x"),
        doubled("'x'", "ns.x + ns.x"),
        doubled("'x'", "ns.x * 2"),
        doubled("'x'", "ns.x.replace('x', 'xx')"),
        doubled("'x'", "[ns.x, ns.x] | join"),
        doubled("'x'", "'{0}{0}'.format(ns.x)"),
        doubled("'\"'", "ns.x | tojson"),
        doubled("'\\''", "[ns.x] | string"),
        doubled("[1]", "ns.x + ns.x"),
        "{% set ns = namespace(x='a\\n') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}\
         {% set y = ns.x | indent(1000) %}{% endfor %}"
            .to_owned(),
        "{{ 'a\\nb' | indent(1000000000) }}".to_owned(),
        "{% macro m(n) %}{% for i in range(100) %}{% if n %}{{ m(n - 1) }}{% endif %}{% endfor %}\
         {% endmacro %}{{ m(10) }}"
            .to_owned(),
        "{% set ns = namespace(x='a') %}{% for i in range(15) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}\
         {% for i in range(10000) %}{% set y = ns.x.split('a') %}{% endfor %}"
            .to_owned(),
        "{% set ns = namespace(x='a') %}{% for i in range(24) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}\
         {% for c in ns.x %}{% endfor %}"
            .to_owned(),
        "{% set l = range(100000) %}{% for i in range(100000) %}\
         {% set x = l | sort %}{% endfor %}"
            .to_owned(),
        // Lists that contain the same list twice look small but expand exponentially.
        "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(50) %}{% set ns.x = [ns.x, ns.x] %}\
         {% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}"
            .to_owned(),
        "{% set ns = namespace(x=[1]) %}{% for i in range(50) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}\
         {{ ns.x }}"
            .to_owned(),
        "{% set ns = namespace(x=[1]) %}{% for i in range(50) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}\
         {{ ns.x | tojson | length }}"
            .to_owned(),
    ] {
        let failure = failure(&source);
        assert!(failure.ends_with(too_much), "{source}: {failure}");
    }
}

/// Depth is limited in the source, in calls and in values: nothing overflows the stack, not even when
/// dropped.
#[test]
fn depth_is_limited() {
    let many = 100_000;
    for (source, expected) in [
        (
            format!("{{{{ {}1{} }}}}", "(".repeat(1500), ")".repeat(1500)),
            "1: nested more than 100 levels deep",
        ),
        (
            format!("{{{{ {}1{} }}}}", "[".repeat(1500), "]".repeat(1500)),
            "1: nested more than 100 levels deep",
        ),
        (format!("{{{{ {}1 }}}}", "-".repeat(1500)), "1: nested more than 100 levels deep"),
        (format!("{{{{ {}1 }}}}", "not ".repeat(1500)), "1: nested more than 100 levels deep"),
        (format!("{{{{ {}1 }}}}", "1 if 1 else ".repeat(900)), "1: nested more than 100 levels deep"),
        (format!("{{{{ 1{} }}}}", "+1".repeat(1500)), "1: nested more than 200 levels deep"),
        (format!("{{{{ a{} }}}}", ".a".repeat(1500)), "1: nested more than 200 levels deep"),
        (format!("{{{{ 1{} }}}}", "|abs".repeat(1500)), "1: nested more than 200 levels deep"),
        (format!("{{{{ {} }}}}", "(".repeat(many)), "1: a tag has more than 4000 words"),
        ("{% if 1 %}".repeat(many), "1: nested more than 100 levels deep"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(), "1: nested more than 200 levels deep"),
        (
            "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ [a()] | join }}{% endmacro %}\
             {{ a() }}"
                .to_owned(),
            "1: nested more than 200 levels deep",
        ),
        (
            "{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}\
             {% endfor %}"
                .to_owned(),
            "1: nested more than 64 levels deep",
        ),
        (
            "{% set ns = namespace(x={}) %}{% for i in range(1000) %}{% set ns.x = {'a': ns.x} %}\
             {% endfor %}"
                .to_owned(),
            "1: nested more than 64 levels deep",
        ),
        (
            "{% set ns = namespace() %}{% set ns.x = ns %}".to_owned(),
            "1: a namespace cannot be put into a namespace",
        ),
        (
            "{% set ns = namespace() %}{% set ns.x = [ns] %}".to_owned(),
            "1: a namespace cannot be put into a list or a mapping",
        ),
    ] {
        assert_eq!(failure(&source), expected, "{:.60}", source);
    }
}

#[test]
fn dates() {
    assert_eq!(text("{{ strftime_now('%d %b %Y') }}"), "26 Jul 2024");
    assert_eq!(text("{% if strftime_now is defined %}yes{% endif %}"), "yes");
}

/// The rendered text with foreign ranges in brackets.
fn origins(source: &str) -> String {
    let text =
        render(source, &json!({ "u": "user", "p": " <x> ", "l": ["a", "b"], "m": { "k": "v" } })).unwrap();
    let mut out = text.as_str().to_owned();
    for range in text.foreign_ranges().iter().rev() {
        out.insert(range.end, ']');
        out.insert(range.start, '[');
    }
    out
}

#[test]
fn text_keeps_its_origin_through_all_operations() {
    for (source, expected) in [
        ("<{{ u }}>", "<[user]>"),
        ("{{ '<' + u + '>' }}", "<[user]>"),
        ("{{ '<' ~ u ~ '>' }}", "<[user]>"),
        ("{{ ('a' ~ p ~ 'b') | trim }}", "a[ <x> ]b"),
        ("{{ p | trim }}", "[<x>]"),
        ("{{ p.strip() ~ p.split('x')[0] }}", "[<x> <]"),
        ("{{ u[1:3] ~ u[0] ~ u[::-1] }}", "[seuresu]"),
        ("{{ u | upper }}{{ u.title() }}{{ u | capitalize }}", "[USERUserUser]"),
        ("{{ u | replace('s', '<>') }}", "[u]<>[er]"),
        ("{{ 'xsx'.replace('s', u) }}", "x[user]x"),
        ("{{ l | join(', ') }}", "[a], [b]"),
        ("{{ ', '.join(l) }}", "[a], [b]"),
        ("{{ u.join(['1', '2']) }}", "1[user]2"),
        ("{{ l }}", "['a', 'b']".replace("a", "[a]").replace("b", "[b]").leak()),
        ("{{ m | tojson }}", "{\"[k]\": \"[v]\"}"),
        ("{{ '{} and {x}'.format(u, x=p) }}", "[user] and [ <x> ]"),
        ("{{ u | default('d') }}{{ q | default(u) }}", "[useruser]"),
        ("{% set a %}<{{ u }}>{% endset %}{{ a }}", "<[user]>"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(u) }}{{ m('o') }}", "<[user]><o>"),
        ("{% filter upper %}<{{ u }}>{% endfilter %}", "<[USER]>"),
        ("{% for c in u %}{{ c }}-{% endfor %}", "[u]-[s]-[e]-[r]-"),
        ("{% set ns = namespace(x=u) %}{{ ns.x }}{{ [u][0] }}{{ {'a': u}.a }}", "[useruseruser]"),
        ("{{ u if true else 'x' }}{{ '' or u }}{{ u | string }}{{ u | safe }}", "[useruseruseruser]"),
        ("{{ u * 2 }}{{ 'o' * 2 }}", "[useruser]oo"),
        ("{{ ('<' ~ u) | indent(2, true) }}", "  <[user]"),
        ("{{ ('o\\n' ~ u) | indent(1) }}", "o\n [user]"),
        ("{{ l | map('upper') | join }}{{ l | sort | first }}{{ l | reverse | join }}", "[ABaba]"),
        ("{{ u.removeprefix('us') }}{{ u | list | last }}{{ u | reverse }}", "[errresu]"),
    ] {
        assert_eq!(origins(source), expected, "{source}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]

    /// Any source is rendered or rejected, without a panic or a hang.
    #[test]
    fn any_template_is_rendered_or_rejected(
        source in "(\\{\\{|\\}\\}|\\{%|%\\}|\\{#|#\\}|-|if|for|in|set|else|endif|endfor|macro|\
            endmacro|raw|endraw|is|not|x|ns|loop|messages|namespace\\(|\\(|\\)|\\[|\\]|\\{|\\}|'|\"|\\\\|\
            \\||~|\\+|\
            \\*|/|%|,|:|=|==|\\.|[0-9]| |\n|é|join|split|tojson|length|range\\(){0,40}",
    ) {
        let messages = json!([{ "role": "user", "content": "é" }]);
        let variables = json!({ "messages": messages, "x": [1, "a", { "b": null }] });
        let _ = render(&source, &variables);
    }
}
