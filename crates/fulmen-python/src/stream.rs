//! Text that is being generated: a thread runs the model, Python takes the pieces.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// A piece of text.
#[derive(Debug)]
pub(crate) struct Piece {
    /// The number of its answer.
    pub(crate) index: usize,
    pub(crate) text: String,
    /// Those of its tokens, if they are wanted.
    pub(crate) logprobs: Vec<Logprob>,
}

/// What a running generation tells.
pub(crate) enum Event {
    Pieces(Vec<Piece>),
    /// All answers, in the order of their prompts; an error ends everything.
    Done(Result<Vec<Answer>, Failure>),
}

/// Where a generation sends its pieces. Those that are there at the same time go together: each event wakes
/// the thread that waits for it, which may take a core from the model.
pub(crate) struct Pieces {
    events: Sender<Event>,
    ready: Vec<Piece>,
}

impl Pieces {
    fn new(events: Sender<Event>) -> Pieces {
        Pieces { events, ready: Vec::new() }
    }

    /// Keeps a piece for [`send`](Pieces::send).
    pub(crate) fn push(&mut self, index: usize, text: String, logprobs: Vec<Logprob>) {
        self.ready.push(Piece { index, text, logprobs });
    }

    /// Passes the pieces on. False if nobody wants them any more.
    pub(crate) fn send(&mut self) -> bool {
        self.ready.is_empty() || self.events.send(Event::Pieces(std::mem::take(&mut self.ready))).is_ok()
    }
}

/// What was received and not yet asked for.
#[derive(Default)]
struct Received {
    pieces: VecDeque<Piece>,
    done: Option<Result<Vec<Answer>, Failure>>,
    /// The log-probabilities of the piece that was taken last.
    logprobs: Vec<Logprob>,
}

/// What [`Stream::next`] gives without waiting.
enum Next {
    Piece(usize, String),
    End,
    Nothing,
}

struct Inner {
    events: Mutex<Receiver<Event>>,
    received: Mutex<Received>,
}

impl Inner {
    fn received(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Next {
        let mut received = self.received();
        match received.pieces.pop_front() {
            Some(Piece { index, text, logprobs }) => {
                received.logprobs = logprobs;
                Next::Piece(index, text)
            }
            None if received.done.is_some() => Next::End,
            None => Next::Nothing,
        }
    }

    /// Waits for an event up to `timeout`. False if none came.
    fn receive(&self, timeout: Duration) -> Result<bool, Failure> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        {
            // Another thread may have received while this one waited for the lock.
            let received = self.received();
            if received.done.is_some() || !received.pieces.is_empty() {
                return Ok(true);
            }
        }
        match events.recv_timeout(timeout) {
            Ok(event) => self.keep(event).map(|()| true),
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Failure::new(Kind::Internal, "the generation ended without a result"))
            }
        }
    }

    /// Takes the event that is there, if no other thread waits for one.
    fn receive_now(&self) -> Result<bool, Failure> {
        let Ok(events) = self.events.try_lock() else { return Ok(false) };
        events.try_recv().map_or(Ok(false), |event| self.keep(event).map(|()| true))
    }

    fn keep(&self, event: Event) -> Result<(), Failure> {
        match event {
            Event::Pieces(pieces) => self.received().pieces.extend(pieces),
            Event::Done(done) => {
                let failure = done.as_ref().err().cloned();
                self.received().done = Some(done);
                return failure.map_or(Ok(()), Err);
            }
        }
        Ok(())
    }
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
        work: impl FnOnce(&mut Pieces, &Cancel) -> Result<Vec<Answer>, Failure> + Send + 'static,
    ) -> Result<Stream, Failure> {
        let (sender, events) = channel();
        let cancel = Cancel::of(token);
        let own = Arc::clone(&cancel);
        spawn(&cancel, move || {
            let mut pieces = Pieces::new(sender);
            let done = guarded(|| work(&mut pieces, &own));
            pieces.send();
            let _ = pieces.events.send(Event::Done(done));
        })?;
        let inner = Inner { events: Mutex::new(events), received: Mutex::default() };
        Ok(Stream { inner: OfProcess::new(inner), cancel })
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
            match inner.next() {
                Next::Piece(index, text) => return Ok(Some((index, text))),
                Next::End => return Ok(None),
                Next::Nothing => {}
            }
            // What is there already is taken with the GIL: where other threads want it, it would not be
            // back soon.
            if inner.receive_now()? {
                continue;
            }
            let left = limit.map(|limit| limit.saturating_duration_since(Instant::now()));
            let wait = left.map_or(POLL, |left| left.min(POLL));
            if !py.detach(|| inner.receive(wait))? {
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
        Ok(tuples(std::mem::take(&mut self.inner.get()?.received().logprobs)))
    }

    /// Asks it to end. What was generated until then is the result.
    fn cancel(&self) {
        self.cancel.request();
    }

    /// The answers, once it has ended.
    fn results<'py>(&self, py: Python<'py>) -> PyResult<Option<Vec<Bound<'py, PyDict>>>> {
        // A copy, so that nothing is locked while Python makes objects: that may run other code.
        let done = self.inner.get()?.received().done.clone();
        match &done {
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
