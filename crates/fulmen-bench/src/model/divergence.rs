//! How far the probabilities of a model are from those of a reference: the Kullback–Leibler divergence.
//!
//! ```text
//! windows of a text:  │ context: prefilled │ scored: one step per token, many windows in a batch │
//!                                            reference ─► log p ┐
//!                                            model     ─► log q ┴─► Σ p (log p − log q), per token
//! ```

use std::ops::Range;

use fulmen_engine::{Model, Session, SessionOptions};
use fulmen_model::ModelError;
use serde::Serialize;

use super::LoadedModel;
use super::perplexity::{ScoredText, TextOptions};
use crate::BenchError;
use crate::progress::{Progress, Steps};

/// Logits of the reference that are held at once.
const MAX_REFERENCE_BYTES: usize = 512 << 20;

/// How a model is compared with a reference.
#[derive(Clone, Debug, PartialEq)]
pub struct DivergenceOptions {
    /// The text. Its session is that of the model; its stride is not used: the first half of each window is
    /// context, and a part of the text that fills no window is left out.
    pub text: TextOptions,
    /// Sequences that decode together, for each comparison beside that of prefill. Windows are used again
    /// where a batch is larger than their number, and counted once.
    pub batches: Vec<u32>,
}

/// What a comparison gave. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Divergence {
    /// Sequences that decoded together; `None` for prefill.
    pub batch: Option<u32>,
    /// Tokens whose probabilities were compared.
    pub tokens_scored: usize,
    /// The perplexity of the model.
    pub perplexity: f64,
    /// The perplexity of the reference.
    pub reference_perplexity: f64,
    /// The mean divergence, in nats.
    pub kl_mean: f64,
    /// Its standard error.
    pub kl_error: f64,
    /// The median.
    pub kl_median: f64,
    /// What 99 % of the tokens stay below.
    pub kl_p99: f64,
    /// The largest.
    pub kl_max: f64,
    /// How often the most likely token is that of the reference, of 1.
    pub same_top: f64,
    /// The root of the mean square of the difference in the probability of the text's next token.
    pub probability_rms: f64,
}

/// The comparisons of a model with a reference. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DivergenceReport {
    /// The device, as `--device` takes it.
    pub device: String,
    /// Its name.
    pub name: String,
    /// The device of the reference.
    pub reference_device: String,
    /// The architecture of the model.
    pub architecture: &'static str,
    /// Bytes of all weights.
    pub weight_bytes: u64,
    /// Bytes of all weights of the reference.
    pub reference_weight_bytes: u64,
    /// The type of the KV cache; that of the reference is F32.
    pub cache: String,
    /// Tokens of a window.
    pub context: u32,
    /// Windows.
    pub windows: usize,
    /// The comparisons.
    pub tests: Vec<Divergence>,
}

