//! The record of a request: a line of the log when its response has ended, however it ends.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Method;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

use crate::app::App;
use crate::log;

/// The status of a request whose client has gone before there was an answer, as in nginx's logs.
const CLIENT_GONE: u16 = 499;

/// What the answers of a request have taken.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    model: OnceLock<String>,
    generated: AtomicUsize,
}

impl Figures {
    pub(crate) fn set_model(&self, name: &str) {
        self.model.get_or_init(|| name.to_owned());
    }

    pub(crate) fn add_generated(&self, tokens: usize) {
        self.generated.fetch_add(tokens, Ordering::Relaxed);
    }
}

/// A line of the log.
#[derive(Clone, Debug)]
pub(crate) struct Line<'a> {
    pub(crate) request: &'a str,
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    pub(crate) status: u16,
    pub(crate) time: Duration,
    /// The model, if one has answered, and the tokens that it has generated.
    pub(crate) answer: Option<(&'a str, usize)>,
    /// Whether the response was not sent to its end.
    pub(crate) cut: bool,
}

/// A request until its response has ended. Dropping it writes the line.
pub(crate) struct Record {
    app: Arc<App>,
    request: String,
    method: Method,
    path: String,
    route: String,
    started: Instant,
    figures: Arc<Figures>,
    /// Of the response, once it has begun.
    status: Option<u16>,
    cut: bool,
}

impl Record {
    pub(crate) fn new(app: Arc<App>, request: String, method: Method, path: String, route: String) -> Record {
        let (started, figures) = (Instant::now(), Arc::default());
        Record { app, request, method, path, route, started, figures, status: None, cut: true }
    }

    pub(crate) fn request(&self) -> &str {
        &self.request
    }

    pub(crate) fn figures(&self) -> Arc<Figures> {
        Arc::clone(&self.figures)
    }

    /// The response has begun: it is counted now, and logged when its body has ended.
    pub(crate) fn answered(mut self, response: Response) -> Response {
        let status = response.status().as_u16();
        self.status = Some(status);
        // The response to HEAD has the headers of a body that is not sent.
        self.cut = !response.body().is_end_stream() && self.method != Method::HEAD;
        self.app.metrics.answered(&self.route, status);
        response.map(|body| Body::new(RecordedBody { body, record: self }))
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.app.metrics.answered(&self.route, CLIENT_GONE);
        }
        let generated = self.figures.generated.load(Ordering::Relaxed);
        let line = Line {
            request: &self.request,
            method: &self.method,
            path: &self.path,
            status: self.status.unwrap_or(CLIENT_GONE),
            time: self.started.elapsed(),
            answer: self.figures.model.get().map(|model| (model.as_str(), generated)),
            cut: self.cut,
        };
        log::request(self.app.options.log, &line);
    }
}

/// The body of a response with its record.
struct RecordedBody {
    /// Dropped first: what it counts is part of the line.
    body: Body,
    record: Record,
}

impl HttpBody for RecordedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.record.cut = false;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
