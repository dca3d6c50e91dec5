//! Answers with calls of tools, as models of the families write them.

use serde_json::{Value, json};

use super::answer::tests::parse;
use super::{AnswerParser, ChatTemplate, Message, ToolFormat, ToolSpec};

fn tool(name: &str, parameters: Value) -> ToolSpec {
    ToolSpec::new(name.to_owned(), None, Some(parameters)).unwrap()
}

pub(super) fn tools() -> [ToolSpec; 3] {
    let weather = json!({
        "type": "object",
        "properties": {
            "city": { "type": "string" }, "days": { "type": "integer" }, "hourly": { "type": "boolean" },
            "unit": { "enum": ["celsius", "fahrenheit"] }, "place": { "type": "object" },
        },
        "required": ["city"],
    });
    let write = json!({
        "type": "object", "properties": { "path": { "type": "string" }, "content": { "type": "string" } },
    });
    [tool("get_weather", weather), tool("write_file", write), tool("get_time", json!({ "properties": {} }))]
}

pub(super) struct Row {
    family: &'static str,
    reasoning: bool,
    format: ToolFormat,
    pub(super) text: &'static str,
    content: &'static str,
    calls: &'static [(&'static str, &'static str)],
}

const fn row(
    family: &'static str,
    format: ToolFormat,
    text: &'static str,
    content: &'static str,
    calls: &'static [(&'static str, &'static str)],
) -> Row {
    Row { family, reasoning: false, format, text, content, calls }
}

