//! The texts of one request: `n` choices, or an answer for each of several prompts.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fulmen_engine::generation::StopFinder;
use fulmen_engine::{Constraint, Request, Stop};
use fulmen_model::template::ToolCall;

use super::choice::{Choice, EndReason, Ending, Output, Piece, Reading, TokenLogprob, TokenUsage};
use super::params::GenerationParams;
use super::prompt::Prompt;
use crate::app::Caller;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::registry::Lease;

/// How long a stream waits for its first token before it answers with status 200: a request that is refused
/// at once gets the status of its error.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<ToolCall>,
    pub(crate) logprobs: Vec<TokenLogprob>,
    /// All tokens of the prompt, if their log-probabilities are wanted.
    pub(crate) prompt: Vec<TokenLogprob>,
    pub(crate) ending: Ending,
}

/// The texts of one request, generated at the same time.
pub(crate) struct Choices {
    choices: Vec<Option<Choice>>,
    /// Outputs that were taken before a stream began.
    early: VecDeque<(usize, Output)>,
    /// The choice that is looked at first, so that all get their turn.
    turn: usize,
}

impl Choices {
    /// Submits a request for each choice of each prompt.
    pub(crate) async fn start(
        lease: Lease,
        prompts: &[Prompt],
        params: &GenerationParams,
        caller: &Caller,
        metrics: &Arc<Metrics>,
    ) -> Result<Choices, ApiError> {
        let count = prompts.len() * params.n as usize;
        let mut constraints = constraints(&lease, params, count).await?.into_iter();
        let lease = Arc::new(lease);
        caller.figures.set_model(&lease.spec().name);
        let mut choices = Vec::with_capacity(count);
        for prompt in prompts {
            for number in 0..params.n {
                let constraint = constraints.next();
                let request = Request { constraint, ..request(&lease, prompt, params, number, caller)? };
                let reading = Reading {
                    stops: StopFinder::new(&params.stop)
                        .map_err(|error| ApiError::field("stop", error.to_string()))?,
                    parser: prompt.parser.clone(),
                    one_call: prompt.one_call,
                    wants_logprobs: params.logprobs.is_some(),
                    scores_prompt: params.logprobs.is_some() && params.prompt_logprobs,
                    ignore_eos: params.ignore_eos,
                    prompt_tokens: prompt.tokens.len(),
                    figures: Arc::clone(&caller.figures),
                    log: caller.log.as_ref().map(|log| log.answer(&lease, &prompt.tokens)),
                };
                let handle = lease.submit(request);
                choices.push(Some(Choice::new(handle, Arc::clone(&lease), Arc::clone(metrics), reading)));
            }
        }
        Ok(Choices { choices, early: VecDeque::new(), turn: 0 })
    }

    /// The number of choices.
    pub(crate) fn len(&self) -> usize {
        self.choices.len()
    }

    /// The next output of any choice, with the number of the choice; `None` after all have ended.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<(usize, Output), ApiError>>> {
        if let Some(output) = self.early.pop_front() {
            return Poll::Ready(Some(Ok(output)));
        }
        let count = self.choices.len();
        let mut open = false;
        for offset in 0..count {
            let index = (self.turn + offset) % count;
            let Some(choice) = &mut self.choices[index] else { continue };
            match choice.poll(context) {
                Poll::Pending => open = true,
                Poll::Ready(None) => self.choices[index] = None,
                Poll::Ready(Some(Ok(output))) => {
                    self.turn = (index + 1) % count;
                    return Poll::Ready(Some(Ok((index, output))));
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
            }
        }
        if open { Poll::Pending } else { Poll::Ready(None) }
    }

    async fn next(&mut self) -> Option<Result<(usize, Output), ApiError>> {
        poll_fn(|context| self.poll(context)).await
    }

