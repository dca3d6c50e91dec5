//! The event stream of `/v1/responses`: items open and close one after the other.

use fulmen_model::template::CallPiece;
use serde_json::{Value, json};

use super::responses::{CallItem, finished, message_item, reasoning_item, text_part};
use super::responses_tools::Namespaces;
use crate::error::{ApiError, ErrorShape};
use crate::generation::{Encode, Ending, Output, sse_event};
use crate::ids;

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call { call_id: String, name: String },
}

struct Open {
    kind: Kind,
    id: String,
    /// The text, or the arguments of a call.
    text: String,
    /// Whether all of it was generated. A call may be cut off.
    complete: bool,
}

/// Writes events.
pub(crate) struct ResponsesEncoder {
    head: Value,
    sequence: u64,
    open: Option<Open>,
    output: Vec<Value>,
    ending: Option<Ending>,
    namespaces: Namespaces,
}

impl ResponsesEncoder {
    pub(crate) fn new(head: Value, namespaces: Namespaces) -> ResponsesEncoder {
        ResponsesEncoder { head, sequence: 0, open: None, output: Vec::new(), ending: None, namespaces }
    }

    fn event(&mut self, name: &str, mut value: Value, out: &mut Vec<u8>) {
        value["type"] = json!(name);
        value["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        sse_event(name, &value, out);
    }

    /// Opens an item, unless it is open, and closes the one before.
    fn open(&mut self, kind: Kind, out: &mut Vec<u8>) {
        if self.open.as_ref().is_some_and(|open| open.kind == kind) {
            return;
        }
        self.close(out);
        let index = self.output.len();
        let (id, item) = match &kind {
            Kind::Reasoning => {
                let id = ids::unique("rs_");
                let item = json!({ "id": id, "type": "reasoning", "summary": [], "content": [],
                    "status": "in_progress" });
                (id, item)
            }
            Kind::Message => {
                let id = ids::unique("msg_");
                let item = json!({ "id": id, "type": "message", "role": "assistant",
                    "status": "in_progress", "content": [] });
                (id, item)
            }
            Kind::Call { call_id, name } => {
                let id = ids::unique("fc_");
                let namespace = self.namespaces.get(name);
                let item = CallItem { id: &id, call_id, name, namespace }.json("in_progress", "");
                (id, item)
            }
        };
        self.event("response.output_item.added", json!({ "output_index": index, "item": item }), out);
        if kind == Kind::Message {
            let part = json!({ "item_id": id, "output_index": index, "content_index": 0,
                "part": text_part("") });
            self.event("response.content_part.added", part, out);
        }
        let complete = !matches!(kind, Kind::Call { .. });
        self.open = Some(Open { kind, id, text: String::new(), complete });
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        let Some(Open { kind, id, text, complete }) = self.open.take() else { return };
        let index = self.output.len();
        let place = json!({ "item_id": id, "output_index": index, "content_index": 0 });
        let with = |key: &str, value: Value| {
            let mut event = place.clone();
            event[key] = value;
            event
        };
        let item = match kind {
            Kind::Reasoning => {
                self.event("response.reasoning_text.done", with("text", json!(text)), out);
                reasoning_item(&id, &text)
            }
            Kind::Message => {
                let mut done = with("text", json!(text));
                done["logprobs"] = json!([]);
                self.event("response.output_text.done", done, out);
                self.event("response.content_part.done", with("part", text_part(&text)), out);
                message_item(&id, &text)
            }
            Kind::Call { call_id, name } => {
                if complete {
                    let done = json!({ "item_id": id, "output_index": index, "name": name,
                        "arguments": text });
                    self.event("response.function_call_arguments.done", done, out);
                }
                let status = if complete { "completed" } else { "incomplete" };
                let namespace = self.namespaces.get(&name);
                CallItem { id: &id, call_id: &call_id, name: &name, namespace }.json(status, &text)
            }
        };
        self.event("response.output_item.done", json!({ "output_index": index, "item": item }), out);
        self.output.push(item);
    }

    fn delta(&mut self, kind: Kind, text: &str, out: &mut Vec<u8>) {
        if text.is_empty() {
            return;
        }
        self.open(kind, out);
        self.more(text, out);
    }

    /// Adds to the open item.
    fn more(&mut self, text: &str, out: &mut Vec<u8>) {
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        let mut event = json!({ "item_id": open.id, "output_index": self.output.len(), "delta": text });
        let name = match open.kind {
            Kind::Call { .. } => "response.function_call_arguments.delta",
            Kind::Reasoning => {
                event["content_index"] = json!(0);
                "response.reasoning_text.delta"
            }
            Kind::Message => {
                event["content_index"] = json!(0);
                event["logprobs"] = json!([]);
                "response.output_text.delta"
            }
        };
        self.event(name, event, out);
    }

    fn call(&mut self, piece: CallPiece, out: &mut Vec<u8>) {
        if let Some(name) = piece.name {
            self.open(Kind::Call { call_id: ids::unique("call_"), name }, out);
        }
        if !piece.arguments.is_empty() {
            self.more(&piece.arguments, out);
        }
        if piece.last {
            if let Some(open) = &mut self.open {
                open.complete = true;
            }
            self.close(out);
        }
    }
}

impl Encode for ResponsesEncoder {
    fn start(&mut self, out: &mut Vec<u8>) {
        let mut head = self.head.clone();
        head["status"] = json!("in_progress");
        for name in ["response.created", "response.in_progress"] {
            self.event(name, json!({ "response": head }), out);
        }
    }

    fn output(&mut self, _: usize, output: Output, out: &mut Vec<u8>) {
        match output {
            Output::Piece(piece) => {
                self.delta(Kind::Reasoning, &piece.reasoning, out);
                self.delta(Kind::Message, &piece.content, out);
                for piece in piece.call_pieces {
                    self.call(piece, out);
                }
            }
            Output::End(ending) => self.ending = Some(ending),
        }
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        let inner = error.json(ErrorShape::OpenAi)["error"].take();
        let event = json!({ "code": inner["code"], "message": inner["message"], "param": inner["param"] });
        self.event("error", event, out);
        // Some clients wait for the end of the response, whatever came before.
        let mut response = self.head.take();
        response["status"] = json!("failed");
        response["output"] = Value::Array(std::mem::take(&mut self.output));
        let code = inner["code"].as_str().unwrap_or("server_error");
        response["error"] = json!({ "code": code, "message": inner["message"] });
        self.event("response.failed", json!({ "response": response }), out);
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.output.is_empty() && self.open.is_none() {
            self.open(Kind::Message, out);
        }
        self.close(out);
        let Some(ending) = self.ending.take() else { return };
        let output = std::mem::take(&mut self.output);
        let response = finished(self.head.clone(), output, &ending);
        let name = match response["status"].as_str() {
            Some("incomplete") => "response.incomplete",
            _ => "response.completed",
        };
        self.event(name, json!({ "response": response }), out);
    }
}
