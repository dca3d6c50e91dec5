//! Errors of requests, and their shapes in the APIs.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use fulmen_engine::RequestError;
use fulmen_model::template::TemplateError;
use serde_json::{Value, json};

use crate::served::EmbedError;

/// Why a request was not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    status: StatusCode,
    message: Cow<'static, str>,
    /// The field of the request that is wrong.
    param: Option<String>,
    code: Option<&'static str>,
    /// Seconds after which another try makes sense.
    retry_after: Option<u32>,
}

/// The API whose clients read an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorShape {
    OpenAi,
    Anthropic,
    Ollama,
}

impl ErrorShape {
    /// The shape that clients of a path expect.
    pub(crate) fn of_path(path: &str) -> ErrorShape {
        if path.starts_with("/v1/messages") {
            ErrorShape::Anthropic
        } else if path.starts_with("/api/") {
            ErrorShape::Ollama
        } else {
            ErrorShape::OpenAi
        }
    }
}

impl ApiError {
    /// An error with any status.
    pub fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// 400: the request makes no sense.
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// 400: a field has a wrong value.
    pub fn field(param: impl Into<String>, message: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError { param: Some(param.into()), ..ApiError::invalid(message) }
    }

    /// 400: a field is known and not supported.
    pub fn unsupported(param: &str, what: &str) -> ApiError {
        let message = format!("{param} is not supported: {what}");
        ApiError { code: Some("unsupported_parameter"), ..ApiError::field(param, message) }
    }

    /// 404: there is no such model.
    pub fn no_model(name: &str, known: &[String]) -> ApiError {
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let message = format!("the model {name:?} does not exist; the models are: {known}");
        ApiError {
            param: Some("model".to_owned()),
            code: Some("model_not_found"),
            ..ApiError::new(StatusCode::NOT_FOUND, message)
        }
    }

    /// 401: the key is missing or wrong.
    pub fn unauthorized(message: &'static str) -> ApiError {
        ApiError { code: Some("invalid_api_key"), ..ApiError::new(StatusCode::UNAUTHORIZED, message) }
    }

    /// 500: a defect of the server or the device.
    pub fn internal(message: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// Says when another try makes sense.
    pub fn retry_after(self, seconds: u32) -> ApiError {
        ApiError { retry_after: Some(seconds), ..self }
    }

    /// Names the error for programs.
    pub fn code(self, code: &'static str) -> ApiError {
        ApiError { code: Some(code), ..self }
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    fn openai_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            503 | 529 => "overloaded_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 | 529 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        }
    }

    /// The JSON of an error.
    pub(crate) fn json(&self, shape: ErrorShape) -> Value {
        match shape {
            ErrorShape::OpenAi => json!({
                "error": {
                    "message": self.message,
                    "type": self.openai_type(),
                    "param": self.param,
                    "code": self.code,
                }
            }),
            ErrorShape::Anthropic => json!({
                "type": "error",
                "error": { "type": self.anthropic_type(), "message": self.message },
            }),
            ErrorShape::Ollama => json!({ "error": self.message }),
        }
    }

    /// The response of an error.
    pub(crate) fn response(&self, shape: ErrorShape) -> Response<Body> {
        let mut response = Response::new(Body::from(self.json(shape).to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    /// Writes the error into a response in the shape of a path. Headers of other layers stay, such as those
    /// that let a page of another origin read it.
    pub(crate) fn write_into(&self, response: &mut Response<Body>, shape: ErrorShape) {
        let body = self.json(shape).to_string();
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        *response.body_mut() = Body::from(body);
    }
}

impl IntoResponse for ApiError {
    /// The error itself travels with the response; the outermost layer writes it in the shape of the path.
    fn into_response(self) -> Response<Body> {
        let mut response = self.response(ErrorShape::OpenAi);
        response.extensions_mut().insert(self);
        response
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> ApiError {
        let message = error.to_string();
        match error {
            RequestError::EmptyPrompt | RequestError::Limit { .. } | RequestError::Token { .. } => {
                ApiError::invalid(message)
            }
            // Coding tools look for these words, and shorten the conversation.
            RequestError::PromptTooLong { prompt, context } => ApiError::invalid(format!(
                "prompt is too long: {prompt} tokens > {} maximum, in a context of {context}",
                context.saturating_sub(1)
            ))
            .code("context_length_exceeded"),
            RequestError::PoolTooSmall { .. } => ApiError::invalid(message).code("context_length_exceeded"),
            RequestError::QueueFull { .. } => {
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).retry_after(1).code("queue_full")
            }
            RequestError::Cancelled => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message),
            RequestError::DeadlineExceeded { .. } => {
                ApiError::new(StatusCode::GATEWAY_TIMEOUT, message).code("timeout")
            }
            RequestError::ConsumerTooSlow { .. } => ApiError::new(StatusCode::REQUEST_TIMEOUT, message),
            RequestError::ShuttingDown => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).retry_after(5).code("shutting_down")
            }
            RequestError::OutOfPages { .. } | RequestError::DeviceOutOfMemory { .. } => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).retry_after(5)
            }
            // A grammar of the client's that compiles and whose states explode later.
            RequestError::Constraint { .. } => ApiError::invalid(message).code("constraint_failed"),
            _ => ApiError::internal(message),
        }
    }
}

impl From<EmbedError> for ApiError {
    fn from(error: EmbedError) -> ApiError {
        match error {
            EmbedError::Unsupported => ApiError::unsupported("model", "this model gives no embeddings"),
            EmbedError::TooLong { .. } => {
                ApiError::field("input", error.to_string()).code("context_length_exceeded")
            }
            EmbedError::Failed(_) => ApiError::internal(error.to_string()),
        }
    }
}

impl From<TemplateError> for ApiError {
    /// What a template raises is about the messages.
    fn from(error: TemplateError) -> ApiError {
        ApiError::field("messages", error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_shape_of_the_path() {
        let error = ApiError::field("top_p", "top_p: expected 0 to 1, got 2");
        let openai = error.json(ErrorShape::of_path("/v1/chat/completions"));
        assert_eq!(openai["error"]["param"], "top_p");
        assert_eq!(openai["error"]["type"], "invalid_request_error");
        let anthropic = error.json(ErrorShape::of_path("/v1/messages/count_tokens"));
        assert_eq!(anthropic["type"], "error");
        assert_eq!(anthropic["error"]["type"], "invalid_request_error");
        let ollama = error.json(ErrorShape::of_path("/api/chat"));
        assert_eq!(ollama["error"], "top_p: expected 0 to 1, got 2");
    }

    #[test]
    fn a_full_queue_says_when_to_try_again() {
        let response = ApiError::from(RequestError::QueueFull { limit: 1 }).response(ErrorShape::OpenAi);
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    }
}