/// Compares the probabilities of each token of a text with those of a reference: in prefill, and in decode
/// steps of each batch size.
///
/// # Errors
/// A reference with another vocabulary, a text that is too short, and what the models report.
pub fn measure_divergence(
    loaded: &LoadedModel,
    reference: &Model,
    reference_device: &str,
    text: &str,
    options: &DivergenceOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<DivergenceReport, BenchError> {
    let model = &loaded.model;
    let vocabulary = model.config().vocabulary as usize;
    if reference.config().vocabulary as usize != vocabulary {
        return Err(BenchError::InvalidOption(format!(
            "the reference has a vocabulary of {} tokens, the model one of {vocabulary}",
            reference.config().vocabulary
        )));
    }
    if options.batches.contains(&0) {
        return Err(BenchError::InvalidOption("a batch of 0 sequences scores nothing".to_owned()));
    }
    let text = ScoredText::new(model, text, &options.text)?;
    let windows = Windows::of(&text)?;
    let compare = Comparison { vocabulary, threads: loaded.threads, windows: &windows };
    let sequences = options.batches.iter().copied().max().map_or(0, |rows| windows.in_batch(rows));
    let groups = if sequences == 0 { 0 } else { windows.list.len().div_ceil(sequences) };
    let mut steps = Steps::new(windows.list.len() + groups, progress);

    let session = |model: &Model, options: SessionOptions, sequences: usize| {
        let sequences = sequences.max(1) as u32;
        model.session_with(SessionOptions { context: text.window, sequences, ..options })
    };
    let exact = SessionOptions { cache: fulmen_core::DType::F32, ..SessionOptions::default() };
    let mut tests = vec![compare.prefill(
        &mut session(model, options.text.session, 1)?,
        &mut session(reference, exact, 1)?,
        &mut steps,
    )?];
    if sequences > 0 {
        // Whole batches: the last one is filled with windows that are decoded already, in sequences of their
        // own.
        let rows = |&rows: &u32| {
            let places = sequences.next_multiple_of(rows as usize);
            session(model, options.text.session, places).map(|session| Batch { rows: rows as usize, session })
        };
        let mut batches = options.batches.iter().map(rows).collect::<Result<Vec<_>, _>>()?;
        let mut exact = session(reference, exact, sequences)?;
        tests.extend(compare.decode(&mut batches, &mut exact, sequences, &mut steps)?);
    }
    Ok(DivergenceReport {
        device: loaded.device.selector().to_string(),
        name: loaded.device.name.clone(),
        reference_device: reference_device.to_owned(),
        architecture: model.config().architecture.name(),
        weight_bytes: model.weight_bytes(),
        reference_weight_bytes: reference.weight_bytes(),
        cache: options.text.session.cache.to_string(),
        context: text.window,
        windows: windows.list.len(),
        tests,
    })
}

/// The windows of a text, all of one length.
struct Windows {
    list: Vec<Vec<u32>>,
    /// The tokens whose successors are scored.
    scored: Range<usize>,
}

impl Windows {
    fn of(text: &ScoredText) -> Result<Windows, ModelError> {
        let length = (text.window as usize).min(text.tokens.len());
        // As in `fulmen bench perplexity`: the first token scored has half a window before it.
        let scored = length / 2..length.saturating_sub(1);
        if scored.is_empty() {
            let (what, expected) = ("the number of tokens in a window of the text", "3 or more".to_owned());
            return Err(ModelError::Option { what, expected, found: length.to_string() });
        }
        let window = |tokens: &[u32]| {
            let mut tokens = tokens.to_vec();
            tokens[0] = text.begin.unwrap_or(tokens[0]);
            tokens
        };
        Ok(Windows { list: text.tokens.chunks_exact(length).map(window).collect(), scored })
    }

    /// The number of different windows in a batch of so many rows.
    fn in_batch(&self, rows: u32) -> usize {
        self.list.len().min(rows as usize)
    }
}

/// A session that decodes so many sequences at once.
struct Batch {
    rows: usize,
    session: Session,
}

struct Comparison<'a> {
    vocabulary: usize,
    threads: usize,
    windows: &'a Windows,
}

