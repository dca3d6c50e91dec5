//! A driver in a thread of its own, for callers in any thread.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::driver::{Driver, Progress, StepDevice};
use crate::error::{EngineError, RequestError};
use crate::events::{EventReceiver, EventSender, event_queue};
use crate::request::{Event, Request, RequestId};
use crate::scheduler::{SchedulerConfig, Stats};

/// A device that can be moved to the driver thread.
pub type AnyDevice = Box<dyn StepDevice + Send>;

/// Tokens that a consumer may leave unread, unless [`Engine::with_event_capacity`] says otherwise.
pub const EVENT_CAPACITY: usize = 16 * 1024;

/// What happens to unfinished requests at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// They are finished first. New ones are refused.
    Drain,
    /// They end with [`RequestError::ShuttingDown`].
    Cancel,
}

/// The caller's name for a request, before the scheduler has given it a number.
type Key = u64;

enum Command {
    Submit(Key, Request, EventSender),
    Cancel(Key),
    Reopen(AnyDevice, Sender<Result<(), EngineError>>),
    Shutdown(Shutdown),
}

/// Runs the requests of many callers on one device.
///
/// ```
/// use fulmen_engine::mock::MockDevice;
/// use fulmen_engine::{Engine, Event, Request, SchedulerConfig, Shutdown};
///
/// let config = SchedulerConfig::new(1000, 4096, 64);
/// let device = MockDevice::new(&config);
/// let engine = Engine::start(config, Box::new(device))?;
/// let first = engine.submit(Request::new(vec![1, 2, 3], 10));
/// let second = engine.submit(Request::new(vec![1, 2, 4], 10));
/// for request in [first, second] {
///     let tokens = request.filter(|event| matches!(event, Event::Token(_))).count();
///     assert_eq!(tokens, 10);
/// }
/// let stats = engine.shutdown(Shutdown::Drain)?;
/// assert_eq!(stats.finished, 2);
/// # Ok::<(), fulmen_engine::EngineError>(())
/// ```
pub struct Engine {
    commands: Sender<Command>,
    stats: Arc<Mutex<Stats>>,
    next_key: AtomicU64,
    event_capacity: usize,
    thread: Option<JoinHandle<Result<(), EngineError>>>,
}

impl Engine {
    /// Starts the driver thread.
    pub fn start(config: SchedulerConfig, device: AnyDevice) -> Result<Engine, EngineError> {
        let driver = Driver::new(config, device)?;
        let (commands, receiver) = channel();
        let stats = Arc::new(Mutex::new(driver.scheduler().stats()));
        let worker = Worker {
            driver,
            commands: receiver,
            stats: Arc::clone(&stats),
            clock: Instant::now(),
            routes: HashMap::new(),
            ids: HashMap::new(),
            ending: None,
        };
        let thread = std::thread::Builder::new().name("fulmen-engine".to_owned()).spawn(|| worker.run())?;
        let next_key = AtomicU64::new(0);
        Ok(Engine { commands, stats, next_key, event_capacity: EVENT_CAPACITY, thread: Some(thread) })
    }

    /// Sets how many tokens of a request may be unread. A consumer that leaves more unread is too slow, and
    /// its request ends with [`RequestError::ConsumerTooSlow`]: the engine waits for nobody.
    pub fn with_event_capacity(mut self, tokens: usize) -> Engine {
        self.event_capacity = tokens.max(1);
        self
    }

    /// Queues a request. Where it is refused, the only event is the error.
    pub fn submit(&self, request: Request) -> RequestHandle {
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = event_queue(self.event_capacity);
        // If the thread has ended, the sender is dropped, which leaves an error in the queue.
        let _ = self.commands.send(Command::Submit(key, request, sender));
        RequestHandle { key, events, commands: self.commands.clone() }
    }

    /// The statistics after the newest step.
    pub fn stats(&self) -> Stats {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Goes on with another device after one was lost. Blocks until the driver thread has it.
    pub fn reopen(&self, device: AnyDevice) -> Result<(), EngineError> {
        let (reply, answer) = channel();
        self.commands.send(Command::Reopen(device, reply)).map_err(|_| EngineError::Stopped)?;
        answer.recv().map_err(|_| EngineError::Stopped)?
    }

    /// Ends the engine and returns its statistics. An error if a page, a slot or a request was not given
    /// back.
    pub fn shutdown(mut self, how: Shutdown) -> Result<Stats, EngineError> {
        self.stop(how)?;
        Ok(self.stats())
    }

    fn stop(&mut self, how: Shutdown) -> Result<(), EngineError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let _ = self.commands.send(Command::Shutdown(how));
        thread.join().unwrap_or(Err(EngineError::Stopped))
    }
}

impl Drop for Engine {
    /// Cancels what has not finished.
    fn drop(&mut self) {
        let _ = self.stop(Shutdown::Cancel);
    }
}

/// The events of a request, in order. Dropping it cancels the request.
///
/// It is a blocking iterator; [`event`](RequestHandle::event) and [`poll_event`](RequestHandle::poll_event)
/// are for asynchronous callers.
pub struct RequestHandle {
    key: Key,
    events: EventReceiver,
    commands: Sender<Command>,
}

