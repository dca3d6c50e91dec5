//! Text that is being generated: a thread runs the model, Python takes the pieces.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cancel::{Cancel, CancelToken};
use crate::failure::{Failure, Kind};
use crate::process::OfProcess;
use crate::worker::{guarded, spawn};

/// How often a waiting thread looks for signals.
const POLL: Duration = Duration::from_millis(50);

/// A token with its log-probabilities.
#[derive(Clone, Debug)]
pub(crate) struct Logprob {
    pub(crate) token: u32,
    pub(crate) logprob: f32,
    pub(crate) top: Vec<(u32, f32)>,
}

/// A text that was generated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
    /// `stop`, `length` or `cancelled`.
    pub(crate) finish: &'static str,
    /// The stop string that ended it.
    pub(crate) stop: Option<String>,
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) prefill: Duration,
    pub(crate) decode: Duration,
    pub(crate) logprobs: Vec<Logprob>,
}

impl Answer {
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("text", &self.text)?;
        dict.set_item("tokens", &self.tokens)?;
        dict.set_item("finish_reason", self.finish)?;
        dict.set_item("stop", &self.stop)?;
        dict.set_item("prompt_tokens", self.prompt_tokens)?;
        dict.set_item("cached_tokens", self.cached_tokens)?;
        dict.set_item("prefill_seconds", self.prefill.as_secs_f64())?;
        dict.set_item("decode_seconds", self.decode.as_secs_f64())?;
        dict.set_item("logprobs", tuples(self.logprobs.clone()))?;
        Ok(dict)
    }
}

/// Log-probabilities as Python has them.
type LogprobTuples = Vec<(u32, f32, Vec<(u32, f32)>)>;

fn tuples(logprobs: Vec<Logprob>) -> LogprobTuples {
    logprobs.into_iter().map(|Logprob { token, logprob, top }| (token, logprob, top)).collect()
}

/// What a running generation tells.
pub(crate) enum Event {
    /// A piece of the text of the answer with this index, and the log-probabilities of its tokens, if they
    /// are wanted.
    Piece(usize, String, Vec<Logprob>),
    /// All answers, in the order of their prompts; an error ends everything.
    Done(Result<Vec<Answer>, Failure>),
}

/// Where a generation sends its pieces.
pub(crate) struct Pieces(Sender<Event>);

impl Pieces {
    /// Passes a piece on. False if nobody wants it any more.
    pub(crate) fn send(&self, index: usize, piece: String, logprobs: Vec<Logprob>) -> bool {
        self.0.send(Event::Piece(index, piece, logprobs)).is_ok()
    }
}

struct Inner {
    events: Mutex<Receiver<Event>>,
    done: Mutex<Option<Result<Vec<Answer>, Failure>>>,
    /// The log-probabilities of the last piece.
    logprobs: Mutex<Vec<Logprob>>,
}

/// Generation in progress. Dropping it cancels it.
#[pyclass(frozen, module = "fulmen._fulmen")]
pub(crate) struct Stream {
    inner: OfProcess<Inner>,
    cancel: Arc<Cancel>,
}

impl Stream {
    /// Starts work that generates text.
    pub(crate) fn start(
        token: Option<&CancelToken>,
        work: impl FnOnce(&Pieces, &Cancel) -> Result<Vec<Answer>, Failure> + Send + 'static,
    ) -> Result<Stream, Failure> {
        let (sender, events) = channel();
        let cancel = Cancel::of(token);
        let own = Arc::clone(&cancel);
        spawn(&cancel, move || {
            let pieces = Pieces(sender);
            let done = guarded(|| work(&pieces, &own));
            let _ = pieces.0.send(Event::Done(done));
        })?;
        let (events, done, logprobs) = (Mutex::new(events), Mutex::new(None), Mutex::default());
        Ok(Stream { inner: OfProcess::new(Inner { events, done, logprobs }), cancel })
    }

    /// Waits for the next event up to `timeout`.
    fn event(inner: &Inner, timeout: Duration) -> Result<Option<Event>, Failure> {
        let events = inner.events.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.done.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Ok(None);
        }
        match events.recv_timeout(timeout) {
            Ok(Event::Done(done)) => {
                let result = done.as_ref().map(|_| None).map_err(Clone::clone);
                *inner.done.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
                result
            }
            Ok(piece) => Ok(Some(piece)),
            // Nothing yet: an empty piece, which is never sent otherwise.
            Err(RecvTimeoutError::Timeout) => Ok(Some(Event::Piece(0, String::new(), Vec::new()))),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Failure::new(Kind::Internal, "the generation ended without a result"))
            }
        }
    }
}

#[pymethods]
impl Stream {
    /// The next piece and the index of its prompt; `None` at the end. An empty piece if none came within
    /// `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<(usize, String)>> {
        let inner = self.inner.get()?;
        let limit = timeout
            .filter(|seconds| *seconds < 1e9)
            .map(|seconds| Instant::now() + Duration::from_secs_f64(seconds.max(0.0)));
        loop {
            let left = limit.map(|limit| limit.saturating_duration_since(Instant::now()));
            let wait = left.map_or(POLL, |left| left.min(POLL));
            match py.detach(|| Stream::event(inner, wait))? {
                None => return Ok(None),
                Some(Event::Piece(index, piece, logprobs)) if !piece.is_empty() => {
                    *inner.logprobs.lock().unwrap_or_else(PoisonError::into_inner) = logprobs;
                    return Ok(Some((index, piece)));
                }
                Some(_) => {
                    if let Err(error) = py.check_signals() {
                        self.cancel.request();
                        return Err(error);
                    }
                    crate::logs::pass_on(py)?;
                    if left.is_some_and(|left| left <= POLL) {
                        return Ok(Some((0, String::new())));
                    }
                }
            }
        }
    }

    /// Waits for the end; `on_piece(index, piece)` gets the pieces that are left.
    #[pyo3(signature = (on_piece=None))]
    fn finish(&self, py: Python<'_>, on_piece: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        while let Some((index, piece)) = self.next(py, None)? {
            if let Some(on_piece) = &on_piece
                && let Err(error) = on_piece.call1((index, piece))
            {
                self.cancel.request();
                return Err(error);
            }
        }
        Ok(())
    }

    /// The log-probabilities of the tokens of the piece that was taken last.
    fn logprobs(&self) -> PyResult<LogprobTuples> {
        let mut last = self.inner.get()?.logprobs.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(tuples(std::mem::take(&mut *last)))
    }

    /// Asks it to end. What was generated until then is the result.
    fn cancel(&self) {
        self.cancel.request();
    }

    /// The answers, once it has ended.
    fn results<'py>(&self, py: Python<'py>) -> PyResult<Option<Vec<Bound<'py, PyDict>>>> {
        let done = self.inner.get()?.done.lock().unwrap_or_else(PoisonError::into_inner);
        match &*done {
            Some(Ok(answers)) => {
                answers.iter().map(|answer| answer.to_dict(py)).collect::<PyResult<_>>().map(Some)
            }
            Some(Err(failure)) => Err(failure.clone().into()),
            None => Ok(None),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.cancel.request();
    }
}