impl Comparison<'_> {
    /// Whole windows are prefilled.
    fn prefill(
        &self,
        session: &mut Session,
        reference: &mut Session,
        steps: &mut Steps<'_>,
    ) -> Result<Divergence, ModelError> {
        let Range { start, end } = self.windows.scored;
        let mut scores = Vec::new();
        for window in &self.windows.list {
            steps.start("prefill");
            let mut logits = [Vec::new(), Vec::new()];
            for (session, logits) in [&mut *reference, &mut *session].into_iter().zip(&mut logits) {
                session.truncate(0, 0)?;
                session.logits_of_each(0, &window[..end], start, |_, rows| logits.extend_from_slice(rows))?;
            }
            let [exact, logits] = &logits;
            scores.extend(self.scores(exact, logits, &window[start + 1..=end])?);
            steps.finish(1);
        }
        Ok(Divergence::of(None, scores))
    }

    /// Windows are decoded token by token, `sequences` at once in the reference, and as many as a batch has
    /// rows in each session. A chunk of positions is decoded by all of them before the next one, so that few
    /// logits of the reference are held.
    fn decode(
        &self,
        batches: &mut [Batch],
        reference: &mut Session,
        sequences: usize,
        steps: &mut Steps<'_>,
    ) -> Result<Vec<Divergence>, ModelError> {
        let Range { start, end } = self.windows.scored;
        let chunk = (MAX_REFERENCE_BYTES / (4 * self.vocabulary * sequences)).max(1);
        let mut scores = vec![Vec::new(); batches.len()];
        for group in self.windows.list.chunks(sequences) {
            steps.start("decode");
            let sessions = batches.iter_mut().map(|batch| &mut batch.session).chain([&mut *reference]);
            for session in sessions {
                for sequence in 0..session.options().sequences {
                    session.truncate(sequence, 0)?;
                    session.feed(sequence, &group[sequence as usize % group.len()][..start])?;
                }
            }
            for first in (start..end).step_by(chunk) {
                let positions = first..end.min(first + chunk);
                let mut exact = Vec::with_capacity(group.len());
                for (sequence, window) in group.iter().enumerate() {
                    let mut logits = Vec::new();
                    let tokens = &window[positions.clone()];
                    reference.logits_of_each(sequence as u32, tokens, 0, |_, rows| {
                        logits.extend_from_slice(rows);
                    })?;
                    exact.push(logits);
                }
                for (batch, scores) in batches.iter_mut().zip(&mut scores) {
                    self.decode_chunk(batch, group, &exact, positions.clone(), scores)?;
                }
            }
            steps.finish(1);
        }
        let tests = batches.iter().zip(scores);
        Ok(tests.map(|(batch, scores)| Divergence::of(Some(batch.rows as u32), scores)).collect())
    }

    /// Decodes these positions of a group of windows, and compares them with the logits of the reference.
    fn decode_chunk(
        &self,
        batch: &mut Batch,
        group: &[Vec<u32>],
        exact: &[Vec<f32>],
        positions: Range<usize>,
        scores: &mut Vec<Score>,
    ) -> Result<(), ModelError> {
        let width = self.vocabulary;
        for first in (0..group.len()).step_by(batch.rows) {
            for (row, at) in positions.clone().enumerate() {
                let token = |sequence: usize| (sequence as u32, group[sequence % group.len()][at]);
                let rows: Vec<(u32, u32)> = (first..first + batch.rows).map(token).collect();
                let logits = batch.session.logits_of_batch(&rows)?;
                for (logits, sequence) in logits.chunks_exact(width).zip(first..group.len()) {
                    let exact = &exact[sequence][row * width..(row + 1) * width];
                    scores.extend(self.scores(exact, logits, &group[sequence][at + 1..at + 2])?);
                }
            }
        }
        Ok(())
    }
}

/// What the probabilities after one token are.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Score {
    /// Σ p (log p − log q): p of the reference, q of the model.
    divergence: f64,
    /// −log q of the text's next token.
    nll: f64,
    /// −log p of it.
    reference_nll: f64,
    same_top: bool,
}

impl Comparison<'_> {
    /// Scores rows of logits, on several threads.
    fn scores(&self, exact: &[f32], logits: &[f32], next: &[u32]) -> Result<Vec<Score>, ModelError> {
        let width = self.vocabulary;
        let rows = next.len().div_ceil(self.threads.max(1)).max(1);
        let part = |first: usize| {
            (first..next.len().min(first + rows)).map(move |row| {
                let [exact, logits] = [exact, logits].map(|all| &all[row * width..(row + 1) * width]);
                Score::of(exact, logits, next[row] as usize)
            })
        };
        let scores: Vec<Score> = std::thread::scope(|scope| {
            let first_rows = (0..next.len()).step_by(rows);
            let parts: Vec<_> =
                first_rows.map(|at| scope.spawn(move || part(at).collect::<Vec<_>>())).collect();
            parts.into_iter().flat_map(|part| part.join().expect("scores do not panic")).collect()
        });
        match scores.iter().position(|score| !score.is_finite()) {
            Some(at) => Err(ModelError::LogitsNotFinite { token: next[at], position: at, sequence: 0 }),
            None => Ok(scores),
        }
    }
}

impl Score {
    fn of(exact: &[f32], logits: &[f32], next: usize) -> Score {
        let [p, q] = [exact, logits].map(log_sum_exp);
        let log = |row: &[f32], at: usize, sum: f64| f64::from(row[at]) - sum;
        let divergence = (0..exact.len()).map(|at| {
            let (p, q) = (log(exact, at, p), log(logits, at, q));
            if p == f64::NEG_INFINITY { 0.0 } else { p.exp() * (p - q) }
        });
        Score {
            // Rounding can make equal distributions differ by a little less than nothing.
            divergence: divergence.sum::<f64>().max(0.0),
            nll: -log(logits, next, q),
            reference_nll: -log(exact, next, p),
            same_top: top(exact) == top(logits),
        }
    }