    /// Waits a little for the first output, so that what is refused at once is an error and not a stream.
    pub(crate) async fn first(&mut self) -> Result<(), ApiError> {
        if let Ok(Some(output)) = tokio::time::timeout(FIRST_WAIT, self.next()).await {
            self.early.push_back(output?);
        }
        Ok(())
    }

    /// Waits for all answers.
    pub(crate) async fn collect(mut self) -> Result<Vec<Answer>, ApiError> {
        let mut pieces: Vec<Piece> = vec![Piece::default(); self.len()];
        let mut endings: Vec<Option<Ending>> = vec![None; self.len()];
        while let Some(output) = self.next().await {
            match output? {
                (index, Output::Piece(piece)) => {
                    let all = &mut pieces[index];
                    all.reasoning.push_str(&piece.reasoning);
                    all.content.push_str(&piece.content);
                    all.calls.extend(piece.calls);
                    all.logprobs.extend(piece.logprobs);
                    all.prompt.extend(piece.prompt);
                }
                (index, Output::End(ending)) => endings[index] = Some(ending),
            }
        }
        let ended = |(piece, ending): (Piece, Option<Ending>)| {
            let Piece { reasoning, content, calls, logprobs, prompt, .. } = piece;
            let ending = ending.ok_or_else(|| ApiError::internal("an answer has no end"))?;
            Ok(Answer { reasoning, content, calls, logprobs, prompt, ending })
        };
        pieces.into_iter().zip(endings).map(ended).collect()
    }
}

impl Answer {
    /// An answer without a generated token.
    pub(crate) fn empty(prompt_tokens: usize) -> Answer {
        let usage = TokenUsage { prompt: prompt_tokens, ..TokenUsage::default() };
        let (prefill, decode) = (Duration::ZERO, Duration::ZERO);
        Answer {
            reasoning: String::new(),
            content: String::new(),
            calls: Vec::new(),
            logprobs: Vec::new(),
            prompt: Vec::new(),
            ending: Ending { reason: EndReason::Length, usage, prefill, decode },
        }
    }
}

/// A constraint for each choice, if there is a grammar. A grammar may take long to compile.
async fn constraints(
    lease: &Lease,
    params: &GenerationParams,
    count: usize,
) -> Result<Vec<Box<dyn Constraint>>, ApiError> {
    let Some((param, grammar)) = params.grammar.clone() else { return Ok(Vec::new()) };
    let model = Arc::clone(lease.model());
    let compile = move || match model.constraints() {
        Some(factory) => (0..count).map(|_| factory.constraint(&grammar)).collect(),
        None => Err("this model has no constrained decoding".to_owned()),
    };
    let compiled: Result<Result<_, String>, _> = tokio::task::spawn_blocking(compile).await;
    let compiled = compiled.map_err(|error| ApiError::internal(format!("the grammar failed: {error}")))?;
    compiled.map_err(|reason| ApiError::field(param, format!("{param}: {reason}")))
}

/// The engine's request for a choice.
fn request(
    lease: &Lease,
    prompt: &Prompt,
    params: &GenerationParams,
    number: u32,
    caller: &Caller,
) -> Result<Request, ApiError> {
    let room = prompt.room(lease.context())?;
    let mut sampling = params.sampling;
    sampling.seed = sampling.seed.wrapping_add(u64::from(number));
    let sampling = lease
        .sampling(&sampling, &params.logit_bias)
        .map_err(|reason| ApiError::invalid(reason).code("unsupported_parameter"))?;
    let ends = if params.ignore_eos { Vec::new() } else { lease.tokenizer().ends().to_vec() };
    Ok(Request {
        timeout: Some(caller.timeout),
        tenant: Arc::clone(&caller.tenant),
        sampling,
        logprobs: params.logprobs,
        prompt_logprobs: params.logprobs.filter(|_| params.prompt_logprobs),
        stop: Stop { tokens: ends, sequences: Vec::new() },
        ..Request::new(prompt.tokens.clone(), params.max_tokens.unwrap_or(room).min(room))
    })
}
