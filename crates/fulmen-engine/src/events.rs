//! The queue of events between the driver thread and the consumer of a request.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::error::RequestError;
use crate::request::Event;

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    /// Whether the last event was added.
    ended: bool,
    /// Tokens of the prompt that came from the prefix cache; known from the first token on.
    cached_tokens: Option<usize>,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    added: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock is left half-changed by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The driver's end: it never waits.
pub(crate) struct EventSender {
    queue: Arc<Queue>,
    capacity: usize,
}

/// The consumer's end.
pub(crate) struct EventReceiver(Arc<Queue>);

/// A queue for `capacity` tokens. The last event always fits.
pub(crate) fn event_queue(capacity: usize) -> (EventSender, EventReceiver) {
    let queue = Arc::new(Queue::default());
    (EventSender { queue: Arc::clone(&queue), capacity }, EventReceiver(queue))
}

impl EventSender {
    /// Sets how many tokens of the prompt came from the prefix cache.
    pub(crate) fn set_cached_tokens(&self, tokens: usize) {
        self.queue.lock().cached_tokens = Some(tokens);
    }

    /// Adds an event. `Err` with the number of unread events if the queue is full.
    pub(crate) fn send(&self, event: Event) -> Result<(), usize> {
        let mut state = self.queue.lock();
        if state.ended {
            return Ok(());
        }
        if state.events.len() >= self.capacity && !event.is_last() {
            return Err(state.events.len());
        }
        state.ended = event.is_last();
        state.events.push_back(event);
        let waker = state.waker.take();
        drop(state);
        self.queue.added.notify_one();
        if let Some(waker) = waker {
            // A waker is code of the consumer: its panic is not the driver's.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
        Ok(())
    }
}

impl Drop for EventSender {
    /// A consumer always sees a last event.
    fn drop(&mut self) {
        let _ = self.send(Event::Failed(RequestError::ShuttingDown));
    }
}

impl EventReceiver {
    /// The next event; `None` after the last one, or when `timeout` has passed.
    pub(crate) fn recv(&self, timeout: Option<Duration>) -> Option<Event> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.0.lock();
        loop {
            if let Some(event) = state.events.pop_front() {
                return Some(event);
            }
            if state.ended {
                return None;
            }
            state = match deadline {
                None => self.0.added.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    self.0.added.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let waker = context.waker().clone();
        let mut state = self.0.lock();
        if let Some(event) = state.events.pop_front() {
            return Poll::Ready(Some(event));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        let earlier = state.waker.replace(waker);
        drop(state);
        drop(earlier);
        Poll::Pending
    }

    /// How many tokens of the prompt came from the prefix cache, from the first token on.
    pub(crate) fn cached_tokens(&self) -> Option<usize> {
        self.0.lock().cached_tokens
    }

    /// Whether the last event was added, read or not.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.lock().ended
    }
}