    fn is_finite(&self) -> bool {
        [self.divergence, self.nll, self.reference_nll].iter().all(|value| value.is_finite())
    }
}

fn log_sum_exp(row: &[f32]) -> f64 {
    let largest = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    largest + row.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum::<f64>().ln()
}

/// The first of the largest.
fn top(row: &[f32]) -> usize {
    (0..row.len()).fold(0, |best, at| if row[at] > row[best] { at } else { best })
}

impl Divergence {
    fn of(batch: Option<u32>, scores: Vec<Score>) -> Divergence {
        let n = scores.len().max(1) as f64;
        let mean = |value: &dyn Fn(&Score) -> f64| scores.iter().map(value).sum::<f64>() / n;
        let kl_mean = mean(&|score| score.divergence);
        let variance = mean(&|score| (score.divergence - kl_mean).powi(2));
        let mut sorted: Vec<f64> = scores.iter().map(|score| score.divergence).collect();
        sorted.sort_by(f64::total_cmp);
        // The smallest value that so large a part of all is not above.
        let quantile = |part: f64| {
            let at = (part * sorted.len() as f64).ceil() as usize;
            sorted.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        let difference = |score: &Score| ((-score.nll).exp() - (-score.reference_nll).exp()).powi(2);
        Divergence {
            batch,
            tokens_scored: scores.len(),
            perplexity: mean(&|score| score.nll).exp(),
            reference_perplexity: mean(&|score| score.reference_nll).exp(),
            kl_mean,
            kl_error: (variance / (n - 1.0).max(1.0)).sqrt(),
            kl_median: quantile(0.5),
            kl_p99: quantile(0.99),
            kl_max: quantile(1.0),
            same_top: mean(&|score| f64::from(u8::from(score.same_top))),
            probability_rms: mean(&difference).sqrt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_divergence_is_that_of_the_definition() {
        let (exact, logits) = ([1.0f32, 2.0, -1.0, f32::NEG_INFINITY], [0.5f32, 2.5, 0.0, -3.0]);
        let softmax = |row: &[f32]| -> Vec<f64> {
            let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            row.iter().map(|&x| f64::from(x).exp() / sum).collect()
        };
        let (p, q) = (softmax(&exact), softmax(&logits));
        let expected: f64 = (0..3).map(|at| p[at] * (p[at] / q[at]).ln()).sum();
        let score = Score::of(&exact, &logits, 2);
        assert!((score.divergence - expected).abs() < 1e-12, "{score:?}");
        assert!((score.nll + q[2].ln()).abs() < 1e-12 && (score.reference_nll + p[2].ln()).abs() < 1e-12);
        assert!(score.same_top && !Score::of(&exact, &[9.0, 0.0, 0.0, 0.0], 0).same_top);
        // A constant changes nothing, also where it is large.
        let moved: Vec<f32> = exact.iter().map(|x| x + 300.0).collect();
        assert!(Score::of(&exact, &moved, 0).divergence < 1e-9);
        assert!(!Score::of(&exact, &[f32::NAN; 4], 0).is_finite());
        assert!(
            !Score::of(&exact, &[0.0, f32::NEG_INFINITY, 0.0, 0.0], 0).is_finite(),
            "q is 0 where p is not"
        );
    }

    #[test]
    fn statistics_are_those_of_all_scores() {
        let score =
            |divergence: f64| Score { divergence, nll: 2.0, reference_nll: 1.0, same_top: divergence < 0.5 };
        let test = Divergence::of(Some(4), (1..=200).map(|at| score(f64::from(at) / 200.0)).collect());
        assert!((test.kl_mean - 0.5025).abs() < 1e-12 && test.kl_max == 1.0);
        assert_eq!((test.kl_median, test.kl_p99, test.tokens_scored), (0.5, 0.99, 200));
        assert!((test.perplexity - 2f64.exp()).abs() < 1e-12 && (test.same_top - 0.495).abs() < 1e-12);
        let expected = (-1f64).exp() - (-2f64).exp();
        assert!((test.probability_rms - expected).abs() < 1e-12);
        // The standard error of the mean of a uniform distribution on (0, 1].
        assert!((test.kl_error - (1.0 / 12.0f64 / 200.0).sqrt()).abs() < 1e-4, "{}", test.kl_error);
    }
}
