//! Generating text: one prompt in a session, many prompts in the engine.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use fulmen::constraint::Grammar;
use fulmen::engine::{RequestError, TextEvent, TextFinish, TextRequest, TextStream};
use fulmen::model::FinishReason;
use fulmen::model::template::AnswerParser;
use fulmen::prelude::{GenerateOptions, Session};

use crate::cancel::Cancel;
use crate::failure::{Failure, Kind};
use crate::loaded::Loaded;
use crate::stream::{Answer, Logprob, Pieces};

/// Requests that wait in the engine at the same time; the others follow.
pub(crate) const OUTSTANDING: usize = 1024;

/// Runs `work` in a session of the model. The session is kept for the next call, unless the work failed.
pub(crate) fn in_session<T>(
    loaded: &Loaded,
    cancel: &Cancel,
    work: impl FnOnce(&mut Session) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut session = loaded.session()?;
    cancel.attach(session.cancel_flag());
    let done = work(&mut session);
    cancel.release();
    if done.is_ok() {
        loaded.put_back(session);
    }
    done
}

/// How prompts are continued.
#[derive(Clone)]
pub(crate) struct Task {
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) options: GenerateOptions,
    pub(crate) grammar: Option<Grammar>,
    pub(crate) logprobs: Option<u8>,
    /// Reads the answer to end it behind its first complete call of a tool.
    pub(crate) first_call: Option<AnswerParser>,
}

/// Whether a piece completes the first call of a tool.
fn completes(first_call: &mut Option<AnswerParser>, piece: &str) -> bool {
    first_call.as_mut().is_some_and(|parser| {
        parser.push(piece);
        parser.calls() > 0
    })
}

/// Continues one prompt. With `reuse`, tokens at the beginning that are in the KV cache already are not run
/// again; without, the result does not depend on earlier calls in the last bit, either.
pub(crate) fn one(
    task: &Task,
    prompt: &[u32],
    reuse: bool,
    mut pieces: Option<&mut Pieces>,
    cancel: &Cancel,
) -> Result<Answer, Failure> {
    let Task { loaded, options, grammar, .. } = task;
    let mut first_call = task.first_call.clone();
    let constraint = grammar.as_ref().map(|grammar| loaded.constraint(grammar)).transpose()?;
    in_session(loaded, cancel, |session| {
        if !reuse {
            session.truncate(0, 0)?;
        }
        let mut generation = session.generate_from(prompt, options)?;
        if let Some(constraint) = constraint {
            generation = generation.constrained(constraint);
        }
        let mut called = false;
        while !called {
            let mut piece = generation.drawn_piece()?;
            if piece.is_none() {
                if pieces.as_mut().is_some_and(|pieces| !pieces.send()) {
                    cancel.request();
                }
                piece = generation.next_piece()?;
            }
            let Some(piece) = piece else { break };
            called = completes(&mut first_call, &piece);
            if let Some(pieces) = &mut pieces {
                pieces.push(0, piece, Vec::new());
            }
        }
        let generated = generation.generated().clone();
        let (finish, stop) = match generated.reason {
            _ if called => ("stop", None),
            FinishReason::EndToken(_) | FinishReason::Complete => ("stop", None),
            FinishReason::StopString(stop) => ("stop", Some(stop)),
            FinishReason::MaxTokens | FinishReason::ContextFull => ("length", None),
            FinishReason::Cancelled => ("cancelled", None),
        };
        Ok(Answer {
            text: generated.text,
            tokens: generated.tokens,
            finish,
            stop,
            prompt_tokens: generated.prompt_tokens,
            cached_tokens: generated.prompt_tokens.saturating_sub(generated.fed_tokens),
            prefill: generated.prefill_time,
            decode: generated.decode_time,
            logprobs: Vec::new(),
        })
    })
}

