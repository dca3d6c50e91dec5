//! Embeddings of texts: together in the engine, or one after the other by a function of the model.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::StatusCode;
use fulmen_engine::{Event, Request, RequestHandle};

use super::prompt::Prompt;
use crate::app::{App, Caller};
use crate::error::ApiError;
use crate::registry::Lease;
use crate::served::{EmbedError, Embedder};

/// Texts of one request that are in the engine at the same time, so that it does not fill the queue.
const OUTSTANDING: usize = 32;

/// The embeddings of texts as tokens, not normalized. Dropping the future cancels what has not run.
pub(crate) async fn embed(
    app: &App,
    lease: Lease,
    caller: &Caller,
    texts: Vec<Prompt>,
) -> Result<Vec<Vec<f32>>, ApiError> {
    for text in &texts {
        text.room(lease.context())?;
    }
    caller.figures.set_model(&lease.spec().name);
    let work = async {
        match lease.embedder() {
            None => Err(EmbedError::Unsupported.into()),
            Some(Embedder::LastToken) => in_engine(&lease, caller, texts).await,
            Some(Embedder::Function(_)) => by_function(app, Arc::new(lease), texts).await,
        }
    };
    let late = |_| {
        let message = format!("the embeddings did not finish within {:?}", caller.timeout);
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, message).code("timeout")
    };
    tokio::time::timeout(caller.timeout, work).await.map_err(late)?
}

/// A text in the engine.
struct Running {
    text: usize,
    handle: RequestHandle,
}

/// The states of the last tokens.
async fn in_engine(lease: &Lease, caller: &Caller, texts: Vec<Prompt>) -> Result<Vec<Vec<f32>>, ApiError> {
    let mut rows = vec![Vec::new(); texts.len()];
    let mut waiting = texts.into_iter().enumerate();
    let mut running = Vec::new();
    poll_fn(|context| {
        loop {
            while running.len() < OUTSTANDING
                && let Some((text, prompt)) = waiting.next()
            {
                running.push(Running { text, handle: lease.submit(request(prompt, caller)) });
            }
            if running.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let before = running.len();
            let mut failed = None;
            running.retain_mut(|one| match one.poll(context, &mut rows) {
                Poll::Pending => true,
                Poll::Ready(Ok(())) => false,
                Poll::Ready(Err(error)) => {
                    failed.get_or_insert(error);
                    false
                }
            });
            match failed {
                Some(error) => return Poll::Ready(Err(error)),
                None if running.len() == before => return Poll::Pending,
                None => {}
            }
        }
    })
    .await?;
    Ok(rows)
}

/// An embedding must not depend on what ran before it, not in the last bit: cached prefixes are not used.
fn request(prompt: Prompt, caller: &Caller) -> Request {
    Request {
        hidden: true,
        use_prefix_cache: false,
        timeout: Some(caller.timeout),
        tenant: Arc::clone(&caller.tenant),
        ..Request::new(prompt.tokens, 1)
    }
}

impl Running {
    /// Takes the state. Ready with the last event, so that nothing is left to be cancelled.
    fn poll(&mut self, context: &mut Context<'_>, rows: &mut [Vec<f32>]) -> Poll<Result<(), ApiError>> {
        loop {
            match self.handle.poll_event(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Event::Token(sampled))) => rows[self.text] = sampled.hidden,
                Poll::Ready(Some(Event::Finished { .. })) if !rows[self.text].is_empty() => {
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Some(Event::Failed(error))) => return Poll::Ready(Err(error.into())),
                Poll::Ready(_) => {
                    let message = "the engine has ended without a hidden state";
                    return Poll::Ready(Err(ApiError::internal(message)));
                }
            }
        }
    }
}

/// One text after the other. A function may take memory of its own, so one runs at a time in the server.
async fn by_function(app: &App, lease: Arc<Lease>, texts: Vec<Prompt>) -> Result<Vec<Vec<f32>>, ApiError> {
    let mut rows = Vec::with_capacity(texts.len());
    for text in texts {
        let permit = Arc::clone(&app.embedding).acquire_owned().await;
        let permit = permit.map_err(|error| ApiError::internal(error.to_string()))?;
        let lease = Arc::clone(&lease);
        // What a thread has begun cannot be stopped: it keeps the permit until its end.
        let work = move || {
            let _permit = permit;
            match lease.embedder() {
                Some(Embedder::Function(embed)) => embed(&text.tokens),
                _ => Err(EmbedError::Unsupported),
            }
        };
        let row = tokio::task::spawn_blocking(work).await;
        rows.push(row.map_err(|error| ApiError::internal(format!("the embedding failed: {error}")))??);
    }
    Ok(rows)
}
