//! `/v1/completions`: text that continues prompts.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use fulmen_model::tokenizer::Special;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::wire::{
    ResponseFormat, StopParam, StreamOptions, Usage, finish_reason, finite_logprob, shared_sampling_fields,
    sse_done, sse_error,
};
use crate::app::{App, Caller};
use crate::body::{Json, json_response};
use crate::error::ApiError;
use crate::generation::{
    Answer, Choices, Encode, EndReason, Ending, Output, Prompt, SamplingFields, Streaming, TokenLogprob,
    TokenUsage, sse_data, stream, stream_ends, tokenize,
};
use crate::ids;
use crate::registry::Lease;

/// A text or tokens, or several.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of tokens or a list of such lists"
)]
pub(crate) enum PromptParam {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

/// A request for completions.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub(crate) struct CompletionRequest {
    pub(crate) model: Option<String>,
    pub(crate) prompt: PromptParam,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    pub(crate) n: Option<i64>,
    /// Only if it is `n`.
    pub(crate) best_of: Option<i64>,
    pub(crate) seed: Option<i64>,
    pub(crate) stop: Option<StopParam>,
    /// 16 by default, as OpenAI's.
    pub(crate) max_tokens: Option<i64>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f64>,
    pub(crate) frequency_penalty: Option<f64>,
    pub(crate) presence_penalty: Option<f64>,
    pub(crate) repetition_penalty: Option<f64>,
    pub(crate) logit_bias: Option<BTreeMap<String, f64>>,
    /// How many of the most likely tokens are wanted at each position.
    pub(crate) logprobs: Option<i64>,
    /// Whether the prompt is part of the text, and with logprobs its tokens part of them.
    pub(crate) echo: Option<bool>,
    /// Not supported.
    pub(crate) suffix: Option<String>,
    pub(crate) ignore_eos: Option<bool>,
    pub(crate) response_format: Option<ResponseFormat>,
    /// Accepted; has no effect.
    pub(crate) user: Option<String>,
}

/// Completions.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CompletionResponse {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<CompletionChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

/// A completion.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CompletionChoice {
    text: String,
    index: usize,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
}

/// Log-probabilities of a completion. The first token of an echoed prompt has none: null.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// The tokens of an echoed prompt, and generated ones behind `echoed` characters.
    fn new(prompt: &[TokenLogprob], generated: &[TokenLogprob], echoed: usize) -> CompletionLogprobs {
        let mut all = CompletionLogprobs::default();
        prompt.iter().for_each(|token| all.push(token, 0));
        generated.iter().for_each(|token| all.push(token, echoed));
        all
    }

    fn push(&mut self, token: &TokenLogprob, echoed: usize) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let top = token.top.iter().map(|(bytes, logprob)| (text(bytes), finite_logprob(*logprob)));
        self.tokens.push(text(&token.bytes));
        self.token_logprobs.push(token.logprob.map(finite_logprob));
        self.top_logprobs.push(token.logprob.map(|_| top.collect()));
        self.text_offset.push(echoed + token.characters);
    }
}

