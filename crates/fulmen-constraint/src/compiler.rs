//! The token trie of a vocabulary, and grammars compiled for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use fulmen_model::tokenizer::{TokenType, Tokenizer};
use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{
    ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie,
};
use llguidance::{Matcher, ParserFactory, TokenParser};

use crate::constraint::GrammarConstraint;
use crate::error::ConstraintError;
use crate::grammar::Grammar;

/// Limits of the work and the memory of a grammar. Those of the default are met by large schemas of practice
/// and are reached well within a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Symbols of the compiled grammar.
    pub grammar_size: usize,
    /// Units of work for building the automata of regular expressions; about 50,000 take a millisecond.
    pub compile_work: u64,
    /// Units of work of the automata for one mask; about 14,000 take a millisecond.
    pub mask_work: u64,
    /// Items of the parser for one mask; about 20,000 take a millisecond.
    pub mask_items: usize,
    /// Items of the parser at one byte: a bound of ambiguity.
    pub items: usize,
    /// States of the automata, of 1 to 2 kB each.
    pub states: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            grammar_size: 500_000,
            compile_work: 1_000_000,
            mask_work: 200_000,
            mask_items: 50_000,
            items: 2000,
            states: 50_000,
        }
    }
}

impl Limits {
    fn parser_limits(self) -> ParserLimits {
        ParserLimits {
            max_items_in_row: self.items,
            initial_lexer_fuel: self.compile_work,
            step_lexer_fuel: self.mask_work,
            step_max_items: self.mask_items,
            max_lexer_states: self.states,
            max_grammar_size: self.grammar_size,
            precompute_large_lexemes: true,
            // The text generated so far is not the business of whoever reads the error.
            verbose_errors: false,
        }
    }
}

/// Compiles grammars for the vocabulary of a model. It can be shared between threads.
pub struct Compiler {
    factory: ParserFactory,
    /// Logits of a row; tokens behind the vocabulary are never allowed.
    logits: u32,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").field("logits", &self.logits).finish_non_exhaustive()
    }
}

impl Compiler {
    /// The compiler for a tokenizer and a model that gives `logits` logits per row, which may be more than
    /// the tokenizer has tokens. Takes about 100 ms for 150,000 tokens.
    ///
    /// # Errors
    /// [`ConstraintError::Vocabulary`], [`ConstraintError::Trie`].
    pub fn new(tokenizer: &Tokenizer, logits: u32) -> Result<Compiler, ConstraintError> {
        Compiler::with_limits(tokenizer, logits, Limits::default())
    }

    /// As [`new`](Compiler::new), with other limits.
    ///
    /// # Errors
    /// As [`new`](Compiler::new).
    pub fn with_limits(
        tokenizer: &Tokenizer,
        logits: u32,
        limits: Limits,
    ) -> Result<Compiler, ConstraintError> {
        let tokens = tokenizer.vocab_size();
        let vocab_size = u32::try_from(tokens).unwrap_or(u32::MAX);
        if vocab_size > logits {
            return Err(ConstraintError::Vocabulary { tokens, logits });
        }
        let words: Vec<Vec<u8>> = (0..vocab_size).map(|id| word(tokenizer, id)).collect();
        let ends = tokenizer.ends();
        let info = TokRxInfo::new(vocab_size, ends.first().copied().unwrap_or(INVALID_TOKEN));
        let trie = guarded(|| {
            let trie = TokTrie::from(&info, &words);
            Ok(if ends.is_empty() { trie } else { trie.with_eos_tokens(ends) })
        });
        let trie = trie.map_err(ConstraintError::Trie)?;
        Compiler::of(Arc::new(ApproximateTokEnv::new(trie)), logits, limits)
    }

    fn of(env: TokEnv, logits: u32, limits: Limits) -> Result<Compiler, ConstraintError> {
        let factory = guarded(|| {
            // Masks of frequent kinds of text (strings of JSON) are computed ahead.
            let slices = SlicedBiasComputer::general_slices();
            let capabilities = InferenceCapabilities::default();
            ParserFactory::new(&env, capabilities, &slices).map_err(|error| error.to_string())
        });
        let mut factory = factory.map_err(ConstraintError::Trie)?;
        factory.quiet();
        *factory.limits_mut() = limits.parser_limits();
        Ok(Compiler { factory, logits })
    }

    /// The constraint of a sequence that is about to begin.
    ///
    /// # Errors
    /// As the methods of [`Grammar`] that make one.
    pub fn compile(&self, grammar: &Grammar) -> Result<GrammarConstraint, ConstraintError> {
        Ok(GrammarConstraint::new(Matcher::new(Ok(self.parser(grammar)?)), self.logits))
    }

    pub(crate) fn parser(&self, grammar: &Grammar) -> Result<TokenParser, ConstraintError> {
        self.try_parser(grammar).map_err(|message| grammar.refused(&message))
    }

    pub(crate) fn try_parser(&self, grammar: &Grammar) -> Result<TokenParser, String> {
        guarded(|| self.factory.create_parser(grammar.top_level()).map_err(|error| format!("{error:#}")))
    }
}

/// The bytes of a token in the trie; empty for tokens that are never allowed. Special tokens begin with a
/// byte that no text has.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    const MARKER: u8 = TokTrie::SPECIAL_TOKEN_MARKER;
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    match tokenizer.token_type(id) {
        _ if tokenizer.is_end(id) || tokenizer.is_special(id) => [&[MARKER], bytes].concat(),
        None | Some(TokenType::Unused) => Vec::new(),
        // No valid UTF-8 contains it.
        _ if bytes.contains(&MARKER) => Vec::new(),
        Some(_) => bytes.to_vec(),
    }
}

/// Runs a part of the library. A panic in it is a bug that a grammar has found: an error of that grammar.
fn guarded<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(text.unwrap_or_else(|| "it cannot be compiled".to_owned()))
    })
}

/// A compiler for a vocabulary of single bytes, which checks grammars without a model.
pub(crate) fn of_bytes() -> Result<&'static Compiler, ConstraintError> {
    static BYTES: OnceLock<Result<Compiler, ConstraintError>> = OnceLock::new();
    let made = BYTES.get_or_init(|| {
        let env = ApproximateTokEnv::single_byte_env();
        let logits = env.tok_trie().vocab_size() as u32;
        Compiler::of(env, logits, Limits::default())
    });
    made.as_ref().map_err(Clone::clone)
}
