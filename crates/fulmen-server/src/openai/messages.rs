//! From the messages and tools of a request to what a template is told.

use fulmen_model::template::{Message, ToolChoice, ToolSpec};
use serde_json::{Map, Value, json};

use super::chat_types::{AllowedList, ChatMessage, Content, NamedTool, Tool, ToolChoiceParam};
use crate::error::ApiError;
use crate::generation::ChatInput;

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// A conversation without tools.
pub(crate) fn chat_input(messages: Vec<ChatMessage>) -> Result<ChatInput, ApiError> {
    let messages = messages.into_iter().enumerate().map(|(index, message)| template_message(index, message));
    let messages = messages.collect::<Result<_, _>>()?;
    Ok(ChatInput { messages, several_calls: true, ..ChatInput::default() })
}

/// The text of a content; parts other than text are refused.
pub(crate) fn text_of(content: Option<Content>, param: &str) -> Result<String, ApiError> {
    match content {
        None => Ok(String::new()),
        Some(Content::Text(text)) => Ok(text),
        Some(Content::Parts(parts)) => {
            let mut all = String::new();
            for part in parts {
                if ["text", "input_text", "output_text", "reasoning_text", "refusal"]
                    .contains(&part.kind.as_str())
                {
                    no_others(&part.others, &["annotations", "logprobs", "cache_control"], param)?;
                }
                match (part.kind.as_str(), part.text, part.refusal) {
                    ("text" | "input_text" | "output_text" | "reasoning_text", Some(text), _) => {
                        all.push_str(&text);
                    }
                    ("refusal", _, Some(text)) => all.push_str(&text),
                    ("text" | "input_text" | "output_text" | "reasoning_text", None, _) => {
                        return Err(ApiError::field(param, format!("{param}: a text part without text")));
                    }
                    (kind, ..) => {
                        let what = format!("content of type {kind:?}; only text is read");
                        return Err(ApiError::unsupported(param, &what));
                    }
                }
            }
            Ok(all)
        }
    }
}

/// Refuses unknown fields of an object that may be one of several kinds, where the reader of JSON cannot name
/// them. `harmless` ones are those of answers that clients send back.
pub(crate) fn no_others(others: &Map<String, Value>, harmless: &[&str], param: &str) -> Result<(), ApiError> {
    match others.keys().find(|name| !harmless.contains(&name.as_str())) {
        Some(name) => Err(ApiError::field(param, format!("{param}: unknown field `{name}`"))),
        None => Ok(()),
    }
}

fn template_message(index: usize, message: ChatMessage) -> Result<Message, ApiError> {
    let param = format!("messages[{index}]");
    if !ROLES.contains(&message.role.as_str()) {
        let error = format!("{param}.role: expected one of {}, got {:?}", ROLES.join(", "), message.role);
        return Err(ApiError::field(format!("{param}.role"), error));
    }
    if message.audio.is_some() {
        return Err(ApiError::unsupported(&format!("{param}.audio"), "only text is read"));
    }
    if message.function_call.is_some() {
        return Err(ApiError::unsupported(&format!("{param}.function_call"), "use tool_calls"));
    }
    if message.content.is_none() && message.tool_calls.is_none() && message.refusal.is_none() {
        let error = format!("{param}.content: expected a string, got none");
        return Err(ApiError::field(format!("{param}.content"), error));
    }
    let content = match (message.content, message.refusal) {
        (None, Some(refusal)) => refusal,
        (content, _) => text_of(content, &format!("{param}.content"))?,
    };
    // Templates know the older name.
    let role = if message.role == "developer" { "system".to_owned() } else { message.role };
    let mut fields = Vec::new();
    if let Some(calls) = message.tool_calls.filter(|calls| !calls.is_empty()) {
        let calls = calls.into_iter().map(|call| {
            let arguments = call_arguments(&call.function.arguments, &param)?;
            let function = json!({ "name": call.function.name, "arguments": arguments });
            Ok(json!({ "type": "function", "id": call.id, "function": function }))
        });
        fields.push(("tool_calls".to_owned(), calls.collect::<Result<Value, ApiError>>()?));
    }
    let texts = [
        ("name", message.name),
        ("tool_call_id", message.tool_call_id),
        ("reasoning_content", message.reasoning_content),
    ];
    let texts = texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), json!(text?))));
    fields.extend(texts);
    Ok(Message { role, content, fields })
}

/// The arguments of an earlier call: templates write them as JSON.
pub(crate) fn call_arguments(text: &str, param: &str) -> Result<Value, ApiError> {
    if text.trim().is_empty() {
        return Ok(json!({}));
    }
    let wrong = || {
        let param = format!("{param}.tool_calls");
        ApiError::field(param.clone(), format!("{param}: expected arguments that are a JSON object"))
    };
    serde_json::from_str::<Value>(text).ok().filter(Value::is_object).ok_or_else(wrong)
}