/// Continues texts.
#[utoipa::path(post, path = "/v1/completions", tag = "openai", request_body = CompletionRequest,
    responses((status = 200, body = CompletionResponse), (status = 400), (status = 401), (status = 404),
        (status = 429)))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Json(mut request): Json<CompletionRequest>,
) -> Result<Response, ApiError> {
    refuse_unsupported(&request)?;
    let streams = request.stream == Some(true);
    let with_usage = StreamOptions::includes_usage(request.stream_options.as_ref(), streams)?;
    let lease = app.registry.acquire(request.model.as_deref()).await?;
    let limits = &app.options.limits;
    let only_echo = request.max_tokens == Some(0) && request.echo == Some(true);
    if only_echo {
        request.max_tokens = Some(1);
    }
    let params = sampling_fields(&mut request)?.resolve(&lease.spec().defaults, &*lease, limits)?;
    let (prompts, echoes) = prompts(&lease, &request, limits.choices as usize).await?;
    let n = params.n as usize;
    if prompts.len() * n > limits.choices as usize {
        let message = format!("prompt: expected at most {} texts, got {}", limits.choices, prompts.len() * n);
        return Err(ApiError::field("prompt", message));
    }
    let model = lease.spec().name.clone();
    let head = Head {
        id: ids::unique("cmpl-"),
        created: ids::now(),
        model,
        n,
        echoes,
        with_logprobs: params.logprobs.is_some(),
        only_echo,
    };
    let form = Streaming::Sse { keep_alive: app.options.keep_alive };
    let encoder = |head, count| Encoder { head, count, with_usage, usage: Usage::default() };
    if only_echo && !head.with_logprobs {
        let answers = echoed(&prompts, n, lease.context())?;
        if streams {
            let endings: Vec<_> = answers.into_iter().map(|answer| answer.ending).collect();
            let encoder = encoder(head, endings.len());
            return Ok(stream_ends(endings, encoder, form));
        }
        return Ok(json_response(&head.whole(answers)));
    }
    let mut choices = Choices::start(lease, &prompts, &params, &caller, &app.metrics).await?;
    if streams {
        choices.first().await?;
        let encoder = encoder(head, choices.len());
        return Ok(stream(choices, encoder, form));
    }
    Ok(json_response(&head.whole(choices.collect().await?)))
}

/// Answers without a generated token, `n` for each prompt.
fn echoed(prompts: &[Prompt], n: usize, context: u32) -> Result<Vec<Answer>, ApiError> {
    let mut answers = Vec::new();
    for prompt in prompts {
        prompt.room(context)?;
        answers.extend(std::iter::repeat_n(Answer::empty(prompt.tokens.len()), n));
    }
    Ok(answers)
}

fn refuse_unsupported(request: &CompletionRequest) -> Result<(), ApiError> {
    if request.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::unsupported("suffix", "text is only continued"));
    }
    if request.best_of.is_some_and(|best| best != request.n.unwrap_or(1)) {
        return Err(ApiError::unsupported("best_of", "all n completions are returned"));
    }
    Ok(())
}

fn sampling_fields(request: &mut CompletionRequest) -> Result<SamplingFields, ApiError> {
    Ok(SamplingFields {
        max_tokens: Some(("max_tokens", request.max_tokens.unwrap_or(16))),
        logprobs: request.logprobs,
        prompt_logprobs: request.echo == Some(true),
        ..shared_sampling_fields!(request)
    })
}

/// The prompts, and what is echoed of each.
async fn prompts(
    lease: &Lease,
    request: &CompletionRequest,
    most: usize,
) -> Result<(Vec<Prompt>, Vec<String>), ApiError> {
    let wrong = |message: String| Err(ApiError::field("prompt", message));
    let (texts, lists) = match request.prompt.clone() {
        PromptParam::Text(text) => (vec![text], Vec::new()),
        PromptParam::Texts(texts) => (texts, Vec::new()),
        PromptParam::Tokens(tokens) => (Vec::new(), vec![tokens]),
        PromptParam::TokenLists(lists) => (Vec::new(), lists),
    };
    let count = texts.len() + lists.len();
    if count == 0 || count > most {
        return wrong(format!("prompt: expected 1 to {most} texts, got {count}"));
    }
    let (mut prompts, mut echoes) = (Vec::new(), Vec::new());
    let echo = request.echo == Some(true);
    for text in texts {
        echoes.push(if echo { text.clone() } else { String::new() });
        prompts.push(Prompt::tokens(tokenize(lease, text, Special::AsText).await?));
    }
    if lists.iter().any(Vec::is_empty) {
        return wrong("prompt: expected at least 1 token, got none".to_owned());
    }
    for tokens in lists {
        let text = match lease.tokenizer().decode(&tokens) {
            Ok(text) => text,
            Err(error) => return wrong(format!("prompt: {error}")),
        };
        echoes.push(if echo { text } else { String::new() });
        prompts.push(Prompt::tokens(tokens));
    }
    Ok((prompts, echoes))
}

