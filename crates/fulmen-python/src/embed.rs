//! Embeddings: one text in a session, many texts in the engine.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fulmen::engine::{Event, Pooling, Request, RequestHandle};

use crate::cancel::Cancel;
use crate::failure::{Failure, Kind};
use crate::generate::{OUTSTANDING, Unpark, in_session};
use crate::loaded::Loaded;

/// The embeddings of texts, pooled as the model's file says.
pub(crate) fn embed(loaded: &Loaded, texts: &[Vec<u32>], cancel: &Cancel) -> Result<Vec<Vec<f32>>, Failure> {
    let pooling = loaded.model.pooling()?;
    // The engine gives the state of the last token, and draws a token behind it. Other poolings and texts
    // that fill the context are of a session.
    let context = loaded.model.session_options().context as usize;
    let batched = |tokens: &Vec<u32>| pooling == Pooling::Last && texts.len() > 1 && tokens.len() < context;
    let mut rows = vec![Vec::new(); texts.len()];
    let (many, alone): (Vec<usize>, Vec<usize>) = (0..texts.len()).partition(|&at| batched(&texts[at]));
    if !many.is_empty() {
        in_engine(loaded, texts, many, &mut rows, cancel)?;
    }
    if !alone.is_empty() {
        in_session(loaded, cancel, |session| {
            for at in alone {
                session.truncate(0, 0)?;
                let row = session.embed(0, &texts[at], pooling).map_err(Failure::from);
                rows[at] = row.map_err(|error| if texts.len() > 1 { of_text(at, error) } else { error })?;
            }
            Ok(())
        })?;
    }
    Ok(rows)
}

fn of_text(at: usize, Failure { kind, message }: Failure) -> Failure {
    Failure::new(kind, format!("text {at}: {message}"))
}

/// Runs the texts of the given indices together, and stores the hidden states of their last tokens.
fn in_engine(
    loaded: &Loaded,
    texts: &[Vec<u32>],
    indices: Vec<usize>,
    rows: &mut [Vec<f32>],
    cancel: &Cancel,
) -> Result<(), Failure> {
    let engine = loaded.engine()?;
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut waiting = indices.into_iter();
    let mut running: Vec<(usize, RequestHandle)> = Vec::new();
    loop {
        cancel.check()?;
        while running.len() < OUTSTANDING
            && let Some(at) = waiting.next()
        {
            // An embedding does not depend on what ran before it in the last bit, either.
            let request =
                Request { hidden: true, use_prefix_cache: false, ..Request::new(texts[at].clone(), 1) };
            running.push((at, engine.engine().submit(request)));
        }
        if running.is_empty() {
            return Ok(());
        }
        let before = running.len();
        let mut failed = None;
        running.retain_mut(|(at, handle)| match handle.poll_event(&mut context) {
            Poll::Pending => true,
            Poll::Ready(Some(Event::Token(sampled))) => {
                rows[*at] = sampled.hidden;
                false
            }
            Poll::Ready(Some(Event::Failed(error))) => {
                failed = Some(of_text(*at, error.into()));
                false
            }
            Poll::Ready(_) => {
                let ended = Failure::new(Kind::Internal, "the engine ended without a result");
                failed = Some(of_text(*at, ended));
                false
            }
        });
        if let Some(failed) = failed {
            return Err(failed);
        }
        if running.len() == before {
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}