impl RequestHandle {
    /// How many tokens of the prompt came from the prefix cache; known when the first token is there.
    pub fn cached_tokens(&self) -> Option<usize> {
        self.events.cached_tokens()
    }

    /// Waits for the next event up to `timeout`; `None` after the last one, or if none came.
    pub fn next_timeout(&mut self, timeout: Duration) -> Option<Event> {
        self.events.recv(Some(timeout))
    }

    /// The next event; `None` after the last one.
    pub async fn event(&mut self) -> Option<Event> {
        std::future::poll_fn(|context| self.poll_event(context)).await
    }

    /// The next event if there is one. Otherwise the task is woken when there is.
    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll(context)
    }

    /// Ends the request; its last event follows.
    pub fn cancel(&self) {
        let _ = self.commands.send(Command::Cancel(self.key));
    }
}

impl Iterator for RequestHandle {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.events.recv(None)
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        if !self.events.has_ended() {
            self.cancel();
        }
    }
}

/// Where the events of a request go.
struct Route {
    key: Key,
    events: EventSender,
    /// Whether the consumer was told how many tokens were cached.
    told_cached: bool,
}

/// The driver thread.
struct Worker {
    driver: Driver<AnyDevice>,
    commands: Receiver<Command>,
    stats: Arc<Mutex<Stats>>,
    clock: Instant,
    routes: HashMap<RequestId, Route>,
    ids: HashMap<Key, RequestId>,
    ending: Option<Shutdown>,
}

impl Worker {
    fn run(mut self) -> Result<(), EngineError> {
        loop {
            let progress = self.driver.step(self.clock.elapsed());
            if progress == Progress::Lost {
                // Who learns it from a request finds it here as well.
                self.publish();
            }
            self.deliver();
            self.publish();
            let idle = progress != Progress::Busy;
            if idle && self.ending.is_some() {
                break;
            }
            // An idle device prepares for requests to come, a part at a time.
            let wait = idle && !self.driver.warm_up();
            self.take_commands(wait);
        }
        self.driver.settle();
        self.driver.scheduler().counted_back()?;
        Ok(())
    }

    /// Takes the commands that are there; waits for one if there is nothing else to do.
    fn take_commands(&mut self, mut wait: bool) {
        loop {
            let command = match wait {
                true => self.commands.recv().map_err(|_| TryRecvError::Disconnected),
                false => self.commands.try_recv(),
            };
            wait = false;
            match command {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => return,
                // The engine and all handles are gone.
                Err(TryRecvError::Disconnected) => return self.obey(Command::Shutdown(Shutdown::Cancel)),
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(key, request, events) => self.submit(key, request, events),
            Command::Cancel(key) => {
                if let Some(&id) = self.ids.get(&key) {
                    self.driver.cancel(id);
                }
            }
            Command::Reopen(device, reply) => {
                let reopened = self.driver.reopen(device).map_err(|_| EngineError::StillOpen);
                let _ = reply.send(reopened);
            }
            Command::Shutdown(how) => {
                self.ending = Some(how);
                if how == Shutdown::Cancel {
                    self.driver.scheduler_mut().fail_all(&RequestError::ShuttingDown);
                }
            }
        }
    }

    fn submit(&mut self, key: Key, request: Request, events: EventSender) {
        let submitted = match self.ending {
            Some(_) => Err(RequestError::ShuttingDown),
            None => self.driver.submit(request, self.clock.elapsed()),
        };
        match submitted {
            Ok(id) => {
                self.ids.insert(key, id);
                self.routes.insert(id, Route { key, events, told_cached: false });
            }
            Err(error) => drop(events.send(Event::Failed(error))),
        }
    }

    /// Passes events on to their consumers, without waiting for any.
    fn deliver(&mut self) {
        // Requests whose consumers are too slow end here, which makes events of its own.
        loop {
            let events = self.driver.take_events();
            if events.is_empty() {
                return;
            }
            self.tell_cached(&events);
            for (id, event) in events {
                self.deliver_one(id, event);
            }
        }
    }

    /// Tells consumers how many tokens were cached, before they get their first token.
    fn tell_cached(&mut self, events: &[(RequestId, Event)]) {
        for (id, event) in events {
            let Some(route) = self.routes.get_mut(id).filter(|route| !route.told_cached) else { continue };
            let tokens = match event {
                Event::Prompt(_) | Event::Token(_) => self.driver.scheduler().cached_tokens(*id),
                Event::Finished { usage, .. } => Some(usage.cached_tokens),
                Event::Failed(_) => None,
            };
            if let Some(tokens) = tokens {
                route.events.set_cached_tokens(tokens);
                route.told_cached = true;
            }
        }
    }

    fn deliver_one(&mut self, id: RequestId, event: Event) {
        let Some(Route { key, events, .. }) = self.routes.get(&id) else { return };
        let (key, last) = (*key, event.is_last());
        if let Err(buffered) = events.send(event) {
            self.driver.fail(id, RequestError::ConsumerTooSlow { buffered });
        }
        if last {
            self.routes.remove(&id);
            self.ids.remove(&key);
        }
    }

    fn publish(&self) {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = self.driver.scheduler().stats();
    }
}