/// The tools of a request, checked.
pub(crate) fn tool_specs(tools: Option<Vec<Tool>>, most: usize) -> Result<Vec<ToolSpec>, ApiError> {
    let tools = tools.unwrap_or_default();
    if tools.len() > most {
        let message = format!("tools: expected at most {most}, got {}", tools.len());
        return Err(ApiError::field("tools", message));
    }
    let spec = |(index, tool): (usize, Tool)| {
        if tool.kind != "function" {
            return Err(unsupported_tool(index, &tool.kind));
        }
        let function = tool.function;
        let tool = checked_tool(index, function.name, function.description, function.parameters)?;
        Ok(tool.with_strict(function.strict == Some(true)))
    };
    tools.into_iter().enumerate().map(spec).collect()
}

/// Refuses tools that a server would run.
pub(crate) fn unsupported_tool(index: usize, kind: &str) -> ApiError {
    let what = format!("tools[{index}] of type {kind:?}; only functions, which the client runs");
    ApiError::unsupported("tools", &what)
}

/// A tool with a valid name and schema.
pub(crate) fn checked_tool(
    index: usize,
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
) -> Result<ToolSpec, ApiError> {
    ToolSpec::new(name, description, parameters)
        .map_err(|error| ApiError::field("tools", format!("tools[{index}]: {error}")))
}

/// Whether tools are called, and which ones.
pub(crate) fn tool_choice(
    choice: Option<ToolChoiceParam>,
    tools: Vec<ToolSpec>,
) -> Result<(Vec<ToolSpec>, ToolChoice), ApiError> {
    let choice = match choice {
        None => ToolChoice::Auto,
        Some(ToolChoiceParam::Mode(mode)) => choice_of_mode(&mode)?,
        Some(ToolChoiceParam::Function(named)) => ToolChoice::Named(function_name(named)?),
        Some(ToolChoiceParam::Allowed(allowed)) => {
            expect_kind(&allowed.kind, "allowed_tools")?;
            let AllowedList { mode, tools: names } = allowed.allowed_tools;
            let names = names.into_iter().map(function_name).collect::<Result<Vec<_>, _>>()?;
            return allowed_tools(&mode, &names, tools);
        }
    };
    Ok((tools, choice))
}

fn function_name(named: NamedTool) -> Result<String, ApiError> {
    expect_kind(&named.kind, "function")?;
    Ok(named.function.name)
}

/// Refuses choices of other kinds, such as built-in tools.
pub(crate) fn expect_kind(kind: &str, known: &str) -> Result<(), ApiError> {
    match kind == known {
        true => Ok(()),
        false => Err(ApiError::unsupported("tool_choice", &format!("a choice of type {kind:?}"))),
    }
}

/// Whether tools are called.
pub(crate) fn choice_of_mode(mode: &str) -> Result<ToolChoice, ApiError> {
    match mode {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        other => {
            let message = format!("tool_choice: expected none, auto, required or a function, got {other:?}");
            Err(ApiError::field("tool_choice", message))
        }
    }
}

/// The tools that may be called, and whether one of them must be.
pub(crate) fn allowed_tools(
    mode: &str,
    names: &[String],
    mut tools: Vec<ToolSpec>,
) -> Result<(Vec<ToolSpec>, ToolChoice), ApiError> {
    let choice = match choice_of_mode(mode)? {
        choice @ (ToolChoice::Auto | ToolChoice::Required) => choice,
        _ => {
            let message = format!("tool_choice.mode: expected auto or required, got {mode:?}");
            return Err(ApiError::field("tool_choice", message));
        }
    };
    if let Some(name) = names.iter().find(|name| !tools.iter().any(|tool| tool.name() == name.as_str())) {
        return Err(ApiError::field("tool_choice", format!("tool_choice: {name:?} is not in tools")));
    }
    tools.retain(|tool| names.iter().any(|name| name == tool.name()));
    Ok((tools, choice))
}

/// Models have no setting of verbosity: only the usual one is accepted.
pub(crate) fn refuse_verbosity(param: &str, verbosity: Option<&str>) -> Result<(), ApiError> {
    match verbosity {
        None | Some("medium") => Ok(()),
        Some(_) => Err(ApiError::unsupported(param, "models have no such setting")),
    }
}

/// The variable that templates with efforts read, such as that of gpt-oss, which knows three.
pub(crate) fn effort_variable(effort: Option<&str>) -> Option<(String, Value)> {
    let effort = match effort? {
        "medium" => "medium",
        "high" | "xhigh" | "max" => "high",
        _ => "low",
    };
    Some(("reasoning_effort".to_owned(), effort.into()))
}

/// Whether a template's model thinks.
pub(crate) fn thinking(effort: Option<&str>) -> Result<Option<bool>, ApiError> {
    match effort {
        None => Ok(None),
        Some("none" | "minimal") => Ok(Some(false)),
        Some("low" | "medium" | "high" | "xhigh" | "max") => Ok(Some(true)),
        Some(other) => {
            let message =
                format!("reasoning_effort: expected none, minimal, low, medium or high, got {other:?}");
            Err(ApiError::field("reasoning_effort", message))
        }
    }
}
