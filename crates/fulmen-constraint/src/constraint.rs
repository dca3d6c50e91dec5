//! A grammar and the state of one sequence in it.

use fulmen_core::sampling::{Constraint, TokenMask};
use llguidance::Matcher;

/// The parser has no continuation.
const NOTHING_FOLLOWS: &str = "nothing can follow";

/// Restricts one sequence to a grammar.
pub struct GrammarConstraint {
    matcher: Matcher,
    logits: u32,
}

impl std::fmt::Debug for GrammarConstraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarConstraint").field("is_finished", &self.matcher.is_stopped()).finish()
    }
}

impl GrammarConstraint {
    pub(crate) fn new(matcher: Matcher, logits: u32) -> GrammarConstraint {
        GrammarConstraint { matcher, logits }
    }

    /// Whether the text so far matches: it may end here.
    pub fn may_end(&mut self) -> bool {
        self.matcher.is_accepting().unwrap_or(false)
    }

    fn is_end(&self, token: u32) -> bool {
        self.matcher.tok_env().is_ok_and(|env| env.tok_trie().eos_tokens().contains(&token))
    }

    /// The first line of an error: what follows shows the insides of the parser.
    fn message(error: impl std::fmt::Display) -> String {
        let message = error.to_string();
        let line = message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("unknown error");
        let line = if line.contains("NoExtension") { NOTHING_FOLLOWS } else { line };
        format!("constrained decoding: {line}")
    }
}

impl Constraint for GrammarConstraint {
    fn mask(&mut self) -> Result<TokenMask, String> {
        let allowed = self.matcher.compute_mask_or_eos().map_err(Self::message)?;
        let mut words = vec![0; self.logits.div_ceil(32) as usize];
        let known = words.len().min(allowed.as_slice().len());
        words[..known].copy_from_slice(&allowed.as_slice()[..known]);
        // Bits behind the vocabulary are not tokens.
        for token in allowed.len() as u32..self.logits.next_multiple_of(32) {
            words[token as usize / 32] &= !(1 << (token % 32));
        }
        Ok(TokenMask(words.into()))
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        // A sequence may go on behind its end if its owner ignores the end.
        let is_complete = self.matcher.is_stopped() && !self.matcher.is_error();
        if is_complete && self.is_end(token) {
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(Self::message)
    }
}
