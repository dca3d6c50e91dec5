//! From the items of `/v1/responses` to a conversation.

use fulmen_model::template::{ToolChoice, ToolSpec};
use serde_json::{Value, json};

use super::chat_types::{ChatMessage, Content, MessageCall, MessageFunction};
use super::responses_types::{
    InputItem, NamedChoice, ResponsesInput, ResponsesRequest, ResponsesToolChoice, TextOptions,
};
use super::wire::{JsonSchemaFormat, ResponseFormat};
use super::{messages, responses_tools};
use crate::error::ApiError;
use crate::generation::ChatInput;
use crate::served::Grammar;

fn message(role: &str, content: Option<Content>) -> ChatMessage {
    ChatMessage {
        role: role.to_owned(),
        content,
        name: None,
        tool_calls: None,
        tool_call_id: None,
        reasoning_content: None,
        refusal: None,
        annotations: None,
        audio: None,
        function_call: None,
    }
}

/// The conversation and the tools of a request.
pub(crate) fn chat_input(request: &mut ResponsesRequest, most_tools: usize) -> Result<ChatInput, ApiError> {
    let mut list = Vec::new();
    if let Some(text) = request.instructions.clone() {
        list.push(message("system", Some(Content::Text(text))));
    }
    let input = std::mem::replace(&mut request.input, ResponsesInput::Text(String::new()));
    match input {
        ResponsesInput::Text(text) => list.push(message("user", Some(Content::Text(text)))),
        ResponsesInput::Items(items) => {
            let mut thoughts = None;
            for (index, item) in items.0.into_iter().enumerate() {
                push_item(index, item, &mut thoughts, &mut list)?;
            }
        }
    }
    let effort = request.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
    let thinking = messages::thinking(effort)?;
    let variables = messages::effort_variable(effort).into_iter().collect();
    let tools = responses_tools::specs(request.tools.take(), most_tools)?;
    let (tools, tool_choice) = tool_choice(request.tool_choice.take(), tools)?;
    Ok(ChatInput {
        variables,
        tools,
        tool_choice,
        several_calls: request.parallel_tool_calls != Some(false),
        thinking,
        ..messages::chat_input(list)?
    })
}

/// What clients send back of items that they got.
const RETURNED: [&str; 6] = ["id", "status", "summary", "encrypted_content", "namespace", "phase"];

/// Adds an item to the messages. `thoughts` are those of the assistant's next message.
fn push_item(
    index: usize,
    item: InputItem,
    thoughts: &mut Option<String>,
    list: &mut Vec<ChatMessage>,
) -> Result<(), ApiError> {
    let missing = |what: &str| {
        let param = format!("input[{index}].{what}");
        ApiError::field(param.clone(), format!("{param}: missing"))
    };
    let known =
        [None, Some("message"), Some("function_call"), Some("function_call_output"), Some("reasoning")];
    if known.contains(&item.kind.as_deref()) {
        messages::no_others(&item.others, &RETURNED, &format!("input[{index}]"))?;
    }
    match item.kind.as_deref() {
        None | Some("message") => {
            let role = item.role.ok_or_else(|| missing("role"))?;
            let reasoning_content = if role == "assistant" { thoughts.take() } else { None };
            list.push(ChatMessage { reasoning_content, ..message(&role, item.content) });
        }
        Some("function_call") => {
            let function = MessageFunction {
                name: item.name.ok_or_else(|| missing("name"))?,
                arguments: item.arguments.unwrap_or_default(),
                parsed_arguments: None,
            };
            let call = MessageCall { id: item.call_id, kind: None, function, index: None };
            // Thoughts before a call begin a message of their own.
            match list.last_mut().filter(|last| last.role == "assistant" && thoughts.is_none()) {
                Some(last) => last.tool_calls.get_or_insert_default().push(call),
                None => {
                    let content = Some(Content::Text(String::new()));
                    list.push(ChatMessage {
                        tool_calls: Some(vec![call]),
                        reasoning_content: thoughts.take(),
                        ..message("assistant", content)
                    });
                }
            }
        }
        Some("function_call_output") => {
            let content = item.output.ok_or_else(|| missing("output"))?;
            list.push(ChatMessage { tool_call_id: item.call_id, ..message("tool", Some(content)) });
        }
        // The template decides which thoughts of earlier answers the model sees.
        Some("reasoning") => {
            let text = messages::text_of(item.content, &format!("input[{index}].content"))?;
            if !text.is_empty() {
                thoughts.get_or_insert_default().push_str(&text);
            }
        }
        Some(other) => {
            let param = format!("input[{index}].type");
            return Err(ApiError::unsupported(&param, &format!("items of type {other:?}")));
        }
    }
    Ok(())
}

