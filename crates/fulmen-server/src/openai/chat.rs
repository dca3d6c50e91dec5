//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use super::chat_stream::ChatEncoder;
use super::chat_types::{AnswerCall, AnswerMessage, ChatChoice, ChatRequest, ChatResponse};
use super::messages;
use super::wire::{
    ChatLogprobs, ResponseFormat, StopParam, StreamOptions, Usage, finish_reason, shared_sampling_fields,
};
use crate::app::{App, Caller};
use crate::body::{Json, json_response};
use crate::error::ApiError;
use crate::generation::{Answer, ChatInput, Choices, SamplingFields, Streaming, stream};
use crate::ids;

/// Answers a conversation.
#[utoipa::path(post, path = "/v1/chat/completions", tag = "openai", request_body = ChatRequest,
    responses((status = 200, body = ChatResponse), (status = 400), (status = 401), (status = 404),
        (status = 429)))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Json(mut request): Json<ChatRequest>,
) -> Result<Response, ApiError> {
    refuse_unsupported(&request)?;
    let streams = request.stream == Some(true);
    let with_usage = StreamOptions::includes_usage(request.stream_options.as_ref(), streams)?;
    let lease = app.registry.acquire(request.model.as_deref()).await?;
    let limits = &app.options.limits;
    if request.chat_template_kwargs.as_ref().is_some_and(|kwargs| !kwargs.is_empty())
        && lease.chat_template().is_none()
    {
        return Err(ApiError::unsupported("chat_template_kwargs", "this model has no chat template"));
    }
    let mut input = chat_input(&mut request, limits.tools)?;
    let mut fields = sampling_fields(&mut request)?;
    fields.grammar = input.constraint(&*lease, fields.grammar.take())?;
    let params = fields.resolve(&lease.spec().defaults, &*lease, limits)?;
    let mut prompt = input.prompt(&lease, params.grammar.is_some()).await?;
    if streams {
        prompt = prompt.with_call_pieces();
    }
    let model = lease.spec().name.clone();
    let mut choices = Choices::start(lease, &[prompt], &params, &caller, &app.metrics).await?;
    let with_logprobs = params.logprobs.is_some();
    if streams {
        choices.first().await?;
        let encoder = ChatEncoder::new(model, choices.len(), with_usage, with_logprobs);
        return Ok(stream(choices, encoder, Streaming::Sse { keep_alive: app.options.keep_alive }));
    }
    let answers = choices.collect().await?;
    let usage = Usage::of(&answers, answers.len());
    let choices = answers.into_iter().enumerate();
    let choices = choices.map(|(index, answer)| choice(index, answer, with_logprobs)).collect();
    Ok(json_response(&ChatResponse {
        id: ids::unique("chatcmpl-"),
        object: "chat.completion",
        created: ids::now(),
        model,
        choices,
        usage,
        system_fingerprint: None,
    }))
}

fn choice(index: usize, answer: Answer, with_logprobs: bool) -> ChatChoice {
    let Answer { reasoning, content, calls, logprobs, ending, .. } = answer;
    let content = (calls.is_empty() || !content.is_empty()).then_some(content);
    ChatChoice {
        index,
        message: AnswerMessage {
            role: "assistant",
            content,
            refusal: None,
            reasoning_content: (!reasoning.is_empty()).then_some(reasoning),
            tool_calls: calls.into_iter().map(AnswerCall::new).collect(),
        },
        logprobs: with_logprobs.then(|| ChatLogprobs::new(&logprobs)),
        finish_reason: finish_reason(&ending.reason),
    }
}

fn refuse_unsupported(request: &ChatRequest) -> Result<(), ApiError> {
    if request.store == Some(true) {
        return Err(ApiError::unsupported("store", "nothing is stored"));
    }
    if request.modalities.as_ref().is_some_and(|kinds| kinds.iter().any(|kind| kind != "text")) {
        return Err(ApiError::unsupported("modalities", "only text is written"));
    }
    messages::refuse_verbosity("verbosity", request.verbosity.as_deref())?;
    if request.top_logprobs.is_some() && request.logprobs != Some(true) {
        return Err(ApiError::field("top_logprobs", "top_logprobs: only with logprobs: true"));
    }
    Ok(())
}

fn chat_input(request: &mut ChatRequest, most_tools: usize) -> Result<ChatInput, ApiError> {
    let mut variables: Vec<_> = request.chat_template_kwargs.take().unwrap_or_default().into_iter().collect();
    let mut thinking = messages::thinking(request.reasoning_effort.as_deref())?;
    if let Some(at) = variables.iter().position(|(name, _)| name == "enable_thinking") {
        thinking = variables.remove(at).1.as_bool().or(thinking);
    }
    if !variables.iter().any(|(name, _)| name == "reasoning_effort") {
        variables.extend(messages::effort_variable(request.reasoning_effort.as_deref()));
    }
    let taken = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];
    if let Some((name, _)) = variables.iter().find(|(name, _)| taken.contains(&name.as_str())) {
        let message = format!("chat_template_kwargs: {name} is set by the request itself");
        return Err(ApiError::field("chat_template_kwargs", message));
    }
    let list = std::mem::take(&mut request.messages.0);
    let tools = messages::tool_specs(request.tools.take(), most_tools)?;
    let (tools, tool_choice) = messages::tool_choice(request.tool_choice.take(), tools)?;
    Ok(ChatInput {
        tools,
        tool_choice,
        several_calls: request.parallel_tool_calls != Some(false),
        thinking,
        variables,
        ..messages::chat_input(list)?
    })
}

fn sampling_fields(request: &mut ChatRequest) -> Result<SamplingFields, ApiError> {
    let max_tokens = match (request.max_completion_tokens, request.max_tokens) {
        (Some(limit), _) => Some(("max_completion_tokens", limit)),
        (None, limit) => limit.map(|limit| ("max_tokens", limit)),
    };
    Ok(SamplingFields {
        max_tokens,
        logprobs: (request.logprobs == Some(true)).then(|| request.top_logprobs.unwrap_or(0)),
        ..shared_sampling_fields!(request)
    })
}
