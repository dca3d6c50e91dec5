//! A flag that another thread sets and a task awaits.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

/// A future that is ready once [`Setter::set`] was called, or the setter was dropped.
#[derive(Debug)]
pub(crate) struct Signal(Arc<Mutex<State>>);

/// Sets a signal; dropping it does, too, so that nobody waits for ever.
#[derive(Debug)]
pub(crate) struct Setter(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    set: bool,
    waker: Option<Waker>,
}

/// A signal and what sets it.
pub(crate) fn signal() -> (Setter, Signal) {
    let state = Arc::new(Mutex::new(State::default()));
    (Setter(Arc::clone(&state)), Signal(state))
}

impl Setter {
    /// Wakes the task.
    pub(crate) fn set(self) {}
}

impl Drop for Setter {
    fn drop(&mut self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.set = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Future for Signal {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.set {
            return Poll::Ready(());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::signal;

    #[test]
    fn a_signal_ends_when_it_is_set_or_when_nobody_can_set_it() {
        let (setter, set) = signal();
        std::thread::spawn(|| setter.set());
        pollster::block_on(set);
        let (setter, dropped) = signal();
        drop(setter);
        pollster::block_on(dropped);
    }
}
