//! The event stream of `/v1/messages`: named events, and blocks that open and close.

use fulmen_model::template::CallPiece;
use serde_json::{Value, json};

use super::types::{MessageResponse, MessageUsage, OutputBlock, stop_reason};
use crate::error::{ApiError, ErrorShape};
use crate::generation::{Encode, Output, TokenUsage, sse_event};
use crate::ids;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    ToolUse,
}

/// Writes events.
pub(crate) struct MessagesEncoder {
    model: String,
    prompt_tokens: usize,
    open: Option<Block>,
    /// Blocks that were opened.
    blocks: usize,
    /// Whether the text of thoughts is left out.
    hides_thoughts: bool,
}

impl MessagesEncoder {
    pub(crate) fn new(model: String, prompt_tokens: usize, hides_thoughts: bool) -> MessagesEncoder {
        MessagesEncoder { model, prompt_tokens, open: None, blocks: 0, hides_thoughts }
    }

    fn start_block(&mut self, block: &OutputBlock, out: &mut Vec<u8>) {
        let event = json!({ "type": "content_block_start", "index": self.blocks, "content_block": block });
        sse_event("content_block_start", &event, out);
        self.blocks += 1;
    }

    fn delta(&self, delta: Value, out: &mut Vec<u8>) {
        let event = json!({ "type": "content_block_delta", "index": self.blocks - 1, "delta": delta });
        sse_event("content_block_delta", &event, out);
    }

    fn stop_block(&mut self, out: &mut Vec<u8>) {
        let event = json!({ "type": "content_block_stop", "index": self.blocks - 1 });
        sse_event("content_block_stop", &event, out);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if self.open.take().is_some() {
            self.stop_block(out);
        }
    }

    fn text(&mut self, block: Block, text: String, out: &mut Vec<u8>) {
        if text.is_empty() {
            return;
        }
        if self.open != Some(block) {
            self.close(out);
            let empty = match block {
                Block::Thinking => {
                    OutputBlock::Thinking { thinking: String::new(), signature: String::new() }
                }
                _ => OutputBlock::Text { text: String::new() },
            };
            self.start_block(&empty, out);
            self.open = Some(block);
        }
        let delta = match block {
            Block::Thinking if self.hides_thoughts => return,
            Block::Thinking => json!({ "type": "thinking_delta", "thinking": text }),
            _ => json!({ "type": "text_delta", "text": text }),
        };
        self.delta(delta, out);
    }

    fn call(&mut self, piece: CallPiece, out: &mut Vec<u8>) {
        if let Some(name) = piece.name {
            self.close(out);
            let id = ids::unique("toolu_");
            self.start_block(&OutputBlock::ToolUse { id, name, input: json!({}) }, out);
            self.open = Some(Block::ToolUse);
        }
        if !piece.arguments.is_empty() {
            self.delta(json!({ "type": "input_json_delta", "partial_json": piece.arguments }), out);
        }
        if piece.last {
            self.close(out);
        }
    }
}

impl Encode for MessagesEncoder {
    fn start(&mut self, out: &mut Vec<u8>) {
        let usage = TokenUsage { prompt: self.prompt_tokens, ..TokenUsage::default() };
        let message = MessageResponse {
            id: ids::unique("msg_"),
            kind: "message",
            role: "assistant",
            model: self.model.clone(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: MessageUsage::from(usage),
        };
        sse_event("message_start", &json!({ "type": "message_start", "message": message }), out);
        sse_event("ping", &json!({ "type": "ping" }), out);
    }

    fn output(&mut self, _: usize, output: Output, out: &mut Vec<u8>) {
        match output {
            Output::Piece(piece) => {
                self.text(Block::Thinking, piece.reasoning, out);
                self.text(Block::Text, piece.content, out);
                for piece in piece.call_pieces {
                    self.call(piece, out);
                }
            }
            Output::End(ending) => {
                self.close(out);
                let (reason, stop_sequence) = stop_reason(&ending.reason);
                let event = json!({
                    "type": "message_delta",
                    "delta": { "stop_reason": reason, "stop_sequence": stop_sequence },
                    "usage": MessageUsage::from(ending.usage),
                });
                sse_event("message_delta", &event, out);
            }
        }
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        sse_event("error", &error.json(ErrorShape::Anthropic), out);
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        sse_event("message_stop", &json!({ "type": "message_stop" }), out);
    }
}
