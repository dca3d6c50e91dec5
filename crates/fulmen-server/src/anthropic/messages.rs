//! `/v1/messages`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use fulmen_model::template::ToolCall;
use serde_json::Value;

use super::input::{Parts, grammar};
use super::stream::MessagesEncoder;
use super::types::{
    CountRequest, CountResponse, MessageResponse, MessageUsage, MessagesRequest, OutputBlock, Thinking,
    stop_reason,
};
use crate::app::{App, Caller};
use crate::body::{Json, json_response};
use crate::error::ApiError;
use crate::generation::{Answer, Choices, SamplingFields, Streaming, stream};
use crate::ids;

/// Answers a conversation.
#[utoipa::path(post, path = "/v1/messages", tag = "anthropic", request_body = MessagesRequest,
    responses((status = 200, body = MessageResponse), (status = 400), (status = 401), (status = 404),
        (status = 429)))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Json(mut request): Json<MessagesRequest>,
) -> Result<Response, ApiError> {
    let hides_thoughts = Thinking::hidden(request.thinking.as_ref())?;
    let lease = app.registry.acquire(Some(&request.model)).await?;
    let limits = &app.options.limits;
    let input = Parts {
        messages: request.messages.0,
        system: request.system,
        tools: request.tools,
        tool_choice: request.tool_choice,
        thinking: request.thinking,
        effort: request.output_config.as_mut().and_then(|config| config.effort.take()),
        context_management: request.context_management,
    };
    let mut input = input.chat_input(limits.tools)?;
    let format = grammar(request.output_config)?.map(|grammar| ("output_config.format", grammar));
    let fields = SamplingFields {
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        stop_name: Some("stop_sequences"),
        stop: request.stop_sequences.unwrap_or_default(),
        max_tokens: Some(("max_tokens", request.max_tokens)),
        grammar: input.constraint(&*lease, format)?,
        ..SamplingFields::default()
    };
    let params = fields.resolve(&lease.spec().defaults, &*lease, limits)?;
    let mut prompt = input.prompt(&lease, params.grammar.is_some()).await?;
    if request.stream == Some(true) {
        prompt = prompt.with_call_pieces();
    }
    let (model, prompt_tokens) = (lease.spec().name.clone(), prompt.tokens.len());
    let mut choices = Choices::start(lease, &[prompt], &params, &caller, &app.metrics).await?;
    if request.stream == Some(true) {
        choices.first().await?;
        let encoder = MessagesEncoder::new(model, prompt_tokens, hides_thoughts);
        return Ok(stream(choices, encoder, Streaming::Sse { keep_alive: app.options.keep_alive }));
    }
    let Some(answer) = choices.collect().await?.pop() else {
        return Err(ApiError::internal("there is no answer"));
    };
    let (reason, stop_sequence) = stop_reason(&answer.ending.reason);
    let usage = MessageUsage::from(answer.ending.usage);
    Ok(json_response(&MessageResponse {
        id: ids::unique("msg_"),
        kind: "message",
        role: "assistant",
        model,
        content: blocks(answer, hides_thoughts),
        stop_reason: Some(reason),
        stop_sequence,
        usage,
    }))
}

fn blocks(answer: Answer, hides_thoughts: bool) -> Vec<OutputBlock> {
    let mut blocks = Vec::new();
    if !answer.reasoning.is_empty() {
        let thinking = if hides_thoughts { String::new() } else { answer.reasoning };
        blocks.push(OutputBlock::Thinking { thinking, signature: String::new() });
    }
    if !answer.content.is_empty() {
        blocks.push(OutputBlock::Text { text: answer.content });
    }
    blocks.extend(answer.calls.into_iter().map(tool_use));
    blocks
}

fn tool_use(call: ToolCall) -> OutputBlock {
    let input = Value::Object(call.arguments);
    OutputBlock::ToolUse { id: ids::unique("toolu_"), name: call.name, input }
}

/// Counts the tokens of a conversation.
#[utoipa::path(post, path = "/v1/messages/count_tokens", tag = "anthropic", request_body = CountRequest,
    responses((status = 200, body = CountResponse), (status = 400), (status = 404)))]
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    Json(request): Json<CountRequest>,
) -> Result<Response, ApiError> {
    let lease = app.registry.acquire(Some(&request.model)).await?;
    let CountRequest { messages, system, tools, tool_choice, thinking, output_config, .. } = request;
    let effort = output_config.and_then(|config| config.effort);
    let context_management = request.context_management;
    let messages = messages.0;
    let input = Parts { messages, system, tools, tool_choice, thinking, effort, context_management };
    let prompt = input.chat_input(app.options.limits.tools)?.prompt(&lease, false).await?;
    Ok(json_response(&CountResponse { input_tokens: prompt.tokens.len() }))
}