/// What all chunks of a response share.
struct Head {
    id: String,
    created: u64,
    model: String,
    /// Choices for each prompt.
    n: usize,
    /// What is echoed, by prompt.
    echoes: Vec<String>,
    with_logprobs: bool,
    /// Whether nothing is wanted of what is generated: a token comes with the log-probabilities of a prompt.
    only_echo: bool,
}

impl Head {
    fn echo(&self, index: usize) -> &str {
        &self.echoes[index / self.n]
    }

    /// Log-probabilities of a part of a choice, if they are wanted.
    fn logprobs(
        &self,
        index: usize,
        prompt: &[TokenLogprob],
        generated: &[TokenLogprob],
    ) -> Option<CompletionLogprobs> {
        let echoed = self.echo(index).chars().count();
        self.with_logprobs.then(|| CompletionLogprobs::new(prompt, generated, echoed))
    }

    /// The end of a choice, of which the generated token may not be wanted.
    fn ending(&self, ending: Ending) -> Ending {
        if !self.only_echo {
            return ending;
        }
        let usage = TokenUsage { generated: 0, reasoning: 0, ..ending.usage };
        Ending { reason: EndReason::Length, usage, ..ending }
    }

    fn response(&self, choices: Vec<CompletionChoice>, usage: Option<Option<Usage>>) -> CompletionResponse {
        let (id, model) = (self.id.clone(), self.model.clone());
        CompletionResponse { id, object: "text_completion", created: self.created, model, choices, usage }
    }

    fn whole(&self, mut answers: Vec<Answer>) -> CompletionResponse {
        for answer in answers.iter_mut().filter(|_| self.only_echo) {
            answer.content.clear();
            answer.logprobs.clear();
            answer.ending = self.ending(answer.ending.clone());
        }
        let usage = Usage::of(&answers, self.n);
        let choices = answers.into_iter().enumerate().map(|(index, answer)| CompletionChoice {
            text: format!("{}{}", self.echo(index), answer.content),
            index,
            logprobs: self.logprobs(index, &answer.prompt, &answer.logprobs),
            finish_reason: Some(finish_reason(&answer.ending.reason)),
        });
        self.response(choices.collect(), Some(Some(usage)))
    }
}

struct Encoder {
    head: Head,
    count: usize,
    with_usage: bool,
    usage: Usage,
}

impl Encoder {
    fn write(&self, choice: CompletionChoice, out: &mut Vec<u8>) {
        sse_data(&self.head.response(vec![choice], self.with_usage.then_some(None)), out);
    }
}

impl Encode for Encoder {
    /// What is echoed comes first, or with the log-probabilities of the prompt.
    fn start(&mut self, out: &mut Vec<u8>) {
        for index in 0..self.count {
            let text = self.head.echo(index).to_owned();
            if !text.is_empty() && !self.head.with_logprobs {
                self.write(CompletionChoice { text, index, logprobs: None, finish_reason: None }, out);
            }
        }
    }

    fn output(&mut self, index: usize, output: Output, out: &mut Vec<u8>) {
        let choice = match output {
            Output::Piece(piece) if piece.prompt.is_empty() && self.head.only_echo => return,
            Output::Piece(piece) => {
                let logprobs = self.head.logprobs(index, &piece.prompt, &piece.logprobs);
                let echo = if piece.prompt.is_empty() { "" } else { self.head.echo(index) };
                let text = format!("{echo}{}", piece.content);
                CompletionChoice { text, index, logprobs, finish_reason: None }
            }
            Output::End(ending) => {
                let ending = self.head.ending(ending);
                self.usage.add(ending.usage, index.is_multiple_of(self.head.n));
                let finish_reason = Some(finish_reason(&ending.reason));
                CompletionChoice { text: String::new(), index, logprobs: None, finish_reason }
            }
        };
        self.write(choice, out);
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        sse_error(error, out);
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.with_usage {
            sse_data(&self.head.response(Vec::new(), Some(Some(self.usage))), out);
        }
        sse_done(out);
    }
}