/// Whether tools are called, and which ones.
fn tool_choice(
    choice: Option<ResponsesToolChoice>,
    tools: Vec<ToolSpec>,
) -> Result<(Vec<ToolSpec>, ToolChoice), ApiError> {
    let name = |named: NamedChoice| {
        messages::expect_kind(&named.kind, "function")?;
        Ok(named.name)
    };
    let choice = match choice {
        None => ToolChoice::Auto,
        Some(ResponsesToolChoice::Mode(mode)) => messages::choice_of_mode(&mode)?,
        Some(ResponsesToolChoice::Function(named)) => ToolChoice::Named(name(named)?),
        Some(ResponsesToolChoice::Allowed(allowed)) => {
            messages::expect_kind(&allowed.kind, "allowed_tools")?;
            let names = allowed.tools.into_iter().map(name).collect::<Result<Vec<_>, ApiError>>()?;
            return messages::allowed_tools(&allowed.mode, &names, tools);
        }
    };
    Ok((tools, choice))
}

/// The grammar of the text.
pub(crate) fn grammar(text: Option<TextOptions>) -> Result<Option<Grammar>, ApiError> {
    let Some(text) = text else { return Ok(None) };
    messages::refuse_verbosity("text.verbosity", text.verbosity.as_deref())?;
    let Some(format) = text.format else { return Ok(None) };
    ResponseFormat::grammar(Some(ResponseFormat {
        kind: format.kind,
        json_schema: Some(JsonSchemaFormat {
            name: format.name,
            description: format.description,
            schema: format.schema,
            strict: format.strict,
        }),
        pattern: None,
        grammar: None,
    }))
}

/// Fields that are known and not supported.
pub(crate) fn refuse_unsupported(request: &ResponsesRequest) -> Result<(), ApiError> {
    let refused = [
        ("store", request.store == Some(true), "nothing is stored"),
        ("previous_response_id", request.previous_response_id.is_some(), "nothing is stored"),
        ("background", request.background == Some(true), "answers are not kept"),
        (
            "include",
            request.include.iter().flatten().any(|what| what != "reasoning.encrypted_content"),
            "nothing is added",
        ),
        (
            "top_logprobs",
            request.top_logprobs.is_some_and(|top| top != 0),
            "/v1/chat/completions has log-probabilities",
        ),
        (
            "truncation",
            request.truncation.as_deref().is_some_and(|mode| mode != "disabled"),
            "conversations are not cut",
        ),
        (
            "reasoning.summary",
            request.reasoning.as_ref().is_some_and(|reasoning| {
                let asked = [&reasoning.summary, &reasoning.generate_summary];
                asked.into_iter().flatten().any(|mode| mode != "auto")
            }),
            "thoughts are not summarized",
        ),
    ];
    match refused.into_iter().find(|(_, refused, _)| *refused) {
        Some((param, _, what)) => Err(ApiError::unsupported(param, what)),
        None => Ok(()),
    }
}

/// An object without the fields that the request did not have.
fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, field| !field.is_null());
    }
    value
}

/// What an answer repeats of its request.
pub(crate) fn repeated(request: &ResponsesRequest) -> Value {
    let format = request
        .text
        .as_ref()
        .and_then(|text| text.format.as_ref())
        .map(|format| without_nulls(json!(format)));
    json!({
        "object": "response",
        "error": null,
        "incomplete_details": null,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata.clone().unwrap_or_default(),
        "parallel_tool_calls": request.parallel_tool_calls.unwrap_or(true),
        "previous_response_id": null,
        "reasoning": { "effort": request.reasoning.as_ref().and_then(|r| r.effort.clone()), "summary": null },
        "store": false,
        "temperature": request.temperature.unwrap_or(1.0),
        "text": { "format": format.unwrap_or_else(|| json!({ "type": "text" })) },
        "tool_choice": request.tool_choice.as_ref().map_or(json!("auto"), |choice| json!(choice)),
        "tools": request.tools.as_deref().unwrap_or_default(),
        "top_p": request.top_p.unwrap_or(1.0),
        "truncation": "disabled",
        "user": request.user,
        "usage": null,
        "output": [],
    })
}
