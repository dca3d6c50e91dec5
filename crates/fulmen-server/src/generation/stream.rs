//! Streaming: outputs of the choices become frames of a response body.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use futures_util::Stream;
use serde::Serialize;
use tokio::time::{Instant, Sleep};

use super::choice::{Ending, Output};
use super::choices::Choices;
use crate::error::ApiError;

/// Outputs that are put into one frame if they are there at once.
const FRAME_OUTPUTS: usize = 64;

/// Writes the outputs of a request in the form of an API.
pub(crate) trait Encode: Send + Unpin + 'static {
    /// What comes before the first output.
    fn start(&mut self, out: &mut Vec<u8>);

    /// An output of a choice.
    fn output(&mut self, choice: usize, output: Output, out: &mut Vec<u8>);

    /// An error after the stream has begun. Nothing follows.
    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>);

    /// What comes after the last output.
    fn end(&mut self, out: &mut Vec<u8>);
}

/// The form of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streaming {
    /// Server-sent events, with a comment after each time without any.
    Sse { keep_alive: Duration },
    /// A JSON object per line.
    JsonLines,
}

/// The response of a streamed request. When its client goes away, the body is dropped, and with it the
/// requests of the engine.
pub(crate) fn stream(choices: Choices, encoder: impl Encode, form: Streaming) -> Response<Body> {
    let keep_alive = match form {
        Streaming::Sse { keep_alive } => Some(keep_alive),
        Streaming::JsonLines => None,
    };
    let body = Frames {
        choices,
        encoder,
        keep_alive: keep_alive.map(|time| (time, Box::pin(tokio::time::sleep(time)))),
        place: Place::Start,
    };
    response(Body::from_stream(body), form)
}

/// The response of a streamed request without generated tokens: the ends of all choices.
pub(crate) fn stream_ends(endings: Vec<Ending>, mut encoder: impl Encode, form: Streaming) -> Response<Body> {
    let mut out = Vec::new();
    encoder.start(&mut out);
    for (choice, ending) in endings.into_iter().enumerate() {
        encoder.output(choice, Output::End(ending), &mut out);
    }
    encoder.end(&mut out);
    response(Body::from(out), form)
}

fn response(body: Body, form: Streaming) -> Response<Body> {
    let content_type = match form {
        Streaming::Sse { .. } => "text/event-stream",
        Streaming::JsonLines => "application/x-ndjson",
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that collect responses would hold tokens back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Start,
    Middle,
    Ended,
}

struct Frames<E> {
    choices: Choices,
    encoder: E,
    keep_alive: Option<(Duration, Pin<Box<Sleep>>)>,
    place: Place,
}

impl<E: Encode> Frames<E> {
    /// Writes all outputs that are there.
    fn write_ready(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) {
        for _ in 0..FRAME_OUTPUTS {
            match self.choices.poll(context) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok((choice, output)))) => self.encoder.output(choice, output, out),
                Poll::Ready(Some(Err(error))) => {
                    self.encoder.error(&error, out);
                    self.place = Place::Ended;
                    return;
                }
                Poll::Ready(None) => {
                    self.encoder.end(out);
                    self.place = Place::Ended;
                    return;
                }
            }
        }
        // There may be more, and nobody else wakes this task for it.
        context.waker().wake_by_ref();
    }
}

impl<E: Encode> Stream for Frames<E> {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.place == Place::Ended {
            return Poll::Ready(None);
        }
        let mut out = Vec::new();
        if this.place == Place::Start {
            this.place = Place::Middle;
            this.encoder.start(&mut out);
        }
        this.write_ready(context, &mut out);
        if let Some((time, sleep)) = &mut this.keep_alive {
            if out.is_empty() && sleep.as_mut().poll(context).is_ready() {
                out.extend_from_slice(b": keep-alive\n\n");
            }
            if !out.is_empty() {
                sleep.as_mut().reset(Instant::now() + *time);
                // A timer that was reset must be looked at to wake this task.
                let _ = sleep.as_mut().poll(context);
            }
        }
        match out.is_empty() {
            true if this.place == Place::Ended => Poll::Ready(None),
            true => Poll::Pending,
            false => Poll::Ready(Some(Ok(Bytes::from(out)))),
        }
    }
}

/// An event without a name.
pub(crate) fn sse_data(value: &impl Serialize, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    write_json(value, out);
    out.extend_from_slice(b"\n\n");
}

/// An event with a name.
pub(crate) fn sse_event(name: &str, value: &impl Serialize, out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
    sse_data(value, out);
}

/// A line of JSON.
pub(crate) fn json_line(value: &impl Serialize, out: &mut Vec<u8>) {
    write_json(value, out);
    out.push(b'\n');
}

/// JSON without line breaks. Writing to memory does not fail, and our types have string keys only.
fn write_json(value: &impl Serialize, out: &mut Vec<u8>) {
    let _ = serde_json::to_writer(out, value);
}