/// Wakes a thread.
pub(crate) struct Unpark(pub(crate) Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A request in the engine and what it gave so far.
struct Running {
    index: usize,
    stream: TextStream,
    answer: Answer,
    began: Instant,
    first: Option<Instant>,
    first_call: Option<AnswerParser>,
    /// Log-probabilities in the answer that belong to pieces which were passed on.
    told: usize,
}

impl Running {
    /// The log-probabilities since the last piece.
    fn untold(&mut self) -> Vec<Logprob> {
        let told = std::mem::replace(&mut self.told, self.answer.logprobs.len());
        self.answer.logprobs[told..].to_vec()
    }

    /// Takes an event and returns its piece; the flag says that it was the last one.
    fn take(&mut self, event: TextEvent) -> Result<(String, bool), Failure> {
        match event {
            TextEvent::Piece { text, token } => {
                let first = *self.first.get_or_insert_with(Instant::now);
                self.answer.prefill = first - self.began;
                self.answer.decode = first.elapsed();
                self.answer.text += &text;
                self.answer.tokens.push(token.token);
                if let Some(logprob) = token.logprob {
                    self.answer.logprobs.push(Logprob { token: token.token, logprob, top: token.top });
                }
                let called = completes(&mut self.first_call, &text);
                if called {
                    self.stream.cancel();
                    self.answer.finish = "stop";
                }
                Ok((text, called))
            }
            TextEvent::Prompt(_) => Ok((String::new(), false)),
            TextEvent::Finished { text, reason, usage } => {
                self.answer.text += &text;
                self.answer.prompt_tokens = usage.prompt_tokens;
                self.answer.cached_tokens = usage.cached_tokens;
                (self.answer.finish, self.answer.stop) = match reason {
                    TextFinish::EndToken(_) => ("stop", None),
                    TextFinish::StopString(stop) => ("stop", Some(stop)),
                    TextFinish::MaxTokens | TextFinish::ContextFull => ("length", None),
                };
                Ok((text, true))
            }
            TextEvent::Failed(RequestError::Cancelled) => {
                self.answer.finish = "cancelled";
                Ok((String::new(), true))
            }
            TextEvent::Failed(error) => {
                let Failure { kind, message } = error.into();
                Err(Failure::new(kind, format!("prompt {}: {message}", self.index)))
            }
        }
    }
}

/// Continues many prompts together. The sampling of each is the same, with a seed of its own.
pub(crate) fn many(
    task: &Task,
    prompts: Vec<Vec<u32>>,
    mut pieces: Option<&mut Pieces>,
    cancel: &Cancel,
) -> Result<Vec<Answer>, Failure> {
    let Task { loaded, options, grammar, logprobs, first_call } = task;
    let engine = loaded.engine()?;
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut answers = vec![Answer::default(); prompts.len()];
    let mut waiting = prompts.into_iter().enumerate();
    let mut running: Vec<Running> = Vec::new();
    loop {
        while running.len() < OUTSTANDING && !cancel.requested() {
            let Some((index, prompt)) = waiting.next() else { break };
            let constraint = grammar.as_ref().map(|grammar| loaded.constraint(grammar)).transpose()?;
            let mut sampling = options.sampling;
            sampling.seed = sampling.seed.wrapping_add(index as u64);
            let answer = Answer { prompt_tokens: prompt.len(), ..Answer::default() };
            let request = TextRequest {
                sampling,
                max_tokens: u32::try_from(options.max_tokens).unwrap_or(u32::MAX),
                stop: options.stop.clone(),
                stop_at_end: options.stop_at_end,
                shown: options.shown.clone(),
                logprobs: *logprobs,
                constraint,
                ..TextRequest::new(prompt)
            };
            let stream = engine.submit(request)?;
            let (began, first_call) = (Instant::now(), first_call.clone());
            running.push(Running { index, stream, answer, began, first: None, first_call, told: 0 });
        }
        if running.is_empty() {
            // Prompts that were not begun when the work was cancelled.
            waiting.for_each(|(index, prompt)| {
                answers[index].finish = "cancelled";
                answers[index].prompt_tokens = prompt.len();
            });
            return Ok(answers);
        }
        if cancel.requested() {
            running.iter().for_each(|request| request.stream.cancel());
        }
        let before = running.len();
        let moved = advance(&mut running, &mut answers, &mut context, pieces.as_deref_mut())?;
        if pieces.as_mut().is_some_and(|pieces| !pieces.send()) {
            cancel.request();
        }
        if !moved && running.len() == before {
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

/// Takes all events that are there, and moves the answers of requests that have ended. Returns whether there
/// was any event.
fn advance(
    running: &mut Vec<Running>,
    answers: &mut [Answer],
    context: &mut Context<'_>,
    mut pieces: Option<&mut Pieces>,
) -> Result<bool, Failure> {
    let (mut moved, mut at) = (false, 0);
    while at < running.len() {
        let request = &mut running[at];
        let last = loop {
            let Poll::Ready(event) = request.stream.poll_event(context) else { break false };
            let Some(event) = event else {
                let message = format!("prompt {}: the engine ended without a result", request.index);
                return Err(Failure::new(Kind::Internal, message));
            };
            moved = true;
            let (piece, last) = request.take(event)?;
            if let Some(pieces) = pieces.as_mut().filter(|_| !piece.is_empty()) {
                pieces.push(request.index, piece, request.untold());
            }
            if last {
                break true;
            }
        };
        if last {
            let ended = running.swap_remove(at);
            answers[ended.index] = ended.answer;
        } else {
            at += 1;
        }
    }
    Ok(moved)
}