/// The text, the content and the calls that are in it.
pub(super) const ROWS: &[Row] = &[
    row(
        "Qwen2.5",
        ToolFormat::Hermes,
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \
         \"unit\": \"celsius\"}}\n</tool_call>",
        "",
        &[("get_weather", r#"{"city":"Paris","unit":"celsius"}"#)],
    ),
    Row {
        reasoning: true,
        ..row(
            "Qwen3, thinking",
            ToolFormat::Hermes,
            "<think>\nThe user wants the weather in two cities. I call it twice.\n</think>\n\n\
             <tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>",
            "",
            &[("get_weather", r#"{"city":"Paris"}"#), ("get_weather", r#"{"city":"Rome"}"#)],
        )
    },
    Row {
        reasoning: true,
        ..row(
            "Qwen3, text before a call",
            ToolFormat::Hermes,
            "<think>\n\n</think>\n\nLet me check that.\n<tool_call>\n{\"name\": \"search\", \"arguments\": \
             {\"query\": \"a \\\"quoted\\\" word </b>\", \"top\": 3}}\n</tool_call>",
            "Let me check that.",
            &[("search", r#"{"query":"a \"quoted\" word </b>","top":3}"#)],
        )
    },
    row(
        "Hermes 2 Pro",
        ToolFormat::Hermes,
        "<tool_call>\n{\"arguments\": {\"symbol\": \"TSLA\"}, \"name\": \"get_stock\"}\n</tool_call>\n",
        "",
        &[("get_stock", r#"{"symbol":"TSLA"}"#)],
    ),
    row(
        "SmolLM2",
        ToolFormat::Hermes,
        "<tool_call>[{\"name\": \"get_time\", \"arguments\": {}}, {\"name\": \"add\", \"arguments\": \
         {\"a\": 1, \"b\": -2.5}}]</tool_call>",
        "",
        &[("get_time", "{}"), ("add", r#"{"a":1,"b":-2.5}"#)],
    ),
    Row {
        reasoning: true,
        ..row(
            "SmolLM3",
            ToolFormat::Hermes,
            "<think>\nThe user asks for the time.\n</think>\n<tool_call>{\"name\": \"get_time\", \
             \"arguments\": {}}</tool_call>",
            "",
            &[("get_time", "{}")],
        )
    },
    row(
        "Granite 4",
        ToolFormat::Hermes,
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Boston\"}}\n</tool_call>",
        "",
        &[("get_weather", r#"{"city":"Boston"}"#)],
    ),
    row(
        "Qwen3-Coder",
        ToolFormat::QwenXml,
        "I'll look that up.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n\
         <parameter=days>\n3\n</parameter>\n<parameter=hourly>\nTrue\n</parameter>\n\
         <parameter=place>\n{\"lat\": 48.9}\n</parameter>\n</function>\n</tool_call>",
        "I'll look that up.",
        &[("get_weather", r#"{"city":"Paris","days":3,"hourly":true,"place":{"lat":48.9}}"#)],
    ),
    row(
        "Qwen3-Coder, code over several lines",
        ToolFormat::QwenXml,
        "<tool_call>\n<function=write_file>\n<parameter=path>\nsrc/main.rs\n</parameter>\n\
         <parameter=content>\nfn main() {\n    let a = 1 < 2;\n    println!(\"<b>{a}</b>\");\n}\n\n\
         </parameter>\n</function>\n</tool_call>",
        "",
        &[(
            "write_file",
            "{\"path\":\"src/main.rs\",\"content\":\"fn main() {\\n    let a = 1 < 2;\\n    \
             println!(\\\"<b>{a}</b>\\\");\\n}\\n\"}",
        )],
    ),
    Row {
        reasoning: true,
        ..row(
            "Qwen3.5, two calls, numbers in a string",
            ToolFormat::QwenXml,
            "<think>\nTwo calls.\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\n12\n\
             </parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get_time>\n</function>\n\
             </tool_call>",
            "",
            &[("get_weather", r#"{"city":"12"}"#), ("get_time", "{}")],
        )
    },
    row(
        "Qwen3-Coder, a parameter that does not end",
        ToolFormat::QwenXml,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n</tool_call>",
        &[],
    ),
    row(
        "Qwen3-Coder, unfinished",
        ToolFormat::QwenXml,
        "Now.\n<tool_call>\n<function=write_file>\n<parameter=content>\nfn ma",
        "Now.\n<tool_call>\n<function=write_file>\n<parameter=content>\nfn ma",
        &[],
    ),
    Row {
        reasoning: true,
        ..row(
            "GLM-4.5",
            ToolFormat::Glm,
            "\n<think>The user wants the weather.</think>\nLet me see.\n<tool_call>get_weather\n\
             <arg_key>city</arg_key>\n<arg_value>Beijing</arg_value>\n<arg_key>days</arg_key>\n\
             <arg_value>2</arg_value>\n</tool_call>",
            "Let me see.",
            &[("get_weather", r#"{"city":"Beijing","days":2}"#)],
        )
    },
    row(
        "GLM-4.7, without line breaks, two calls",
        ToolFormat::Glm,
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>2024</arg_value></tool_call>\
         <tool_call>get_time</tool_call>",
        "",
        &[("get_weather", r#"{"city":"2024"}"#), ("get_time", "{}")],
    ),
    row(
        "GLM-4.5, a key without a value",
        ToolFormat::Glm,
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n</tool_call>",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n</tool_call>",
        &[],
    ),
    row(
        "GLM-4.5, unfinished",
        ToolFormat::Glm,
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Bei",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Bei",
        &[],
    ),
    row(
        "Llama 3.1",
        ToolFormat::Llama3,
        "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"San Francisco\"}}",
        "",
        &[("get_weather", r#"{"city":"San Francisco"}"#)],
    ),
    row(
        "Llama 3.2, two calls",
        ToolFormat::Llama3,
        "<|python_tag|>{\"name\": \"a\", \"parameters\": {\"x\": \"1\"}}; \
         {\"name\": \"b\", \"parameters\": {}}",
        "",
        &[("a", r#"{"x":"1"}"#), ("b", "{}")],
    ),
    row(
        "Llama 3.1, no call",
        ToolFormat::Llama3,
        "It is {not} a call: {\"name\": \"x\"}",
        "It is {not} a call: {\"name\": \"x\"}",
        &[],
    ),
    row(
        "Mistral Nemo",
        ToolFormat::MistralList,
        "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}, \"id\": \
         \"VvvODy9mT\"}, {\"name\": \"get_time\", \"arguments\": {}}]",
        "",
        &[("get_weather", r#"{"city":"Paris"}"#), ("get_time", "{}")],
    ),
    row(
        "Mistral 7B v0.3, a space behind the tag",
        ToolFormat::MistralList,
        "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 1}}]",
        "",
        &[("get_weather", r#"{"city":"Paris","days":1}"#)],
    ),
    row(
        "Mistral Nemo, unfinished",
        ToolFormat::MistralList,
        "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"ci",
        "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"ci",
        &[],
    ),
    row(
        "Ministral 3, two calls",
        ToolFormat::Mistral,
        "I check both.[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris [ARGS]\"}[TOOL_CALLS]get_time[ARGS]{}",
        "I check both.",
        &[("get_weather", r#"{"city":"Paris [ARGS]"}"#), ("get_time", "{}")],
    ),
    row(
        "Mistral Small 3.2, with an id",
        ToolFormat::Mistral,
        "[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{\"city\": \"Lyon\", \"days\": 2}",
        "",
        &[("get_weather", r#"{"city":"Lyon","days":2}"#)],
    ),
    row(
        "Mistral Small 3.2, malformed",
        ToolFormat::Mistral,
        "[TOOL_CALLS]get_weather[ARGS]{\"city\": Lyon}",
        "[TOOL_CALLS]get_weather[ARGS]{\"city\": Lyon}",
        &[],
    ),
    row(
        "Granite 3.3",
        ToolFormat::Granite,
        "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Boston\"}}, \
         {\"name\": \"get_time\", \"arguments\": {}}]",
        "",
        &[("get_weather", r#"{"city":"Boston"}"#), ("get_time", "{}")],
    ),
    row(
        "Granite 3.3, no list of calls",
        ToolFormat::Granite,
        "I use <|tool_call|> for that.",
        "I use <|tool_call|> for that.",
        &[],
    ),
    row(
        "Phi-4-mini",
        ToolFormat::Phi4,
        "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]<|/tool_call|>",
        "",
        &[("get_weather", r#"{"city":"Paris"}"#)],
    ),
    row(
        "Phi-4-mini, without the closing tag",
        ToolFormat::Phi4,
        "Sure.<|tool_call|>[{\"name\": \"get_time\", \"arguments\": {}}]",
        "Sure.",
        &[("get_time", "{}")],
    ),
    row(
        "Gemma 4, two calls",
        ToolFormat::Gemma4,
        "I check both.<|tool_call>call:get_weather{city:<|\"|>Paris {x}: \"y\"<|\"|>,days:3,place:{\
         lat:48.9,tags:[<|\"|>a<|\"|>]}}<tool_call|><|tool_call>call:get_time{}<tool_call|>",
        "I check both.",
        &[
            ("get_weather", r#"{"city":"Paris {x}: \"y\"","days":3,"place":{"lat":48.9,"tags":["a"]}}"#),
            ("get_time", "{}"),
        ],
    ),
    row(
        "Gemma 4, malformed",
        ToolFormat::Gemma4,
        "<|tool_call>call:get_weather{city:Paris}<tool_call|>",
        "<|tool_call>call:get_weather{city:Paris}<tool_call|>",
        &[],
    ),
    row(
        "OLMo 3",
        ToolFormat::Olmo3,
        "<function_calls>\nget_weather(city=\"Paris (3)\", days=2, hourly=true)\nget_time()\n\
         </function_calls>",
        "",
        &[("get_weather", r#"{"city":"Paris (3)","days":2,"hourly":true}"#), ("get_time", "{}")],
    ),
    row(
        "OLMo 3, all kinds of values",
        ToolFormat::Olmo3,
        "<function_calls>\nget_weather(city='it\\'s \\u00e9 \"\\n', days=[1, {\"a\": 'x, )'}, None], \
         hourly=False, x=-2.5e3, y = (), z=\"\")\n</function_calls>",
        "",
        &[(
            "get_weather",
            r#"{"city":"it's é \"\n","days":[1,{"a":"x, )"},null],"hourly":false,"x":-2500.0,"y":[],"z":""}"#,
        )],
    ),
    row(
        "OLMo 3, a list of calls",
        ToolFormat::Olmo3,
        "<function_calls>[get_time(), get_weather(city=\"Oslo\")]</function_calls>",
        "",
        &[("get_time", "{}"), ("get_weather", r#"{"city":"Oslo"}"#)],
    ),
    row(
        "OLMo 3, no such escape",
        ToolFormat::Olmo3,
        "<function_calls>get_weather(city=\"Os\\ud800lo\")</function_calls>",
        "<function_calls>get_weather(city=\"Os\\ud800lo\")</function_calls>",
        &[],
    ),
    row(
        "OLMo 3, unfinished",
        ToolFormat::Olmo3,
        "<function_calls>\nget_weather(city=\"Par",
        "<function_calls>\nget_weather(city=\"Par",
        &[],
    ),
];

pub(super) fn parser(row: &Row) -> AnswerParser {
    AnswerParser::new(row.reasoning, false, Some(row.format)).with_tools(&tools())
}

#[test]
fn answers_of_every_family_are_read() {
    for row in ROWS {
        let parsed = parse(&parser(row), row.text);
        assert_eq!(parsed.content, row.content, "{}", row.family);
        let found: Vec<(&str, Value)> =
            parsed.calls.iter().map(|call| (call.name.as_str(), json!(call.arguments))).collect();
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let calls: Vec<_> = row.calls.iter().map(|&(name, arguments)| (name, value(arguments))).collect();
        assert_eq!(found, calls, "{}", row.family);
    }
    for format in ToolFormat::ALL.into_iter().filter(|&format| format != ToolFormat::Harmony) {
        assert!(ROWS.iter().any(|row| row.format == format && !row.calls.is_empty()), "{format:?}");
    }
}

/// The same at every place where a text can be cut into two.
#[test]
fn calls_may_be_cut_anywhere() {
    for row in ROWS {
        let whole = parse(&parser(row), row.text);
        for at in (0..=row.text.len()).filter(|&at| row.text.is_char_boundary(at)) {
            let mut parser = parser(row);
            let mut all = parser.push(&row.text[..at]);
            all.append(parser.push(&row.text[at..]));
            all.append(parser.finish());
            assert_eq!(all, whole, "{} at {at}", row.family);
        }
    }
}

/// Whatever of a text has come when an answer ends by its length: no panic, and no call that was not written.
#[test]
fn unfinished_calls_are_no_others() {
    for row in ROWS {
        let whole = parse(&parser(row), row.text).calls;
        for at in (0..row.text.len()).filter(|&at| row.text.is_char_boundary(at)) {
            let calls = parse(&parser(row), &row.text[..at]).calls;
            assert!(whole.starts_with(&calls), "{} at {at}: {calls:?}", row.family);
        }
    }
}

#[test]
fn what_is_no_call_is_no_call() {
    let texts = [
        "",
        "{",
        "[]",
        "{\"name\": 1}",
        "{\"name\": \"a\", \"arguments\": [1]}",
        "hello there",
        "<function=",
        "<function=a",
        "<function=a>",
        "<function=a b></function>",
        "<function=a></function> more",
        "a<arg_key>",
        "a<arg_key>k</arg_key>",
        "a b[ARGS]{}",
        "[ARGS]{}",
        "a[ARGS][1]",
        "a[ARGS]{} more",
        "a(",
    ];
    for format in ToolFormat::ALL {
        for text in texts {
            assert_eq!(format.parse(text, &tools()), None, "{format:?}: {text}");
        }
    }
    assert_eq!(ToolFormat::Llama3.parse("{\"name\": \"a\"} and more", &[]), None);
    assert_eq!(ToolFormat::Hermes.parse("[{\"name\": \"a\"}, 1]", &[]), None);
    let quoted = "{\"name\": \"a\", \"arguments\": \"{\\\"x\\\": 1}\"}";
    assert_eq!(ToolFormat::Hermes.parse(quoted, &[]).unwrap()[0].arguments["x"], 1);
}

#[test]
fn formats_are_recognized_by_templates() {
    let rows = [
        ("{%- if tools %}… <tool_call>\\n{{ tool | tojson }}", Some(ToolFormat::Hermes)),
        ("{% if tools %}<tool_call>\\n<function={{ name }}>\\n<parameter=", Some(ToolFormat::QwenXml)),
        ("{% if tools %}<tool_call>{{ name }}\\n<arg_key>{{ k }}</arg_key>", Some(ToolFormat::Glm)),
        ("{% if xml_tools %}<tool_call>{\"name\": …}</tool_call>", Some(ToolFormat::Hermes)),
        (
            "{{ '<|start_header_id|>' }}{% if tools %}{\"name\": x, \"parameters\": y}{% endif %}",
            Some(ToolFormat::Llama3),
        ),
        ("{% if tools %}[TOOL_CALLS][{{ call | tojson }}]{% endif %}", Some(ToolFormat::MistralList)),
        ("{% if tools %}[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}", Some(ToolFormat::Mistral)),
        ("{% if available_tools %}respond only with <|tool_call|> followed by", Some(ToolFormat::Granite)),
        ("{% if message['tools'] %}'<|tool|>' + message['tools'] + '<|/tool|>'", Some(ToolFormat::Phi4)),
        ("{{ tools | tojson }} within <function_calls></function_calls>", Some(ToolFormat::Olmo3)),
        ("{% if tools %}{% endif %}<|start|>assistant<|channel|>final<|message|>", Some(ToolFormat::Harmony)),
        ("{% if tools %}<|tool_call>call:{{ name }}{{ '{' }}…<tool_call|>", Some(ToolFormat::Gemma4)),
        ("{{ messages }}", None),
        ("{% if tools %}{{ tools }}{% endif %}", None),
        ("<start_of_turn>{{ role }}\\n{{ message.content }}<end_of_turn>", None),
    ];
    for (source, format) in rows {
        assert_eq!(ToolFormat::of_template(source), format, "{source}");
    }
}

/// Templates that look for tools elsewhere than others: SmolLM3's and Phi-4-mini's.
#[test]
fn tools_are_where_templates_look_for_them() {
    let tokenizer = super::tests::tokenizer();
    let text = |source: &str| {
        let template = ChatTemplate::new(source).unwrap();
        let call = json!([{ "function": { "name": "get_time", "arguments": {} } }]);
        let messages = vec![
            Message::user("Time?"),
            Message { fields: vec![("tool_calls".to_owned(), call)], ..Message::assistant("I look.") },
        ];
        let tools = [tool("get_time", json!({}))];
        let options = super::ChatOptions::default();
        template.prompt_with_tools(&tokenizer, messages, &tools, options, false).unwrap().0.text
    };
    let smollm3 = "{% for tool in xml_tools %}{{ tool.function.name }} <tool_call>{% endfor %}\
        {% for message in messages %}{{ message.role ~ message.content }}{% endfor %}";
    let expected = "get_time <tool_call>userTime?assistantI look.\n<tool_call>\n\
        {\"arguments\":{},\"name\":\"get_time\"}\n</tool_call>";
    let got = text(smollm3)
        .replace("{\"name\":\"get_time\",\"arguments\":{}}", "{\"arguments\":{},\"name\":\"get_time\"}");
    assert_eq!(got, expected);
    let phi = "{% for message in messages %}{{ message.role }}\
        {% if message['tools'] %}{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}{% endif %}{% endfor %}";
    let got = text(phi);
    assert!(got.starts_with("system<|tool|>[{") && got.ends_with("}]<|/tool|>userassistant"), "{got}");
}

/// Vocabularies with and without control tokens for the tags.
#[test]
fn required_calls_are_grammars() {
    let tokenizer = super::tests::tokenizer();
    let tools = [tool("weather", json!({ "type": "object" })), tool("time", json!({}))];
    let expected = r#"start: call ("\n" call)*
call: "<tool_call>" "\n" (tool_0 | tool_1) "\n" "</tool_call>"
tool_0: "{\"name\": \"weather\", \"arguments\": " arguments_0 "}"
arguments_0: %json {"type":"object","x-guidance":{"whitespace_pattern":" |\\n[ \\t]{0,20}"}}
tool_1: "{\"name\": \"time\", \"arguments\": " arguments_1 "}"
arguments_1: %json {"x-guidance":{"whitespace_pattern":" |\\n[ \\t]{0,20}"}}
"#;
    assert_eq!(ToolFormat::Hermes.calls_grammar(&tools, true, &tokenizer).unwrap(), expected);
    let one = ToolFormat::Llama3.calls_grammar(&tools[1..], false, &tokenizer).unwrap();
    assert!(one.starts_with("start: call\ncall: (tool_0)\n"), "{one}");
    assert_eq!(ToolFormat::Harmony.calls_grammar(&tools, true, &tokenizer), None, "no control tokens");
    let odd = [tool("t", json!({ "properties": { "a>b": {} } }))];
    assert_eq!(ToolFormat::QwenXml.calls_grammar(&odd, true, &tokenizer), None);
    let control = ToolFormat::Granite.calls_grammar(&tools, false, &tokenizer).unwrap();
    let id = tokenizer.special_token("<|tool_call|>").unwrap();
    assert!(control.starts_with(&format!("start: <[{id}]> \"[\" call \"]\"\n")), "{control}");
}

#[test]
fn mistral_s_ids_have_nine_characters() {
    let source = "{% if tools %}[TOOL_CALLS][ARGS]{% endif %}{% for message in messages %}\
        {% for call in message.tool_calls or [] %}{{ call.id }} {% endfor %}\
        {% if message.tool_call_id %}{{ message.tool_call_id }}{% endif %}{% endfor %}";
    let ids = |id: &str| {
        let call = json!([{ "id": id, "function": { "name": "get_time", "arguments": {} } }]);
        let messages = vec![
            Message { fields: vec![("tool_calls".to_owned(), call)], ..Message::assistant("") },
            Message { fields: vec![("tool_call_id".to_owned(), json!(id))], ..Message::new("tool", "12") },
        ];
        let template = ChatTemplate::new(source).unwrap();
        let tokenizer = super::tests::tokenizer();
        let options = super::ChatOptions::default();
        let prompt = template.prompt_with_tools(&tokenizer, messages, &tools(), options, false).unwrap().0;
        prompt.text.strip_prefix("[TOOL_CALLS][ARGS]").unwrap().to_owned()
    };
    assert_eq!(ids("a1B2c3D4e"), "a1B2c3D4e a1B2c3D4e");
    let text = ids("call_0123456789abcdef");
    let (call, result) = text.split_once(' ').unwrap();
    assert!(
        call == result && call.len() == 9 && call.bytes().all(|byte| byte.is_ascii_alphanumeric()),
        "{text}"
    );
    assert_ne!(text, ids("call_0123456789abcdee"));
}
