//! What the server needs of a model.

use fulmen_engine::{Constraint, Request, RequestHandle, SamplingParams, Stats};
use fulmen_model::Sampling;
use fulmen_model::template::{ChatTemplate, ToolFormat};
use fulmen_model::tokenizer::Tokenizer;
use serde_json::Value;

/// A model that answers requests.
///
/// [`EngineModel`](crate::EngineModel) is one on an engine; programs may bring their own.
pub trait ServedModel: Send + Sync + 'static {
    /// The tokenizer.
    fn tokenizer(&self) -> &Tokenizer;

    /// The chat template; `None` for a model that was not trained for conversations.
    fn chat_template(&self) -> Option<&ChatTemplate>;

    /// Positions of prompt and answer together.
    fn context(&self) -> u32;

    /// Key figures for clients.
    fn info(&self) -> &ModelInfo;

    /// Queues a request.
    fn submit(&self, request: Request) -> RequestHandle;

    /// The device's parameters of sampling. `logit_bias` is added to the logits of tokens. The error says
    /// what the device does not do.
    fn sampling(&self, sampling: &Sampling, logit_bias: &[(u32, f32)]) -> Result<SamplingParams, String>;

    /// Makes constraints on answers; `None` if this model cannot be constrained.
    fn constraints(&self) -> Option<&dyn ConstraintFactory> {
        None
    }

    /// Whether log-probabilities of tokens can be had.
    fn has_logprobs(&self) -> bool {
        false
    }

    /// The embedding of a text as tokens: not normalized, pooled as the model says. It may take as long as a
    /// prefill, and is called on a thread that may block.
    fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>, EmbedError> {
        let _ = tokens;
        Err(EmbedError::Unsupported)
    }

    /// What the engine does now and has done.
    fn stats(&self) -> Stats;
}

/// Why there is no embedding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmbedError {
    /// The model gives no embeddings.
    #[error("this model gives no embeddings")]
    Unsupported,
    /// The text is too long.
    #[error("a text of {tokens} tokens is longer than the context of {context}")]
    TooLong {
        /// Tokens of the text.
        tokens: usize,
        /// Positions of the context.
        context: u32,
    },
    /// The device failed.
    #[error("the embedding failed: {0}")]
    Failed(String),
}

/// Key figures of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelInfo {
    /// `general.architecture`.
    pub architecture: String,
    /// Parameters, if they are known.
    pub parameters: Option<u64>,
    /// Bytes of the weights.
    pub bytes: u64,
    /// The most frequent data type of the weights, such as `Q4_K`.
    pub quantization: String,
    /// Dimensions of a hidden state.
    pub embedding: u32,
    /// The device that it runs on.
    pub device: String,
}

/// What an answer must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema allows.
    JsonSchema(Value),
    /// A grammar in the syntax of llguidance (Lark).
    Lark(String),
    /// A regular expression for the whole answer.
    Regex(String),
    /// At least one call of a tool, in the format of the model's family.
    ToolCalls {
        /// How calls are written.
        format: ToolFormat,
        /// Names and parameter schemas of the tools that may be called.
        tools: Vec<(String, Value)>,
        /// Whether more than one call may follow.
        several: bool,
    },
}

impl Grammar {
    /// The grammar of required calls in Lark's syntax with JSON schemas, as llguidance reads it; `None` for
    /// other grammars. The name comes before the arguments, as models were trained.
    pub fn tool_calls_lark(&self) -> Option<String> {
        let Grammar::ToolCalls { format, tools, several } = self else { return None };
        let (open, close, between) = match format {
            ToolFormat::Hermes => ("<tool_call>\\n", "\\n</tool_call>", "\\n"),
            ToolFormat::Llama3 => ("", "", "; "),
        };
        let quoted = |text: &str| (!text.is_empty()).then(|| format!("\"{text}\""));
        let more = if *several { format!(" (\"{between}\" call)*") } else { String::new() };
        let names: Vec<String> = (0..tools.len()).map(|at| format!("tool_{at}")).collect();
        let mut text = format!("start: call{more}\n");
        let parts = [quoted(open), Some(format!("({})", names.join(" | "))), quoted(close)];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        text += &format!("call: {}\n", parts.join(" "));
        let key = format.arguments_key();
        for (at, (name, schema)) in tools.iter().enumerate() {
            text += &format!(
                "tool_{at}: \"{{\\\"name\\\": \\\"{name}\\\", \\\"{key}\\\": \" arguments_{at} \"}}\"\n"
            );
            text += &format!("arguments_{at}: %json {schema}\n");
        }
        Some(text)
    }
}

/// Makes constraints on answers. An error is the client's: its grammar is wrong.
pub trait ConstraintFactory: Send + Sync {
    /// A constraint for one answer.
    fn constraint(&self, grammar: &Grammar) -> Result<Box<dyn Constraint>, String>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn required_calls_are_a_grammar() {
        let tools = vec![("weather".to_owned(), json!({ "type": "object" })), ("time".to_owned(), json!({}))];
        let grammar = Grammar::ToolCalls { format: ToolFormat::Hermes, tools, several: true };
        let expected = r#"start: call ("\n" call)*
call: "<tool_call>\n" (tool_0 | tool_1) "\n</tool_call>"
tool_0: "{\"name\": \"weather\", \"arguments\": " arguments_0 "}"
arguments_0: %json {"type":"object"}
tool_1: "{\"name\": \"time\", \"arguments\": " arguments_1 "}"
arguments_1: %json {}
"#;
        assert_eq!(grammar.tool_calls_lark().unwrap(), expected);
        let tools = vec![("a".to_owned(), json!({}))];
        let one = Grammar::ToolCalls { format: ToolFormat::Llama3, tools, several: false };
        assert!(one.tool_calls_lark().unwrap().starts_with("start: call\ncall: (tool_0)\n"));
        assert_eq!(Grammar::JsonObject.tool_calls_lark(), None);
    }
}
