//! How text is generated, as Python passes it.

use fulmen::constraint::Grammar;
use fulmen::model::tokenizer::Special;
use fulmen::prelude::{GenerateOptions, Sampling};
use pyo3::prelude::*;

use crate::cancel::CancelToken;
use crate::failure::{Failure, Kind};

/// How text is generated. The Python layer makes one for each call.
#[pyclass(frozen, module = "fulmen._fulmen")]
pub(crate) struct Options {
    pub(crate) generate: GenerateOptions,
    pub(crate) grammar: Option<Grammar>,
    pub(crate) logprobs: Option<u8>,
    /// Ends the call from another thread.
    pub(crate) token: Option<CancelToken>,
}

#[pymethods]
impl Options {
    #[new]
    #[pyo3(signature = (
        *, max_tokens=None, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0,
        frequency_penalty=0.0, presence_penalty=0.0, repeat_window=64, seed=0, stop=Vec::new(),
        special=false, ignore_end=false, schema=None, regex=None, grammar=None, logprobs=None,
        shown=Vec::new(), cancel=None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        max_tokens: Option<usize>,
        temperature: f32,
        top_k: u32,
        top_p: f32,
        min_p: f32,
        repeat_penalty: f32,
        frequency_penalty: f32,
        presence_penalty: f32,
        repeat_window: u32,
        seed: u64,
        stop: Vec<String>,
        special: bool,
        ignore_end: bool,
        schema: Option<String>,
        regex: Option<String>,
        grammar: Option<String>,
        logprobs: Option<u8>,
        shown: Vec<u32>,
        cancel: Option<Bound<'_, CancelToken>>,
    ) -> PyResult<Options> {
        if [&schema, &regex, &grammar].iter().filter(|given| given.is_some()).count() > 1 {
            return Err(Failure::new(
                Kind::Argument,
                "generate: at most one of schema, regex and grammar must be given",
            )
            .into());
        }
        // Checking a grammar takes milliseconds, and much longer for the largest ones.
        let grammar = crate::worker::detached(py, || {
            Ok(match (schema, regex, grammar) {
                (Some(schema), ..) => Some(Grammar::json_schema(&schema)?),
                (_, Some(regex), _) => Some(Grammar::regex(&regex)?),
                (.., Some(grammar)) => Some(Grammar::lark(&grammar)?),
                _ => None,
            })
        })?;
        let sampling = Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            repeat_penalty,
            frequency_penalty,
            presence_penalty,
            repeat_window,
            seed,
        };
        sampling.validate().map_err(Failure::from)?;
        let generate = GenerateOptions {
            sampling,
            max_tokens: max_tokens.unwrap_or(usize::MAX),
            stop,
            special: if special { Special::Parse } else { Special::AsText },
            shown,
            stop_at_end: !ignore_end,
            ..GenerateOptions::default()
        };
        let token = cancel.map(|token| token.get().clone());
        Ok(Options { generate, grammar, logprobs, token })
    }
}
