//! Grammars of calls, in Lark's syntax with JSON schemas, as llguidance reads it.

use serde_json::{Map, Value, json};

use super::answer::THOUGHTS;
use super::arguments::{is_scalar, is_text};
use super::gemma::QUOTE;
use super::harmony::{CALL, CHANNEL, CONSTRAIN, END, MESSAGE, START};
use super::tool_format::{ARG_KEY, ARG_VALUE, ARGS, ToolFormat};
use super::tools::ToolSpec;
use crate::tokenizer::Tokenizer;

/// What may stand between the parts of constrained JSON: a space, or a line break and indentation. Small
/// models like to write nothing but whitespace where they may.
pub const JSON_WHITESPACE: &str = r" |\n[ \t]{0,20}";

impl ToolFormat {
    /// The grammar of at least one call. The name comes before the arguments, as models were trained.
    /// `several`: more calls may follow. Tags that are control tokens of the vocabulary are named by their
    /// number (`<[5]>`), so the grammar is one for this vocabulary.
    ///
    /// In the harmony format thoughts may come first, so the prompt must not have opened the message of the
    /// answer, and a call is the last message.
    ///
    /// `None` for parameters whose names the tags of a format cannot hold, and for the harmony format without
    /// its control tokens.
    pub fn calls_grammar(self, tools: &[ToolSpec], several: bool, tokenizer: &Tokenizer) -> Option<String> {
        let mut grammar = Grammar { tokenizer, rules: String::new() };
        let (open, close) = self.tags();
        let (open, close) = (grammar.tag(open), grammar.tag(close));
        let names: Vec<String> = (0..tools.len()).map(|at| format!("tool_{at}")).collect();
        let call = format!("({})", names.join(" | "));
        let more = |between: &str| if several { format!(" ({between} call)*") } else { String::new() };
        let (start, call) = match self {
            ToolFormat::Harmony => return grammar.harmony_calls(tools),
            ToolFormat::Hermes => {
                (format!("call{}", more(r#""\n""#)), format!(r#"{open} "\n" {call} "\n" {close}"#))
            }
            ToolFormat::QwenXml => {
                (format!("call{}", more(r#""\n""#)), format!(r#"{open} "\n" {call} {close}"#))
            }
            ToolFormat::Glm => (format!("call{}", more(r#""\n"?"#)), format!(r#"{open} {call} {close}"#)),
            ToolFormat::Gemma4 => (format!("call{}", more("")), format!("{open} {call} {close}")),
            ToolFormat::Llama3 => (format!("call{}", more(r#""; ""#)), call),
            ToolFormat::MistralList | ToolFormat::Granite => {
                (format!(r#"{open} "[" call{} "]""#, more(r#"", ""#)), call)
            }
            ToolFormat::Phi4 => (format!(r#"{open} "[" call{} "]" {close}"#, more(r#"", ""#)), call),
            ToolFormat::Mistral => (format!("call{}", more(r#""""#)), format!("{open} {call}")),
            ToolFormat::Olmo3 => (format!(r#"{open} "\n" call{} "\n" {close}"#, more(r#""\n""#)), call),
        };
        grammar.rule("start", &start);
        grammar.rule("call", &call);
        grammar.tools(self, tools)?;
        Some(grammar.rules)
    }

    /// The grammar of an answer that is at least one call, as in
    /// [`calls_grammar`](ToolFormat::calls_grammar), or JSON of a schema.
    ///
    /// `None` for parameters whose names the tags of a format cannot hold, and for the harmony format: a call
    /// and an answer are messages of different channels.
    pub fn calls_or_json_grammar(
        self,
        tools: &[ToolSpec],
        schema: &Value,
        several: bool,
        tokenizer: &Tokenizer,
    ) -> Option<String> {
        if self == ToolFormat::Harmony {
            return None;
        }
        let calls = self.calls_grammar(tools, several, tokenizer)?;
        let mut grammar = Grammar { tokenizer, rules: calls.replacen("start:", "calls:", 1) };
        grammar.rule("start", "calls | json_answer");
        grammar.json("json_answer", &with_definitions(schema, schema));
        Some(grammar.rules)
    }

    /// The grammar of an answer in which tools may be called: thoughts and text are free, calls are as in
    /// [`calls_grammar`](ToolFormat::calls_grammar). Tools that are not strict have any arguments.
    ///
    /// `None` for parameters whose names the tags of a format cannot hold, and for the harmony format without
    /// its control tokens.
    pub fn answer_grammar(self, tools: &[ToolSpec], tokenizer: &Tokenizer) -> Option<String> {
        let mut grammar = Grammar { tokenizer, rules: String::new() };
        // Calls in Python's syntax have the arguments of the schema in any case.
        let open = |tool: &ToolSpec| if tool.is_strict() { tool.clone() } else { tool.open() };
        let tools: Vec<ToolSpec> = match self {
            ToolFormat::Olmo3 => tools.to_vec(),
            _ => tools.iter().map(open).collect(),
        };
        let names: Vec<String> = (0..tools.len()).map(|at| format!("tool_{at}")).collect();
        grammar.rule("call", &names.join(" | "));
        grammar.tools(self, &tools)?;
        let (open, close) = self.tags();
        let close = grammar.tag(close);
        // What follows the opening tag, and how often.
        let (body, times) = match self {
            ToolFormat::Harmony => return grammar.harmony_answer(),
            ToolFormat::Llama3 => {
                let tag =
                    grammar.tokenizer.special_token(open).map_or(String::new(), |id| format!("<[{id}]>?"));
                grammar.rule("start", &format!("({tag} call (\"; \" call)*) | text?"));
                grammar.rule("text", r"/[^\s{](?s:.)*/");
                return Some(grammar.rules);
            }
            ToolFormat::Hermes => (format!(r#""\n" call "\n" {close}"#), "*"),
            ToolFormat::QwenXml => (format!(r#""\n" call {close}"#), "*"),
            ToolFormat::Glm | ToolFormat::Gemma4 => (format!("call {close}"), "*"),
            ToolFormat::MistralList | ToolFormat::Granite => (r#""[" call (", " call)* "]""#.to_owned(), "?"),
            ToolFormat::Phi4 => (format!(r#""[" call (", " call)* "]" {close}"#), "*"),
            ToolFormat::Mistral => ("call".to_owned(), "*"),
            ToolFormat::Olmo3 => (format!(r#""\n" call ("\n" call)* "\n" {close}"#), "*"),
        };
        grammar.text_and_calls(open, &body, times);
        Some(grammar.rules)
    }
}

struct Grammar<'a> {
    tokenizer: &'a Tokenizer,
    rules: String,
}

impl Grammar<'_> {
    fn rule(&mut self, name: &str, body: &str) {
        self.rules += &format!("{name}: {body}\n");
    }

    /// The rule of each tool.
    fn tools(&mut self, format: ToolFormat, tools: &[ToolSpec]) -> Option<()> {
        for (at, tool) in tools.iter().enumerate() {
            match format {
                ToolFormat::QwenXml | ToolFormat::Glm => self.tagged_call(format, at, tool)?,
                ToolFormat::Olmo3 => self.python_call(at, tool)?,
                ToolFormat::Harmony => self.harmony_call(at, tool),
                ToolFormat::Gemma4 => self.gemma_call(at, tool)?,
                ToolFormat::Mistral => {
                    let args = self.tag(ARGS);
                    let name = quoted(tool.name());
                    self.rule(&format!("tool_{at}"), &format!("{name} {args} arguments_{at}"));
                    self.json(&format!("arguments_{at}"), tool.parameters());
                }
                _ => self.json_call(format, at, tool),
            }
        }
        Some(())
    }

    /// Text in which an opening tag is followed by `body`, this many `times`.
    fn text_and_calls(&mut self, open: &str, body: &str, times: &str) {
        if let Some(id) = self.tokenizer.special_token(open) {
            // Any token but the tag: control tokens within the text, such as those of thoughts, too.
            self.rule("start", &format!("free (<[{id}]> {body} free){times}"));
            self.rule("free", &format!("<[^{id}]>*"));
            return;
        }
        let tags = THOUGHTS.iter().flat_map(|thoughts| thoughts.tokens);
        let tags = tags.filter_map(|tag| self.tokenizer.special_token(tag));
        let tags: Vec<String> = tags.map(|id| id.to_string()).collect();
        let thoughts = match tags.is_empty() {
            true => String::new(),
            false => format!("(text? <[{}]>)* ", tags.join(",")),
        };
        self.rule("start", &format!("{thoughts}(until {body}){times} text?"));
        self.rules += &format!("until[suffix={}]: /(?s:.)*/\n", quoted(open));
        self.rule("text", "/(?s:.)+/");
    }

    /// The control tokens of a channel, a message, its start, its end, and the end of a call.
    fn harmony_tags(&self) -> Option<[u32; 5]> {
        let tags = [CHANNEL, MESSAGE, START, END, CALL].map(|tag| self.tokenizer.special_token(tag));
        let [Some(channel), Some(message), Some(start), Some(end), Some(call)] = tags else { return None };
        Some([channel, message, start, end, call])
    }

    /// Thoughts and a call, behind the `<|start|>assistant` of the prompt. The end of a call ends the answer.
    fn harmony_calls(mut self, tools: &[ToolSpec]) -> Option<String> {
        let [channel, message, start, end, _] = self.harmony_tags()?;
        let names: Vec<String> = (0..tools.len()).map(|at| format!("tool_{at}")).collect();
        self.rule("start", &format!("thoughts? ({})", names.join(" | ")));
        let thoughts = format!("<[{channel}]> \"analysis\" <[{message}]> text? <[{end}]>");
        self.rule("thoughts", &format!("{thoughts} <[{start}]> \"assistant\""));
        self.rule("text", "/(?s:.)+/");
        self.tools(ToolFormat::Harmony, tools)?;
        Some(self.rules)
    }

    /// Messages with channels, behind the `<|start|>assistant` of the prompt.
    fn harmony_answer(mut self) -> Option<String> {
        let [channel, message, start, end, call] = self.harmony_tags()?;
        self.rule("start", &format!("message (<[{start}]> \"assistant\" message)*"));
        self.rule("message", &format!("(plain | call) <[{end},{call}]>?"));
        let channels = r#"("analysis" | "commentary" | "final")"#;
        self.rule("plain", &format!("<[{channel}]> {channels} <[{message}]> text?"));
        self.rule("text", "/(?s:.)+/");
        Some(self.rules)
    }

    /// A message to a tool: the recipient is before or behind the channel.
    fn harmony_call(&mut self, at: usize, tool: &ToolSpec) {
        let [channel, message, constrain] = [CHANNEL, MESSAGE, CONSTRAIN].map(|tag| self.tag(tag));
        let to = quoted(&format!(" to=functions.{}", tool.name()));
        let head = format!("{channel} \"commentary\" {to} | {to} {channel} \"commentary\"");
        let json = format!("(\" \"? ({constrain} \"json\")? | \" json\")");
        self.rule(&format!("tool_{at}"), &format!("({head}) {json} {message} arguments_{at}"));
        self.json(&format!("arguments_{at}"), tool.parameters());
    }

    fn json(&mut self, name: &str, schema: &Value) {
        let mut schema = schema.clone();
        if let Value::Object(keys) = &mut schema {
            let whitespace = || json!({ "whitespace_pattern": JSON_WHITESPACE });
            keys.entry("x-guidance").or_insert_with(whitespace);
        }
        self.rule(name, &format!("%json {schema}"));
    }

    /// A tag: its control token where the vocabulary has one, its text otherwise.
    fn tag(&self, text: &str) -> String {
        match self.tokenizer.special_token(text) {
            _ if text.is_empty() => String::new(),
            Some(id) => format!("<[{id}]>"),
            None => quoted(text),
        }
    }

    /// `{"name": …, "arguments": {…}}`.
    fn json_call(&mut self, format: ToolFormat, at: usize, tool: &ToolSpec) {
        let key = if format == ToolFormat::Llama3 { "parameters" } else { "arguments" };
        let head = quoted(&format!("{{\"name\": \"{}\", \"{key}\": ", tool.name()));
        self.rule(&format!("tool_{at}"), &format!("{head} arguments_{at} \"}}\""));
        self.json(&format!("arguments_{at}"), tool.parameters());
    }

    /// A call whose arguments have a pair of tags each.
    fn tagged_call(&mut self, format: ToolFormat, at: usize, tool: &ToolSpec) -> Option<()> {
        let Some(parameters) = Parameters::of(tool) else {
            return self.open_call(format, at, tool);
        };
        let mut body = String::new();
        for (index, (key, schema, required)) in parameters.list.iter().enumerate() {
            if key.is_empty() || key.contains(['<', '>', '\n']) {
                return None;
            }
            let (argument, value) = (format!("argument_{at}_{index}"), format!("value_{at}_{index}"));
            let (before, after) = self.around(format, &quoted(key));
            let closed = self.value(&value, after, tool.parameters(), schema);
            self.rule(&argument, &format!("{before} {closed}"));
            body += &format!(" {argument}{}", if *required { "" } else { "?" });
        }
        self.tagged_tool(format, at, tool, &body);
        Some(())
    }

    /// A call of a tool that does not say which parameters it has.
    fn open_call(&mut self, format: ToolFormat, at: usize, tool: &ToolSpec) -> Option<()> {
        let (before, after) = self.around(format, "/[A-Za-z0-9_.-]{1,64}/");
        let closed = self.text(&format!("value_{at}"), after, "*");
        self.rule(&format!("argument_{at}"), &format!("{before} {closed}"));
        self.tagged_tool(format, at, tool, &format!(" argument_{at}*"));
        Some(())
    }

    fn tagged_tool(&mut self, format: ToolFormat, at: usize, tool: &ToolSpec, arguments: &str) {
        let body = match format {
            ToolFormat::Glm => format!("{} \"\\n\"?{arguments}", quoted(tool.name())),
            _ => {
                let open = quoted(&format!("<function={}>\n", tool.name()));
                format!("{open}{arguments} \"</function>\\n\"")
            }
        };
        self.rule(&format!("tool_{at}"), &body);
    }

    /// What stands before the value of an argument with this key, and the tag behind it.
    fn around(&self, format: ToolFormat, key: &str) -> (String, &'static str) {
        match format {
            ToolFormat::Glm => {
                let tags = [ARG_KEY.0, ARG_KEY.1, ARG_VALUE.0].map(|tag| self.tag(tag));
                (format!("{} {key} {} \"\\n\"? {}", tags[0], tags[1], tags[2]), ARG_VALUE.1)
            }
            _ => (format!("\"<parameter=\" {key} \">\\n\""), "\n</parameter>\n"),
        }
    }

    /// The rule of a value, and what refers to it with the tag behind it.
    fn value(&mut self, name: &str, after: &'static str, root: &Value, schema: &Value) -> String {
        let literals = |values: &Vec<Value>| {
            let texts: Option<Vec<String>> =
                values.iter().map(|value| Some(quoted(value.as_str()?))).collect();
            texts.filter(|texts| !texts.is_empty()).map(|texts| texts.join(" | "))
        };
        let values = schema.get("enum").and_then(Value::as_array).cloned();
        let values = values.or_else(|| Some(vec![schema.get("const")?.clone()]));
        if let Some(texts) = values.as_ref().and_then(literals) {
            self.rule(name, &texts);
        } else if is_text(root, schema) {
            return self.text(name, after, &repeat(schema));
        } else {
            self.json(name, &with_definitions(root, schema));
        }
        format!("{name} {}", self.closing(after))
    }

    /// Text to the tag behind it.
    fn text(&mut self, name: &str, after: &'static str, repeat: &str) -> String {
        if self.tokenizer.special_token(after).is_some() {
            self.rule(name, &format!("/(?s:.){repeat}/"));
            return format!("{name} {}", self.closing(after));
        }
        self.rules += &format!("{name}[suffix={}]: /(?s:.){repeat}/\n", quoted(after));
        let space = if after.ends_with('\n') { "" } else { " \"\\n\"?" };
        format!("{name}{space}")
    }

    fn closing(&self, after: &str) -> String {
        let space = if after.ends_with('\n') { "" } else { " \"\\n\"?" };
        format!("{}{space}", self.tag(after))
    }

    /// `call:NAME{KEY:VALUE,…}`. Of lists and objects within it, the form is kept and not their schema.
    fn gemma_call(&mut self, at: usize, tool: &ToolSpec) -> Option<()> {
        self.gemma_values();
        let head = quoted(&format!("call:{}", tool.name()));
        let Some(parameters) = Parameters::of(tool) else {
            self.rule(&format!("tool_{at}"), &format!("{head} gemma_object"));
            return Some(());
        };
        let (mut required, mut optional) = (Vec::new(), Vec::new());
        for (index, (key, schema, needed)) in parameters.list.iter().enumerate() {
            let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '$');
            if key.is_empty() || !key.chars().all(plain) {
                return None;
            }
            let (argument, value) = (format!("argument_{at}_{index}"), format!("value_{at}_{index}"));
            self.rule(&argument, &format!("{} {value}", quoted(&format!("{key}:"))));
            self.gemma_value(&value, tool.parameters(), schema);
            if *needed { required.push(argument) } else { optional.push(argument) }
        }
        self.rule(&format!("arguments_{at}"), &separated(&required, &optional, ","));
        self.rule(&format!("tool_{at}"), &format!("{head} \"{{\" arguments_{at} \"}}\""));
        Some(())
    }

    /// The value of an argument of Gemma's.
    fn gemma_value(&mut self, name: &str, root: &Value, schema: &Value) {
        let quote = self.tag(QUOTE);
        let text = |value: &Value| Some(format!("{quote} {} {quote}", quoted(value.as_str()?)));
        let values = schema.get("enum").and_then(Value::as_array).cloned();
        let values = values.or_else(|| Some(vec![schema.get("const")?.clone()]));
        let texts = values.and_then(|values| values.iter().map(text).collect::<Option<Vec<String>>>());
        if let Some(texts) = texts.filter(|texts| !texts.is_empty()) {
            self.rule(name, &texts.join(" | "));
        } else if is_text(root, schema) {
            let closed = self.text(&format!("{name}_text"), QUOTE, &repeat(schema));
            self.rule(name, &format!("{quote} {closed}"));
        } else if is_scalar(root, schema) {
            self.json(name, &with_definitions(root, schema));
        } else {
            self.rule(name, "gemma_value");
        }
    }

    /// Any value of Gemma's, once.
    fn gemma_values(&mut self) {
        if self.rules.contains("gemma_value: ") {
            return;
        }
        let quote = self.tag(QUOTE);
        let closed = self.text("gemma_text", QUOTE, "*");
        self.json("gemma_scalar", &json!({ "type": ["number", "boolean", "null"] }));
        self.rule("gemma_value", &format!("{quote} {closed} | gemma_scalar | gemma_list | gemma_object"));
        self.rule("gemma_list", r#""[" (gemma_value ("," gemma_value)*)? "]""#);
        self.rule("gemma_object", r#""{" (gemma_pair ("," gemma_pair)*)? "}""#);
        self.rule("gemma_pair", r#"/[\p{L}\p{N}_.$-]{1,64}/ ":" gemma_value"#);
    }

    /// `NAME(KEY=VALUE, …)`.
    fn python_call(&mut self, at: usize, tool: &ToolSpec) -> Option<()> {
        let parameters = Parameters::of(tool).unwrap_or_default();
        let (mut required, mut optional) = (Vec::new(), Vec::new());
        for (index, (key, schema, needed)) in parameters.list.iter().enumerate() {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if key.is_empty() || !key.chars().all(plain) {
                return None;
            }
            let argument = format!("argument_{at}_{index}");
            self.rule(&argument, &format!("{} value_{at}_{index}", quoted(&format!("{key}="))));
            self.json(&format!("value_{at}_{index}"), &with_definitions(tool.parameters(), schema));
            if *needed { required.push(argument) } else { optional.push(argument) }
        }
        let arguments = separated(&required, &optional, ", ");
        self.rule(&format!("arguments_{at}"), &arguments);
        let open = quoted(&format!("{}(", tool.name()));
        self.rule(&format!("tool_{at}"), &format!("{open} arguments_{at} \")\""));
        Some(())
    }
}

/// Arguments with a separator between them: those that are required, and any of the others.
fn separated(required: &[String], optional: &[String], separator: &str) -> String {
    let separator = quoted(separator);
    let following = |rest: &[String]| -> String {
        rest.iter().map(|argument| format!(" ({separator} {argument})?")).collect()
    };
    if !required.is_empty() {
        return format!("{}{}", required.join(&format!(" {separator} ")), following(optional));
    }
    let mut ways: Vec<String> = (0..optional.len())
        .map(|first| format!("{}{}", optional[first], following(&optional[first + 1..])))
        .collect();
    ways.push("\"\"".to_owned());
    ways.join(" | ")
}

/// The parameters of a tool, in the order of its schema, and whether they are required.
#[derive(Default)]
struct Parameters<'a> {
    list: Vec<(&'a str, &'a Value, bool)>,
}

impl<'a> Parameters<'a> {
    /// `None` if the schema does not list them.
    fn of(tool: &'a ToolSpec) -> Option<Parameters<'a>> {
        let schema = tool.parameters();
        let properties: &Map<String, Value> = schema.get("properties")?.as_object()?;
        let required = schema.get("required").and_then(Value::as_array);
        let is_required = |key: &str| required.is_some_and(|list| list.iter().any(|name| name == key));
        let list = properties.iter().map(|(key, schema)| (key.as_str(), schema, is_required(key)));
        Some(Parameters { list: list.collect() })
    }
}

/// How many characters a string may have, as a repetition.
fn repeat(schema: &Value) -> String {
    let bound = |key: &str| schema.get(key).and_then(Value::as_u64);
    match (bound("minLength"), bound("maxLength")) {
        (None, None) => "*".to_owned(),
        (least, None) => format!("{{{},}}", least.unwrap_or(0)),
        (least, Some(most)) => format!("{{{},{most}}}", least.unwrap_or(0)),
    }
}

/// The schema of a part with the definitions of the whole, which it may refer to.
fn with_definitions(root: &Value, schema: &Value) -> Value {
    let mut schema = schema.clone();
    match &mut schema {
        Value::Object(keys) => {
            for name in ["$defs", "definitions"] {
                if let Some(definitions) = root.get(name) {
                    keys.entry(name).or_insert_with(|| definitions.clone());
                }
            }
        }
        Value::Bool(true) => schema = json!({}),
        _ => {}
    }
    schema
}

/// A text as a literal.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
