//! Bodies of requests: JSON with limits on size, time and lengths of lists.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::{DeserializeOwned, Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::app::App;
use crate::error::ApiError;

/// A body of JSON. What does not fit the type is an error that names the field.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Json<T>, ApiError> {
        check_type(&request)?;
        let limits = &app.options.limits;
        let too_large = || {
            let message = format!("the body has more than {} bytes", limits.body_bytes);
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        };
        let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        let length = length.and_then(|text| text.parse::<u64>().ok());
        if length.is_some_and(|length| length > limits.body_bytes as u64) {
            return Err(too_large());
        }
        let body = Limited::new(request.into_body(), limits.body_bytes).collect();
        let bytes = match tokio::time::timeout(limits.body_timeout, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large()),
            Ok(Err(error)) => return Err(ApiError::invalid(format!("the body cannot be read: {error}"))),
            Err(_) => {
                let message = format!("the body did not arrive within {:?}", limits.body_timeout);
                return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message));
            }
        };
        parse(&bytes).map(Json)
    }
}

/// JSON, or what `curl -d` says of JSON. A page of another origin may send other types without asking.
fn check_type(request: &Request) -> Result<(), ApiError> {
    let encoding = request.headers().get(header::CONTENT_ENCODING);
    if let Some(encoding) = encoding.filter(|encoding| *encoding != "identity") {
        let message = format!("content-encoding: bodies are not compressed here, got {encoding:?}");
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let Some(value) = request.headers().get(header::CONTENT_TYPE) else { return Ok(()) };
    let text = value.to_str().unwrap_or("").split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    let json = text == "application/json" || text.ends_with("+json");
    if json || text == "application/x-www-form-urlencoded" {
        return Ok(());
    }
    let message = format!("content-type: expected application/json, got {text:?}");
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    // Lists would be read as objects, by the order of the fields.
    if bytes.trim_ascii_start().first().is_some_and(|&byte| byte != b'{') {
        return Err(ApiError::invalid("the body is not the expected JSON: it is no object"));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        if inner.is_data() && path != "." {
            return ApiError::field(path.clone(), format!("{path}: {inner}"));
        }
        ApiError::invalid(format!("the body is not the expected JSON: {inner}"))
    })?;
    json.end().map_err(|error| ApiError::invalid(format!("the body is not one JSON value: {error}")))?;
    Ok(value)
}

/// The response of a JSON value.
pub(crate) fn json_response(value: &impl Serialize) -> axum::response::Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => {
            let mut response = axum::response::Response::new(bytes.into());
            let json = header::HeaderValue::from_static("application/json");
            response.headers_mut().insert(header::CONTENT_TYPE, json);
            response
        }
        Err(error) => {
            let error = ApiError::internal(format!("the answer cannot be written: {error}"));
            axum::response::IntoResponse::into_response(error)
        }
    }
}

/// A list of at most `N` values. Longer ones are refused while they are read, not after.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct List<T, const N: usize>(pub(crate) Vec<T>);

impl<T, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        List(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for List<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Values<T, const N: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Values<T, N> {
            type Value = List<T, N>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {N} values")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<List<T, N>, A::Error> {
                let mut list = Vec::new();
                while let Some(value) = values.next_element()? {
                    if list.len() == N {
                        return Err(A::Error::custom(format_args!("expected at most {N} values")));
                    }
                    list.push(value);
                }
                Ok(List(list))
            }
        }

        deserializer.deserialize_seq(Values(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Body {
        list: List<u32, 2>,
        name: Option<String>,
    }

    #[test]
    fn errors_name_the_field() {
        let error = |text: &str| parse::<Body>(text.as_bytes()).unwrap_err().to_string();
        assert!(error("{\"list\": [1, \"x\"]}").starts_with("list[1]: invalid type"), "{}", error("{}"));
        assert!(error("{\"list\": [1, 2, 3]}").contains("expected at most 2 values"));
        assert!(error("{\"list\": [], \"nmae\": 1}").contains("unknown field `nmae`"));
        assert!(error("{\"list\": []} x").contains("not one JSON value"));
        assert!(error("{\"list\": [").contains("not the expected JSON"));
        assert!(error(&"[".repeat(100_000)).contains("not the expected JSON"));
        let bad = parse::<Body>(b"{\"list\": [], \"name\": \"\xff\"}").unwrap_err().to_string();
        assert!(bad.contains("invalid unicode"), "{bad}");
        assert!(parse::<Body>(b"{\"list\": [1, 2], \"name\": null}").is_ok());
    }
}
