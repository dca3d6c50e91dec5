//! Thoughts of earlier turns, which clients may have left out of the prompt.

use super::types::{Blocks, ContextEdit, ContextManagement, InputMessage, KeptThoughts};
use crate::error::ApiError;
use crate::openai::messages::no_others;

/// Removes the thoughts that a request does not want to keep.
pub(super) fn clear_thoughts(
    messages: &mut [InputMessage],
    management: Option<ContextManagement>,
) -> Result<(), ApiError> {
    for edit in management.and_then(|management| management.edits).unwrap_or_default() {
        if let Some(turns) = kept_turns(&edit)? {
            keep_last(messages, turns);
        }
    }
    Ok(())
}

/// How many of the last turns keep their thoughts; `None` for all.
fn kept_turns(edit: &ContextEdit) -> Result<Option<u64>, ApiError> {
    const PARAM: &str = "context_management.edits";
    if edit.kind != "clear_thinking_20251015" {
        let what = format!("edits of type {:?}; only clear_thinking_20251015", edit.kind);
        return Err(ApiError::unsupported(PARAM, &what));
    }
    no_others(&edit.others, &[], PARAM)?;
    let wrong = |got: String| {
        let expected = "keep: expected \"all\" or thinking_turns with a value of at least 1";
        Err(ApiError::field(PARAM, format!("{PARAM}: {expected}, got {got}")))
    };
    match &edit.keep {
        None => Ok(Some(1)),
        Some(KeptThoughts::Word(word)) if word == "all" => Ok(None),
        Some(KeptThoughts::Word(word)) => wrong(format!("{word:?}")),
        Some(KeptThoughts::Turns(turns)) => match (turns.kind.as_str(), turns.value) {
            ("all", None) => Ok(None),
            ("thinking_turns", Some(turns @ 1..)) => Ok(Some(turns)),
            (kind, value) => {
                wrong(format!("{kind:?} with {}", value.map_or("none".to_owned(), |value| value.to_string())))
            }
        },
    }
}

/// Keeps the thoughts of the assistant's last turns. A turn goes on over the results of its tools.
fn keep_last(messages: &mut [InputMessage], turns: u64) {
    let (mut seen, mut inside) = (0, false);
    for message in messages.iter_mut().rev() {
        if message.role != "assistant" {
            inside = inside && is_result(message);
            continue;
        }
        if !inside {
            (seen, inside) = (seen + 1, true);
        }
        if seen > turns
            && let Blocks::Blocks(blocks) = &mut message.content
        {
            blocks.retain(|block| !matches!(block.kind.as_str(), "thinking" | "redacted_thinking"));
        }
    }
}

/// Whether a message has the results of tools.
fn is_result(message: &InputMessage) -> bool {
    match &message.content {
        Blocks::Text(_) => false,
        Blocks::Blocks(blocks) => blocks.iter().any(|block| block.kind == "tool_result"),
    }
}
